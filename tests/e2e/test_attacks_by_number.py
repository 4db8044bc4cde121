"""Attacks by number and by size: guessing, asking too often, large bodies; and what the books say of everybody."""

from __future__ import annotations

import contextlib
import sqlite3
import time

from config.tiers import Tier
from tasks.accounts.api_keys import new_key
from tasks.ops import sync
from tests.e2e import fort as rig
from tests.e2e.client import Answer
from tests.e2e.fort import Fort, _addresses, bearer
from tests.waiting import wait_until
from webapp.identity import keyring

# Fixtures.
fort = rig.fort


def test_guessing_keys_becomes_slow_and_stays_so_for_the_guesser_alone(fort: Fort) -> None:
    address = next(_addresses)
    began = time.monotonic()
    # Two frontends count apart.
    for _ in range(16):
        answer = fort.call("POST", "/v1/inference", b'{"input": 1}', bearer(new_key(Tier.PAID)[1]), address)
        assert answer.status == 401
    assert time.monotonic() - began >= 0.5
    alice = fort.call("POST", "/v1/inference", b'{"input": 1}', bearer(fort.secrets["alice"]), address)
    assert alice.status == 200


def test_a_revoked_key_is_closed_in_every_frontend(fort: Fort) -> None:
    key_id = fort.create("short-lived", "--tier", "free")
    wait_until(lambda: fort.is_known("short-lived") == {True}, what="it is known everywhere")
    fort.keys("revoke", key_id)
    wait_until(lambda: fort.is_known("short-lived") == {False}, what="it is closed everywhere")
    # Who could reach the database alone waits for the ops worker too.
    assert keyring.POLL_EVERY_S + sync.EVERY_S <= 2.0
    assert "revoked" in {row["state"] for row in fort.keys("list") if row["id"] == key_id}


def test_the_ledger_says_whose_each_request_was(fort: Fort) -> None:
    assert fort.ask("bob", body=b'{"input": "for the ledger"}').status == 200

    def lines() -> list[tuple[str, str, str, str, int, str | None]]:
        with contextlib.closing(sqlite3.connect(fort.stack.state_dir / "bunch.db")) as database:
            query = "SELECT owner, tier, model, status, attempts, error FROM request"
            return database.execute(query).fetchall()

    expected = {("bob", "enterprise", "echo", "completed", 1, None), ("alice", "paid", "echo", "completed", 1, None)}
    wait_until(lambda: expected <= set(lines()), what="they are written down")
    assert all(owner for owner, *_ in lines())


def test_a_key_that_asks_too_often_is_told_when_to_come_again(fort: Fort) -> None:
    fort.create("hasty", "--tier", "free", "--rpm", "60", "--burst", "2")
    wait_until(lambda: fort.ask("hasty").status == 200, what="the key is known to every frontend")

    def refused() -> Answer | None:
        answer = fort.ask("hasty")
        return answer if answer.status == 429 else None

    answer = next(found for found in iter(refused, 0) if found)
    assert answer.error == "RATE_LIMITED"
    assert int(answer.headers["retry-after"]) == 1
    assert 0 < answer.json["retry_after_ms"] <= 1000
    assert answer.headers["ratelimit-policy"] == '"minute";q=60;w=60, "burst";q=2;w=2'
    assert answer.headers["ratelimit"].startswith('"burst";r=0;t=')
    assert fort.ask("bob").status == 200


def test_a_large_body_that_is_refused_counts_against_its_key(fort: Fort) -> None:
    fort.create("costly", "--tier", "free", "--rpm", "1", "--burst", "2")
    wait_until(lambda: fort.is_known("costly") == {True}, what="it is known everywhere")
    body = b'{"input": [' + b" " * 20_000 + b"1,]}"
    answers = [fort.ask("costly", body=body) for _ in range(4)]
    assert [answer.error for answer in answers[:2]] == ["INVALID_JSON"] * 2
    assert {answer.error for answer in answers[2:]} == {"RATE_LIMITED"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers[2:])
    assert fort.ask("costly").error == "RATE_LIMITED", "it has had its requests"
    assert fort.ask("alice", body=body).error == "INVALID_JSON"


def test_a_strangers_large_body_is_not_waited_for(fort: Fort) -> None:
    head = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n{}\r\n"
    wrong = f"Authorization: Bearer {new_key(Tier.PAID)[1]}\r\n"
    for path, field_line, status in (
        ("/v1/inference", "", 401),
        ("/v1/inference", wrong, 401),
        ("/v1/inference", "Expect: 100-continue\r\n", 401),
        ("/nothing", "", 401),
        ("/metrics", "", 401),
        ("/healthz", "", 405),
    ):
        answer = fort.raw(head.format(path, field_line).encode() + b"{")
        assert (answer.status, answer.headers["connection"]) == (status, "close"), path
