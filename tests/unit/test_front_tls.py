"""TLS of the frontends: what is said about files that cannot be used, and who a certificate names."""

from __future__ import annotations

import os
import ssl
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from config import front_tls
from config.errors import SettingsError
from config.front_tls import date_problems, file_problems, now_utc, server_context
from config.schema import Settings
from config.tiers import Tier
from tests.fakes.tls import Authority
from webapp.errors import ApiError
from webapp.http.certificate import CERTIFICATE, ClientCertificate
from webapp.http.tls import TlsConnection
from webapp.identity.base import Access
from webapp.identity.bearer import Bearer
from webapp.identity.certificates import CertificateHolders
from webapp.identity.client_address import ClientAddress
from webapp.identity.jwks import KeySet
from webapp.identity.keyring import KeyRing
from webapp.request import HttpRequest

SETTINGS = Settings(auth="mtls")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def of(certificate: Path | str, key: Path | str, **more: Any) -> Settings:
    return Settings(tls_cert=str(certificate), tls_key=str(key), **more)


class TestFiles:
    def test_good_ones_have_no_problem(self, authority: Authority) -> None:
        settings = of(*authority.certificate("good.example"), tls_client_ca=str(authority.ca), auth="mtls")
        assert list(file_problems(settings)) == []
        assert list(date_problems(settings, now_utc())) == []
        assert server_context(Settings()) is None

    def test_a_key_of_another_certificate_is_named(self, authority: Authority) -> None:
        certificate, _ = authority.certificate("one.example")
        _, key = authority.certificate("other.example")
        (problem,) = file_problems(of(certificate, key))
        assert (problem.key, str(certificate) in problem.fix) == ("BUNCH_TLS_KEY", True)

    @pytest.mark.parametrize("which", ["tls_cert", "tls_key", "tls_client_ca"])
    def test_a_file_that_is_missing_or_is_no_pem_is_named(
        self, authority: Authority, tmp_path: Path, which: str
    ) -> None:
        certificate, key = authority.certificate("good.example")
        good = {"tls_cert": str(certificate), "tls_key": str(key), "tls_client_ca": str(authority.ca)}
        rubbish = tmp_path / "rubbish.pem"
        rubbish.write_text("rubbish")
        for path in (tmp_path / "absent.pem", rubbish):
            (problem,) = file_problems(Settings(auth="mtls", **(good | {which: str(path)})))
            assert (problem.key, problem.value) == (f"BUNCH_{which.upper()}", str(path))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
    def test_a_file_that_this_user_cannot_read_is_named(self, authority: Authority) -> None:
        certificate, key = authority.certificate("unreadable.example")
        key.chmod(0)
        (problem,) = file_problems(of(certificate, key))
        assert "Permission denied" in problem.fix

    def test_one_that_has_expired_or_is_not_valid_yet_is_named(self, authority: Authority) -> None:
        settings = of(*authority.certificate("old.example", expired=True))
        assert ["has expired" in each.fix for each in date_problems(settings, now_utc())] == [True]
        (problem,) = date_problems(settings, now_utc() - timedelta(days=3))
        assert "is not valid before" in problem.fix
        # Clients would refuse it; the server could use it.
        assert list(file_problems(settings)) == []

    def test_one_that_expires_soon_is_a_warning(self, authority: Authority) -> None:
        certificate, key = authority.certificate("soon.example")
        key.chmod(0o644)
        fixes = [each.fix for each in front_tls.cautions(of(certificate, key), now_utc())]
        assert ["expires on" in fixes[0], "chmod" in fixes[1], len(fixes)] == [True, True, 2]
        key.chmod(0o600)
        assert list(front_tls.cautions(of(certificate, key), now_utc() - timedelta(days=30))) == []

    def test_the_error_of_a_start_has_the_key_and_no_secret(self, authority: Authority) -> None:
        certificate, key = authority.certificate("one.example")
        with pytest.raises(SettingsError) as raised:
            server_context(of(key, certificate))
        assert "BUNCH_TLS_CERT" in str(raised.value)
        assert "PRIVATE" not in str(raised.value)


def certificate(
    *names: tuple[str, str], common_name: str = "", units: tuple[str, ...] = (), expires_at: float = 9e9
) -> ClientCertificate:
    return ClientCertificate(common_name, units, names, expires_at)


def holder(shown: ClientCertificate | None, settings: Settings = SETTINGS, now: float = 1.0) -> Any:
    environ = {} if shown is None else {CERTIFICATE: shown}
    return CertificateHolders(settings, lambda: now).find(HttpRequest(environ))


