"""TLS towards an API: the authority to trust, the own certificate, and what an error of a handshake means."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64
# X509_V_ERR_*: no or an unknown issuer, self-signed; or an authority of the same name with another key.
_UNTRUSTED = frozenset({2, 7, 18, 19, 20, 21})
# OpenSSL's texts for what the other side refuses.
_REFUSALS = {
    "CERTIFICATE_REQUIRED": "it asks for a client certificate; set cert_file and key_file",
    "HANDSHAKE_FAILURE": "it refuses the handshake; if it asks for a client certificate, set cert_file and key_file",
    "UNKNOWN_CA": "it does not trust the issuer of our client certificate; set cert_file to one of its own authority",
    "DECRYPT_ERROR": "it does not accept our client certificate; set cert_file to one of its own authority",
    "CERTIFICATE_EXPIRED": "our client certificate has expired; renew cert_file",
    "BAD_CERTIFICATE": "it refuses our client certificate; set cert_file to one that it accepts",
    "CERTIFICATE_UNKNOWN": "it refuses our client certificate; set cert_file to one that it accepts",
    "WRONG_VERSION_NUMBER": "it does not speak TLS on this port; write http://",
}


class BadTlsFile(ValueError):
    """A file of `ca_file`, `cert_file` or `key_file` cannot be used; the text says which and why."""


def client_context(
    ca_file: str = "", cert_file: str = "", key_file: str = "", *, verify: bool = True
) -> ssl.SSLContext:
    """The context of a client. Without a `ca_file` it trusts the authorities of this machine.

    Raises:
        BadTlsFile: one of the files is missing, is not PEM, or key and certificate do not belong together.
    """
    for key, path in (("ca_file", ca_file), ("cert_file", cert_file), ("key_file", key_file)):
        if path and not Path(path).is_file():
            raise BadTlsFile(f"{key}: there is no file {path}")
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (ssl.SSLError, OSError) as error:
        raise BadTlsFile(f"ca_file: {ca_file} has no certificate in PEM form: {error}") from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert_file:
        try:
            # Without a password: OpenSSL would ask for one on the terminal.
            context.load_cert_chain(cert_file, key_file or None, password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError) as error:
            of = f"{cert_file} and {key_file}" if key_file else f"{cert_file}, without a key_file,"
            why = f"cert_file: {of} must be a certificate and its unencrypted key in PEM form: {error}"
            raise BadTlsFile(why) from error
    return context


def what_is_wrong(error: BaseException) -> str | None:
    """The meaning of an error of a connection, with the remedy; None: it is not about TLS."""
    for each in _chain(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            return _of_their_certificate(each)
        if isinstance(each, ssl.SSLError):
            known = next((text for name, text in _REFUSALS.items() if name in (each.reason or "")), None)
            return known or f"TLS failed: {each.reason or each}"
    return None


def _of_their_certificate(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate has expired"
    if code == _NOT_YET:
        return "its certificate is not valid yet"
    if code in {_OTHER_NAME, _OTHER_ADDRESS}:
        return f"its certificate is for another name: {error.verify_message}"
    if code in _UNTRUSTED:
        return "its certificate is not of an authority that is trusted here; set ca_file to that of its authority"
    return f"its certificate is not valid: {error.verify_message}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    while each is not None:
        yield each
        # `httpx` and `httpcore` raise theirs from the library's.
        each = each.__cause__ or each.__context__
