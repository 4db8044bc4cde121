"""TLS of the frontends: the context of a server from `BUNCH_TLS_CERT`, `BUNCH_TLS_KEY` and `BUNCH_TLS_CLIENT_CA`.

A frontend's master makes it before it forks, and again on HUP. A certificate and key that are being replaced on disk
reach no worker before somebody says that both are there.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from config.errors import Problem, SettingsError
from config.schema import Settings

# An authority that renews by itself does so a month before the end; who has two weeks left has missed that.
_SOON = timedelta(days=14)
_CRL = b"-----BEGIN X509 CRL-----"


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """The context for `settings`; None where no certificate is configured.

    TLS 1.2 or newer, HTTP/1.1 alone. Client certificates are asked for where `BUNCH_AUTH` has `mtls`; a client without
    one may connect, and is told by the application what it may not do.

    Raises:
        SettingsError: a file is missing, cannot be read, or does not fit the others.
    """
    if not settings.tls_cert:
        return None
    problems = list(_unreadable(settings))
    if problems:
        raise SettingsError(tuple(problems))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Renegotiation lets a client have the server do expensive work again and again.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password: OpenSSL would ask for one on the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: b"")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise SettingsError((_not_a_pair(settings, error),)) from error
    if settings.tls_client_ca:
        _ask_for_certificates(context, settings)
    return context


def file_problems(settings: Settings) -> Iterator[Problem]:
    """The problems with the files because of which no frontend can start."""
    try:
        server_context(settings)
    except SettingsError as error:
        yield from error.problems


def date_problems(settings: Settings, now: datetime) -> Iterator[Problem]:
    """Certificates of the server that are not valid at `now`, so that its clients refuse them."""
    for key, path, begins, ends in _certificates(settings):
        if key == "BUNCH_TLS_CLIENT_CA":
            # One of several authorities may have ended; its clients are refused.
            continue
        if ends <= now:
            yield Problem(key, path, f"has expired on {ends:%Y-%m-%d}; renew it, then send HUP")
        elif begins > now:
            yield Problem(key, path, f"is not valid before {begins:%Y-%m-%d %H:%M} UTC")


def cautions(settings: Settings, now: datetime) -> Iterator[Problem]:
    """Settings that work, but not for long, or for too many."""
    for key, path, _, ends in _certificates(settings):
        if now < ends <= now + _SOON:
            yield Problem(key, path, f"expires on {ends:%Y-%m-%d}; renew it, then send HUP")
        elif key == "BUNCH_TLS_CLIENT_CA" and ends <= now:
            yield Problem(key, path, f"has an authority that expired on {ends:%Y-%m-%d}; remove it")
    if settings.tls_key and Path(settings.tls_key).is_file() and Path(settings.tls_key).stat().st_mode & 0o004:
        yield Problem("BUNCH_TLS_KEY", settings.tls_key, "can be read by every user of this machine; chmod 600 it")


def now_utc() -> datetime:
    return datetime.now(UTC)


def _files(settings: Settings) -> tuple[tuple[str, str], ...]:
    named = (
        ("BUNCH_TLS_CERT", settings.tls_cert),
        ("BUNCH_TLS_KEY", settings.tls_key),
        ("BUNCH_TLS_CLIENT_CA", settings.tls_client_ca),
    )
    return tuple((key, path) for key, path in named if path)


def _unreadable(settings: Settings) -> Iterator[Problem]:
    for key, path in _files(settings):
        try:
            with Path(path).open("rb") as file:
                file.read(1)
        except OSError as error:
            yield Problem(key, path, f"must be a file in PEM form that this user can read: {error.strerror}")


def _not_a_pair(settings: Settings, error: Exception) -> Problem:
    reason = getattr(error, "reason", "") or ""
    if "MISMATCH" in reason:
        fix = f"is not the key of the certificate {settings.tls_cert}; set the two that belong together"
        return Problem("BUNCH_TLS_KEY", settings.tls_key, fix)
    if not _leaf(settings.tls_cert):
        return Problem("BUNCH_TLS_CERT", settings.tls_cert, "must hold a certificate in PEM form, and its chain")
    fix = f"must hold the unencrypted private key of the certificate in PEM form: {reason or error}"
    return Problem("BUNCH_TLS_KEY", settings.tls_key, fix)


def _ask_for_certificates(context: ssl.SSLContext, settings: Settings) -> None:
    try:
        context.load_verify_locations(settings.tls_client_ca)
    except (ssl.SSLError, OSError) as error:
        fix = f"must hold the authorities of clients' certificates in PEM form: {getattr(error, 'reason', error)}"
        raise SettingsError((Problem("BUNCH_TLS_CLIENT_CA", settings.tls_client_ca, fix),)) from error
    context.verify_mode = ssl.CERT_OPTIONAL
    if _CRL in Path(settings.tls_client_ca).read_bytes():
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


class _Dates(NamedTuple):
    """The validity of one certificate in a file of the settings."""

    key: str
    path: str
    begins: datetime
    ends: datetime


def _certificates(settings: Settings) -> Iterator[_Dates]:
    """The server's own certificate, and the authorities of its clients. Files that cannot be read have none."""
    for key, path in _files(settings):
        found = {"BUNCH_TLS_CERT": _leaf, "BUNCH_TLS_CLIENT_CA": _authorities}.get(key, lambda _: [])(path)
        for each in found:
            yield _Dates(key, path, _time(each["notBefore"]), _time(each["notAfter"]))


def _leaf(path: str) -> list[dict[str, Any]]:
    """The first certificate of a file, which is the server's own; none if there is none."""
    try:
        # The only way of the standard library to read one; the library that has others is an extra.
        return [ssl._ssl._test_decode_cert(path)]  # type: ignore[attr-defined]  # noqa: SLF001
    except (ssl.SSLError, OSError, ValueError):
        return []


def _authorities(path: str) -> list[Any]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError):
        return []
    return context.get_ca_certs()


def _time(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)
