"""A caller's own clients, by the name that it gives them: told apart in log and ledger, and each with a limit."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import Answer, Api, connected
from tests.e2e.stack import PATIENT, Stack
from tests.waiting import wait_until

MODELS = """\
[models.echo]
source = "workers.models.echo:Echo"

[models.moody]
source = "tests.models:Moody"
"""
# This many at once, and as many in a minute.
BURST = 10


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("clients"), MODELS)
    try:
        yield stack.start(
            "--web-workers=2", "--workers=1", "--no-flower",
            client_rpm=BURST, burst_ms=60_000, ledger_retention_days=1, log_format="json", admission="off", **PATIENT,
        )  # fmt: skip
        stack.stop()
    finally:
        stack.kill()


@pytest.fixture(scope="module")
def api(own: Stack) -> Iterator[Api]:
    with connected(own.port) as api:
        yield api


def test_a_client_that_runs_wild_is_refused_and_the_others_are_not(api: Api, own: Stack) -> None:
    answers = [api.infer(number, "echo", client_id="wild") for number in range(3 * BURST)]
    refused = [each for each in answers if each.status != 200]
    # Both frontends count for the same limit.
    assert len(refused) >= BURST
    for each in refused:
        assert (each.status, each.error) == (429, "RATE_LIMITED")
        assert int(each.headers["retry-after"]) >= 1
        assert each.headers["ratelimit-policy"] == f'"minute";q={BURST};w=60, "burst";q={BURST};w=60'
    assert api.infer(1, "echo", client_id="calm").status == 200
    assert [api.infer(n, "echo").status for n in range(2 * BURST)] == [200] * 2 * BURST
    wait_until(lambda: b'bunch_shed_total{reason="client"' in api.get("/metrics").body, what="it is counted")


def test_a_bulk_call_counts_for_as_many_as_it_has(api: Api) -> None:
    def bulk(number: int) -> Answer:
        return api.post("/v1/inference/bulk", {"inputs": list(range(number)), "model": "echo", "client_id": "bulky"})

    assert bulk(2 * BURST).status == 200
    refused = bulk(2)
    assert (refused.status, refused.error) == (429, "RATE_LIMITED")


def test_the_ledger_and_the_log_say_which_client_it_was(api: Api, own: Stack) -> None:
    assert api.infer("fine", "echo", client_id="Łaptop 7").status == 200
    assert api.infer({"fail": "no"}, "moody", client_id='a "quoted" one').status == 500

    def lines() -> set[tuple[str, str | None, str]]:
        with contextlib.closing(sqlite3.connect(own.state_dir / "bunch.db")) as database:
            return set(database.execute("SELECT model, client_id, status FROM request").fetchall())

    expected = {("echo", "Łaptop 7", "completed"), ("moody", 'a "quoted" one', "failed"), ("echo", "wild", "refused")}
    wait_until(lambda: expected | {("echo", None, "completed")} <= lines(), what="the ledger has them")

    def logged() -> list[dict[str, Any]]:
        # The last line may still be written.
        whole, _, _ = (own.state_dir / "log" / "worker1.log").read_text().rpartition("\n")
        return [each for each in map(json.loads, whole.splitlines()) if each.get("client_id") == 'a "quoted" one']

    wait_until(logged, what="the worker has logged it")


@pytest.mark.parametrize("name", ["a" * 129, "line\nend", "a\n", "\x1b[2J", "nul\0", "\u2028", 7, ["a"]])
def test_a_name_that_would_not_stay_on_its_line_is_refused(api: Api, name: object) -> None:
    answer = api.infer(1, "echo", client_id=name)
    assert (answer.status, answer.error) == (400, "INVALID_INPUT")
    assert "client_id" in answer.json["message"]