class TestHolder:
    @pytest.mark.parametrize(
        ("names", "common_name", "owner"),
        [
            ((("DNS", "A.example"), ("URI", "spiffe://org/a")), "cn", "mtls:spiffe://org/a"),
            ((("email", "a@x.example"), ("DNS", "A.example"), ("DNS", "b.example")), "cn", "mtls:a.example"),
            ((("IP Address", "192.0.2.1"), ("email", "a@x.example")), "", "mtls:a@x.example"),
            ((), "acme", "mtls:CN=acme"),
        ],
    )
    def test_is_named_by_the_first_name_of_the_best_kind(
        self, names: tuple[tuple[str, str], ...], common_name: str, owner: str
    ) -> None:
        assert holder(certificate(*names, common_name=common_name)).owner == owner

    def test_has_a_key_of_its_own(self) -> None:
        keys = {holder(certificate(("DNS", f"{name}.example"))).key_id for name in "abab"}
        assert len(keys) == 2

    def test_has_the_tier_of_its_unit_or_the_default(self) -> None:
        shown = [certificate(("DNS", "a"), units=units) for units in (("sales", "enterprise"), ("sales",), ())]
        tiers = [holder(each, Settings(auth="mtls", default_tier=Tier.FREE)).tier for each in shown]
        assert tiers == [Tier.ENTERPRISE, Tier.FREE, Tier.FREE]

    @pytest.mark.parametrize(
        "shown", [None, certificate(), certificate(("URI", "a b")), certificate(("DNS", "x" * 121))]
    )
    def test_is_nobody_without_a_usable_name(self, shown: ClientCertificate | None) -> None:
        assert holder(shown) is None

    def test_is_nobody_once_the_certificate_has_expired_though_the_connection_lives(self) -> None:
        holders = CertificateHolders(SETTINGS, iter((1.0, 3.0)).__next__)
        call = HttpRequest({CERTIFICATE: certificate(("DNS", "a"), expires_at=2.0)})
        assert [holders.find(call) is None for _ in range(2)] == [False, True]


class Ring(KeyRing):
    """Knows one key."""

    def __init__(self) -> None:
        pass

    def find(self, text: str) -> Any:
        return holder(certificate(("DNS", "by-key"))) if text == "right" else None


class TestIdentity:
    def identify(self, ring: KeyRing | None, text: str | None, shown: ClientCertificate | None, access: Access) -> str:
        settings = Settings(auth="mtls", http_host="0.0.0.0")
        bearer = Bearer(settings, ring, None, KeySet(settings), CertificateHolders(settings))
        environ: dict[str, Any] = {"HTTP_AUTHORIZATION": f"Bearer {text}"} if text else {}
        try:
            return bearer.identify(HttpRequest(environ | {CERTIFICATE: shown}), access).owner
        except ApiError as error:
            return error.code

    @pytest.mark.parametrize(
        ("keys", "text", "shown", "found"),
        [
            (False, None, True, "mtls:a"),
            # SDKs send some text always; where only certificates count it is nothing.
            (False, "anything", True, "mtls:a"),
            (False, None, False, "UNAUTHENTICATED"),
            (False, "anything", False, "UNAUTHENTICATED"),
            (True, None, True, "mtls:a"),
            (True, "right", True, "mtls:by-key"),
            (True, "right", False, "mtls:by-key"),
            # Whoever sends a key means it.
            (True, "wrong", True, "UNAUTHENTICATED"),
        ],
    )
    def test_by_key_or_by_certificate(self, keys: bool, text: str | None, shown: bool, found: str) -> None:
        given = certificate(("DNS", "a")) if shown else None
        assert self.identify(Ring() if keys else None, text, given, Access.TENANT) == found

    def test_a_certificate_makes_no_operator(self) -> None:
        assert self.identify(None, None, certificate(("DNS", "a")), Access.OPERATOR) == "FORBIDDEN"


class TestClientAddress:
    @pytest.mark.parametrize(
        ("proxies", "at", "forwarded", "client"),
        [
            ("", "192.0.2.1", "203.0.113.9", "192.0.2.1"),
            ("10.0.0.0/8", "192.0.2.1", "203.0.113.9", "192.0.2.1"),
            ("10.0.0.0/8", "10.0.0.1", "203.0.113.9", "203.0.113.9"),
            ("10.0.0.0/8", "10.0.0.1", None, "10.0.0.1"),
            # What the client itself has written, and the two proxies behind it.
            ("10.0.0.0/8, 2001:db8::1", "10.0.0.1", "1.1.1.1, 203.0.113.9, 2001:db8::1", "203.0.113.9"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "203.0.113.9:1234", "203.0.113.9"),
            ("10.0.0.0/8", "10.0.0.1", "[2001:db8::2]:443", "2001:db8::2"),
            ("10.0.0.0/8", "10.0.0.1", "203.0.113.9, unknown", "10.0.0.1"),
            ("10.0.0.0/8", "10.0.0.1", "10.0.0.2", "10.0.0.2"),
            ("10.0.0.0/8", "", "203.0.113.9", ""),
        ],
    )
    def test_is_that_of_the_last_one_who_is_no_named_proxy(
        self, proxies: str, at: str, forwarded: str | None, client: str
    ) -> None:
        environ = {"REMOTE_ADDR": at, "HTTP_FORWARDED": "for=198.51.100.1"}
        if forwarded is not None:
            environ["HTTP_X_FORWARDED_FOR"] = forwarded
        assert ClientAddress(Settings(trusted_proxies=proxies))(HttpRequest(environ)) == client


def test_a_client_without_tls_that_sends_for_ever_gets_its_answer_and_no_more_of_the_event_loops_time() -> None:
    sent: list[bytes] = []
    reads = iter(range(1000))

    def recv(_: int) -> bytes:
        next(reads)
        return b"x"

    connection = TlsConnection.__new__(TlsConnection)
    connection._base = {"REMOTE_ADDR": "192.0.2.1"}
    connection._raw = SimpleNamespace(tcp=SimpleNamespace(send=sent.append, recv=recv, shutdown=lambda _: None))
    error = ssl.SSLError(1, "a request")
    error.reason = "HTTP_REQUEST"
    connection._explain(error)
    assert b"speaks TLS" in sent[0]
    assert next(reads) <= 100
