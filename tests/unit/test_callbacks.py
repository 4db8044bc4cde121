"""The URLs and addresses that a result may be pushed to, its signature, and when it is tried again."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.allowed_hosts import CallbackHosts, ForbiddenTarget, RefHosts
from config.errors import SettingsError
from config.settings import load_settings
from docs.examples.callback_receiver import is_genuine
from tasks.callbacks.pacing import HostGates, pause_s
from tasks.callbacks.signature import signature_of

HOSTS = CallbackHosts("hooks.example.org, receiver:8080, *.partner.example, 127.0.0.1:9000, [::1], 10.0.0.7")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://hooks.example.org/a?b=c", "hooks.example.org"),
        ("https://HOOKS.example.org.:8443", "hooks.example.org:8443"),
        ("http://receiver:8080/x", "receiver:8080"),
        ("https://eu.partner.example/", "eu.partner.example"),
        ("http://127.0.0.1:9000/", "127.0.0.1:9000"),
        ("http://[0:0::1]:81/", "[::1]:81"),
    ],
)
def test_a_url_of_a_host_that_is_listed_is_taken(url: str, place: str) -> None:
    assert HOSTS.target(url).place == place


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example.org/",
        "https://example.org/",
        "http://receiver/",
        "https://partner.example/",
        "https://evilpartner.example/",
        "http://eu.partner.example/",
        "http://127.0.0.1:9001/",
        "http://127.1:9000/",
        "http://2130706433:9000/",
        "http://0x7f000001:9000/",
        "http://[::ffff:127.0.0.1]:9000/",
        "ftp://hooks.example.org/",
        "file:///etc/passwd",
        "//hooks.example.org/",
        "hooks.example.org",
        "",
        "https://me:pw@hooks.example.org/",
        "https://hooks.example.org@evil.example/",
        "https://evil.example\\@hooks.example.org/",
        "https://hooks.example.org/#part",
        "https://hooks.example.org/ two",
        "https://hooks.example.org/\r\nX: y",
        "https://hooks.example.org/é",
        "https://hooks.example.org:0/",
        "https://hooks.example.org:99999/",
        "https://[::1/",
        "https://hooks.example.org/" + "x" * CallbackHosts.max_url,
        "https://..partner.example/",
        "https://a..partner.example/",
        "https://*.partner.example/",
        "https://a%2e.partner.example/",
        f"https://{'a' * 64}.partner.example/",
        f"https://{'a.' * 125}partner.example/",
    ],
)
def test_any_other_url_is_refused(url: str) -> None:
    with pytest.raises(ForbiddenTarget):
        HOSTS.target(url)


def test_a_presigned_url_with_the_token_of_a_session_is_taken() -> None:
    path = "/cat.png?X-Amz-Security-Token=" + "x" * 4000
    assert RefHosts("*.example.org").target(f"https://bucket.example.org{path}").path == path


def test_without_a_list_no_url_is_taken() -> None:
    with pytest.raises(ForbiddenTarget, match="BUNCH_CALLBACK_HOSTS is empty"):
        CallbackHosts("").target("https://hooks.example.org/")


@pytest.mark.parametrize("url", ["https://hooks.example.org/", "https://eu.partner.example/"])
@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_a_public_address_is_called(url: str, address: str) -> None:
    HOSTS.target(url).require(address)


PRIVATE = ["127.0.0.1", "10.1.2.3", "172.17.0.2", "192.168.0.1", "100.64.0.1", "::1", "fc00::1", "::ffff:10.0.0.1"]
# Python calls these global.
PRIVATE += ["::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::7f00:1", "fec0::1"]
NEVER = [
    "fd00:ec2::254",
    "100.100.100.200",
    "169.254.169.254",
    "0.0.0.0",
    "224.0.0.1",
    "fe80::1%eth0",
    "::",
    "ff02::1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
]


@pytest.mark.parametrize("address", [*PRIVATE, *NEVER])
def test_a_host_below_a_domain_must_not_have_a_private_address(address: str) -> None:
    with pytest.raises(ForbiddenTarget):
        HOSTS.target("https://eu.partner.example/").require(address)


def test_a_host_that_is_named_itself_may_be_private_but_not_link_local() -> None:
    for address in PRIVATE:
        HOSTS.target("https://hooks.example.org/").require(address)
        HOSTS.target("http://receiver:8080/").require(address)
    for address in NEVER:
        with pytest.raises(ForbiddenTarget):
            HOSTS.target("https://hooks.example.org/").require(address)


def test_a_public_address_gets_no_result_in_clear() -> None:
    with pytest.raises(ForbiddenTarget, match="https only"):
        HOSTS.target("http://receiver:8080/").require("93.184.215.14")
    with pytest.raises(ForbiddenTarget, match="https only"):
        CallbackHosts("93.184.215.14").target("http://93.184.215.14/").require("93.184.215.14")


def test_a_link_local_address_is_called_only_where_the_list_has_it() -> None:
    CallbackHosts("169.254.7.7").target("http://169.254.7.7/").require("169.254.7.7")


def test_the_signature_is_what_the_contract_says_and_the_example_checks_it() -> None:
    body = b'{"task_id":"t"}'
    header = signature_of("secret", body, 1_700_000_000)
    mac = hmac.new(b"secret", b"1700000000." + body, hashlib.sha256).hexdigest()
    assert header == f"t=1700000000,v1={mac}"
    assert is_genuine("secret", header, body, 1_700_000_100.0)
    assert not is_genuine("other", header, body, 1_700_000_100.0)
    assert not is_genuine("secret", header, body + b" ", 1_700_000_100.0)
    assert not is_genuine("secret", header, body, 1_700_001_000.0)
    assert not is_genuine("secret", "", body, 1_700_000_100.0)


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1e6))
def test_a_pause_grows_and_is_bounded_whatever_the_receiver_asks_for(n: int, chance: float, asked_s: float) -> None:
    pause = pause_s(n, chance, asked_s)
    assert 0.5 <= pause <= 300
    assert pause >= min(asked_s, 300)
    assert pause_s(n + 1, chance) >= pause_s(n, chance)


def test_a_host_takes_so_many_calls_at_once_and_others_are_not_concerned() -> None:
    gates = HostGates(most=2)
    for _ in range(2):
        assert gates.wait_s("a", 0.0) == 0
        gates.start("a")
    assert gates.wait_s("a", 0.0) > 0
    assert gates.wait_s("b", 0.0) == 0
    gates.end("a", 0.0, 0.1, answered=True)
    assert gates.wait_s("a", 0.0) == 0
    gates.end("a", 0.0, 0.1, answered=True)
    assert not gates.hosts


def test_what_waits_for_a_busy_host_comes_back_at_the_rate_of_its_calls() -> None:
    gates = HostGates(most=4)
    for _ in range(5):
        gates.start("a")
    for _ in range(20):
        gates.end("a", 0.0, 10.0, answered=True)
        gates.start("a")
    for _ in range(2):
        gates.begin()
        waits = [gates.wait_s("a", 0.0) for _ in range(8)]
        assert waits == pytest.approx([waits[0] * number for number in range(1, 9)])
        assert waits[0] == pytest.approx(10 / 4, rel=0.1)


def test_a_host_that_does_not_answer_is_closed_for_longer_each_time_and_then_tried_by_one() -> None:
    gates = HostGates(most=4)
    now, waits = 0.0, []
    for _ in range(10):
        gates.start("a")
        gates.end("a", now, 0.1, answered=False)
        waits.append(gates.wait_s("a", now))
        now += waits[-1]
        assert gates.wait_s("a", now) == 0
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    gates.start("a")
    assert gates.wait_s("a", now) > 0
    gates.end("a", now, 0.1, answered=True)
    assert not gates.hosts


@pytest.mark.parametrize(
    "entry", ["*", "https://a.example", "a.example/x", "a.example:0", "a.example:70000", "*.", "[::g]"]
)
def test_a_host_that_is_no_host_stops_the_start(entry: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"BUNCH_CALLBACK_HOSTS": f"good.example,{entry}", "BUNCH_CALLBACK_SECRET": "x"})
    (problem,) = caught.value.problems
    assert (problem.key, entry in str(problem)) == ("BUNCH_CALLBACK_HOSTS", True)


def test_hosts_need_the_secret_where_results_are_sent_and_redis() -> None:
    environ = {"BUNCH_CALLBACK_HOSTS": "good.example"}
    for role in (None, "ops"):
        with pytest.raises(SettingsError, match="BUNCH_CALLBACK_SECRET"):
            load_settings(environ, role=role)
    assert load_settings(environ, role="web").callback_hosts
    with pytest.raises(SettingsError, match=r"BUNCH_CALLBACK_HOSTS.*collocated"):
        load_settings({**environ, "BUNCH_CALLBACK_SECRET": "x", "BUNCH_MODE": "collocated"})
