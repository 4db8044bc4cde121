"""A table of what strangers and neighbours try, and what it gets them, against real processes with auth on."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import pytest

from config.tiers import Tier
from tasks.accounts.api_keys import new_key
from tests import issuer
from tests.e2e import fort as rig
from tests.e2e.fort import NEXT_TOKEN, SERVICE_TOKEN, Fort, bearer
from tests.e2e.hostile import BODIES, HEADS
from tests.waiting import wait_until

# Each is a credential that finds nobody: 401, in the same words.
WRONG_CREDENTIALS: dict[str, Callable[[Fort], str]] = {
    "a malformed key": lambda fort: "Bearer bunch_paid_x_y",
    "half a key": lambda fort: f"Bearer {fort.secrets['alice'][:-20]}",
    "a key that never was": lambda fort: f"Bearer {new_key(Tier.PAID)[1]}",
    "a known id with another secret": lambda fort: f"Bearer {fort.secrets['alice'][:-43]}{'x' * 43}",
    "a revoked key": lambda fort: f"Bearer {fort.secrets['revoked']}",
    "an expired key": lambda fort: f"Bearer {fort.secrets['expired']}",
    "the service token": lambda fort: f"Bearer {SERVICE_TOKEN}",
    "an endless key": lambda fort: "Bearer " + "a" * 7000,
    "bytes that are no text": lambda fort: "Bearer \xff\xfe.\xfd.\xfc",
    "nothing behind Bearer": lambda fort: "Bearer .",
    "Basic": lambda fort: "Basic YWxpY2U6c2VjcmV0",
    "alg none": lambda fort: f"Bearer {issuer.unsigned(time.time())}",
    "HS256 with the RSA public key": lambda fort: f"Bearer {issuer.confused(time.time())}",
    "another issuer's key": lambda fort: f"Bearer {issuer.token(time.time(), number=1)}",
    "a key in the token's own header": lambda fort: f"Bearer {issuer.bringing_its_own_key(time.time())}",
    "claims changed after signing": lambda fort: f"Bearer {issuer.changed_after_signing(time.time())}",
    "wrong audience": lambda fort: f"Bearer {issuer.token(time.time(), aud='another')}",
    "wrong issuer": lambda fort: f"Bearer {issuer.token(time.time(), iss='https://evil.example')}",
    "an expired token": lambda fort: f"Bearer {issuer.token(time.time(), exp=int(time.time()) - 10)}",
    "a token for later": lambda fort: f"Bearer {issuer.token(time.time(), nbf=int(time.time()) + 600)}",
}

# Fixtures.
fort = rig.fort


@pytest.mark.parametrize("attack", WRONG_CREDENTIALS)
def test_a_wrong_credential(fort: Fort, attack: str) -> None:
    header = {"Authorization": WRONG_CREDENTIALS[attack](fort)}
    for method, path in (("POST", "/v1/inference"), ("GET", f"/v1/result/{fort.task_id}")):
        answer = fort.call(method, path, b'{"input": 1}' if method == "POST" else None, header)
        assert (answer.status, answer.error) == (401, "UNAUTHENTICATED")
        assert answer.json["message"] == "the credential is not valid"
        assert answer.headers["www-authenticate"].startswith("Bearer")


# What is sent, by whom, and what is answered. Paths take the id of alice's request.
BY: dict[str, tuple[str, str, str, int, str]] = {
    # attack                                  by         method    path                          status  code
    "nobody asks": ("", "POST", "/v1/inference", 401, "UNAUTHENTICATED"),
    "nobody asks in bulk": ("", "POST", "/v1/inference/bulk", 401, "UNAUTHENTICATED"),
    "nobody asks the old way": ("", "POST", "/v1/predict", 401, "UNAUTHENTICATED"),
    "nobody asks the simple way": ("", "POST", "/api/inference", 401, "UNAUTHENTICATED"),
    "a key in the URL": ("", "POST", "/v1/inference?access_token={alice}", 401, "UNAUTHENTICATED"),
    "a stranger looks": ("", "GET", "/v1/result/{id}", 401, "UNAUTHENTICATED"),
    "a stranger cancels": ("", "DELETE", "/v1/result/{id}", 401, "UNAUTHENTICATED"),
    "a neighbour looks": ("bob", "GET", "/v1/result/{id}", 404, "UNKNOWN_TASK"),
    "a neighbour waits": ("bob", "GET", "/v1/result/{id}?wait_ms=5000", 404, "UNKNOWN_TASK"),
    "a neighbour cancels": ("bob", "DELETE", "/v1/result/{id}", 404, "UNKNOWN_TASK"),
    "a neighbour asks for its life": ("bob", "GET", "/internal/requests/{id}", 404, "UNKNOWN_TASK"),
    "a neighbour guesses its name": ("bob", "GET", "/internal/requests/mine", 404, "UNKNOWN_TASK"),
    "a stranger reads the metrics": ("", "GET", "/metrics", 401, "UNAUTHENTICATED"),
    "a stranger asks for its life": ("", "GET", "/internal/requests/{id}", 401, "UNAUTHENTICATED"),
    "a tenant reads the metrics": ("bob", "GET", "/metrics", 403, "FORBIDDEN"),
    "a tenant reads the health": ("bob", "GET", "/internal/health", 403, "FORBIDDEN"),
    "a path that a proxy lets pass": ("bob", "GET", "//internal/health", 404, "NOT_FOUND"),
    "an encoded path": ("bob", "GET", "/%69nternal/health", 403, "FORBIDDEN"),
    "a key in the place of an id": ("bob", "GET", "/v1/result/celery-task-meta-{id}", 404, "UNKNOWN_TASK"),
}


@pytest.mark.parametrize("attack", BY)
def test_where_somebody_has_no_business(fort: Fort, attack: str) -> None:
    by, method, path, status, code = BY[attack]
    path = path.format(id=fort.task_id, alice=fort.secrets["alice"])
    body = b'{"input": 1, "inputs": [1], "input_data": 1}' if method == "POST" else None
    answer = fort.call(method, path, body, bearer(fort.secrets[by]) if by else None)
    assert (answer.status, answer.error) == (status, code)


def test_what_an_operator_does_is_logged_with_the_name_of_the_token(fort: Fort) -> None:
    for name, token in (("ann", SERVICE_TOKEN), ("ben", NEXT_TOKEN)):
        body = json.dumps({"arguments": {"model": "slow", "tier": "free"}, "confirm": True}).encode()
        assert fort.call("POST", "/ops/actions/resume", body, bearer(token)).status == 200
        wait_until(lambda name=name: f"action resume by {name}:" in fort.logged(), what="the log says who it was")
    both = f"ann:{SERVICE_TOKEN},ben:{NEXT_TOKEN}"
    for wrong in (both, f"ann:{SERVICE_TOKEN}", f"ben:{NEXT_TOKEN}", "ben"):
        assert fort.call("GET", "/metrics", None, bearer(wrong)).status == 401


def test_a_neighbours_request_looks_like_one_that_never_was(fort: Fort) -> None:
    never = "00000000-0000-4000-a000-000000000000"
    theirs, nobodys = (fort.ask("bob", "GET", f"/v1/result/{task_id}") for task_id in (fort.task_id, never))
    assert theirs.json["message"].replace(fort.task_id, never) == nobodys.json["message"]


def test_what_is_ones_own_is_seen_with_any_key_of_ones_own(fort: Fort) -> None:
    wait_until(lambda: fort.ask("alice", "GET", f"/v1/result/{fort.task_id}").json["status"] == "SUCCESS", what="done")
    for name in ("alice", "alice again"):
        assert fort.ask(name, "GET", f"/v1/result/{fort.task_id}").json["output"] == "alice's"
        for known_as in ("mine", fort.task_id):
            assert fort.ask(name, "GET", f"/internal/requests/{known_as}").json["status"] == "completed"
    assert fort.ask("service", "GET", f"/internal/requests/{fort.task_id}").json["status"] == "completed"
    assert fort.ask("service", "GET", "/metrics").status == 200


def test_two_owners_may_use_the_same_name(fort: Fort) -> None:
    headers = {**bearer(fort.secrets["bob"]), "X-Request-Id": "mine"}
    assert fort.call("POST", "/v1/inference", b'{"input": "bob\'s"}', headers).json["output"] == "bob's"
    assert fort.ask("bob", "GET", "/internal/requests/mine").json["task_id"] != fort.task_id
    assert fort.ask("alice", "GET", "/internal/requests/mine").json["task_id"] == fort.task_id


def test_a_tier_cannot_be_asked_for(fort: Fort) -> None:
    headers = {**bearer(fort.secrets["alice"]), "X-Tier": "enterprise"}
    answer = fort.call("POST", "/v1/inference", b'{"input": 1}', headers)
    assert answer.json["metadata"]["tier"] == "paid"


@pytest.mark.parametrize(("algorithm", "tier"), [("RS256", "enterprise"), ("ES256", "free"), ("HS256", "paid")])
def test_a_good_token_is_let_in_with_its_tier(fort: Fort, algorithm: str, tier: str) -> None:
    text = issuer.token(time.time(), algorithm, tier=tier, sub="carol")
    answers = [fort.call("POST", "/v1/inference", b'{"input": 1}', bearer(text)) for _ in range(4)]
    assert {answer.json["metadata"]["tier"] for answer in answers} == {tier}


def test_a_token_does_not_name_the_owner_of_a_key(fort: Fort) -> None:
    text = issuer.token(time.time(), sub="alice")
    answer = fort.call("GET", f"/v1/result/{fort.task_id}", None, bearer(text))
    assert (answer.status, answer.error) == (404, "UNKNOWN_TASK")


@pytest.mark.parametrize("attack", BODIES)
def test_a_body_that_is_meant_to_hurt(fort: Fort, attack: str) -> None:
    make, status, code = BODIES[attack]
    answer = fort.ask("alice", body=make())
    assert (answer.status, answer.error) == (status, code)
    stranger = fort.call("POST", "/v1/inference", make())
    assert stranger.status in {401, 413}, "a stranger's body is not even parsed"


@pytest.mark.parametrize("attack", HEADS)
def test_header_injection(fort: Fort, attack: str) -> None:
    line, status = HEADS[attack]
    body = b'{"input": 1}'
    answer = fort.raw(
        b"POST /v1/inference HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        b"Authorization: Bearer %b\r\n%b\r\n%b" % (len(body), fort.secrets["alice"].encode(), line, body)
    )
    assert answer.status == status
    assert "x-evil" not in answer.headers
    if status == 200:
        assert answer.json["metadata"]["tier"] == "paid"
        assert answer.headers["x-request-id"].replace("-", "").isalnum()


def test_log_injection_and_secrets_in_logs(fort: Fort) -> None:
    forged = "2026-01-01 00:00:00,000 CRITICAL webapp: forged"
    alice = bearer(fort.secrets["alice"])
    fort.call("POST", "/v1/inference", json.dumps({"input": 1, "model": f"x\n{forged}"}).encode(), alice)
    fort.call("POST", "/v1/inference", json.dumps({"input": f"\n{forged}\x1b[2J"}).encode(), alice)
    for wish in ("fail", "raise"):
        quoted = {"input": {wish: f"\n{forged}\r{forged}\x1b[2J"}, "model": "moody"}
        assert fort.call("POST", "/v1/inference", json.dumps(quoted).encode(), alice).status == 500
    fort.call("GET", "/v1/result/a%0A" + forged.replace(" ", "%20"), None, alice)
    fort.call("GET", "/a%0A" + forged.replace(" ", "%20"), None, bearer(f"x{forged}"))
    fort.raw(b"GET /\x0b" + forged.encode() + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    # What the model said is there, though on no line of its own.
    wait_until(lambda: "CRITICAL webapp: forged" in fort.logged(), what="the failures are logged")
    logged = fort.logged()
    assert not any(line.startswith(forged) for line in logged.splitlines())
    assert "\x1b[2J" not in logged
    for name, secret in {**fort.secrets, "jwt": issuer.SECRET, "ben": NEXT_TOKEN}.items():
        assert secret not in logged, name
        assert secret.rpartition("_")[2] not in logged, name


def test_no_secret_in_redis_metrics_or_the_database(fort: Fort) -> None:
    with fort.stack.redis() as redis:
        stored = b"\n".join(redis.dump(key) or b"" for key in redis.scan_iter("bunch*"))
    metrics = fort.ask("service", "GET", "/metrics").body
    database = b"".join(each.read_bytes() for each in fort.stack.state_dir.glob("bunch.db*"))
    assert database
    for secret in fort.secrets.values():
        part = secret.rpartition("_")[2].encode()
        assert part not in stored
        assert part not in metrics
        assert part not in database


def test_slow_loris(fort: Fort) -> None:
    """Half a head each and then nothing: they are cut off in their time (`test_http_server_limits`), and until then
    keep nobody else from being answered.
    """
    loris = [socket.create_connection(("127.0.0.1", fort.stack.port)) for _ in range(300)]
    try:
        for each in loris:
            each.sendall(b"POST /v1/inference HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert [fort.ask("alice").status for _ in range(10)] == [200] * 10
    finally:
        for each in loris:
            each.close()
