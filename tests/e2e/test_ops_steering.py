"""The operations page's actions on models and workers, with real workers that follow them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis

from tasks.fleet.desired_state import DesiredState
from tasks.fleet.registry_reader import Fleet
from tests.e2e.client import Api
from tests.e2e.test_ops import act, events
from tests.waiting import wait_until


def will(api: Api, name: str, **arguments: Any) -> str:
    return str(act(api, name, {"arguments": arguments}).json["will"])


def done(api: Api, name: str, **arguments: Any) -> str:
    answer = act(api, name, {"arguments": arguments, "confirm": True})
    assert answer.status == 200, answer.body
    return str(answer.json["done"])


def now(api: Api) -> Any:
    with events(api) as stream:
        return next(document for name, document in stream if name == "now")


def nodes(api: Api) -> list[str]:
    return sorted(row["node"] for row in now(api)["workers"])


def moody(api: Api) -> Any:
    """As the page shows it, which may be a moment old, and another in each frontend."""
    (row,) = (each for each in now(api)["models"] if each["name"] == "moody")
    return row


@contextmanager
def put_right(api: Api) -> Iterator[None]:
    """Whatever becomes of the test, those after it find everything claimed by everybody."""
    try:
        yield
    finally:
        done(api, "resume", model="moody")
        for node in nodes(api):
            done(api, "resume", worker=node)


def test_a_tier_is_paused_and_resumed(well: Api, store: Redis) -> None:
    api = well
    with put_right(api):
        said = will(api, "pause", model="moody", tier="free")
        assert "2 workers (" in said
        assert all(node in said for node in nodes(api))
        assert "Nothing waits now" in said
        assert DesiredState(store).read(["moody"])["moody"].paused == frozenset()

        assert "moody.free is paused; 2 workers of 2 applied it at once" in done(
            api, "pause", model="moody", tier="free"
        )
        waiting = [
            api.post("/v1/inference", {"input": n, "model": "moody"}, X_Tier="free", Prefer="respond-async").json
            for n in range(3)
        ]
        # The others of the model go on.
        assert api.post("/v1/inference", {"input": 1, "model": "moody"}, X_Tier="paid").status == 200

        assert "3 requests wait now (3 free)" in will(api, "pause", model="moody")
        assert "already paused" in will(api, "pause", model="moody", tier="free")
        wait_until(
            lambda: any("moody is paused for free: 3 wait" in each["text"] for each in now(api)["findings"]),
            what="the page says so first",
        )
        wait_until(lambda: moody(api)["paused"] == ["free"], what="it is in the table of models")

        assert "will claim moody.free again. 3 requests wait now." in will(api, "resume", model="moody", tier="free")
        assert "is resumed; 2 workers" in done(api, "resume", model="moody", tier="free")
        for each in waiting:
            assert api.outcome(each["task_id"])["status"] == "SUCCESS"
        assert "is not paused: nothing will change" in will(api, "resume", model="moody")


def test_a_worker_is_drained_and_resumed(well: Api, store: Redis) -> None:
    api = well
    with put_right(api):
        first, second = nodes(api)

        def states() -> dict[str, str]:
            return {row.node: row.state for row in Fleet(store).workers()}

        said = will(api, "drain", worker=first)
        assert said.startswith(f"{first} will claim no more requests")
        assert "1 other worker serves moody" in said
        assert states() == {first: "running", second: "running"}

        assert "draining" in done(api, "drain", worker=first.partition("@")[0])
        wait_until(lambda: states()[first] == "drained", what="it is drained")
        assert api.post("/v1/inference", {"input": 1, "model": "moody"}).status == 200
        assert "already drained: nothing will change" in will(api, "drain", worker=first)
        assert "No other worker serves moody" in will(api, "drain", worker=second)

        assert f"{first} will claim again" in will(api, "resume", worker=first)
        assert done(api, "resume", worker=first) == f"{first} claims again"
        wait_until(lambda: states() == {first: "running", second: "running"}, what="both claim")


def test_a_model_is_tuned_and_goes_back_to_its_file(well: Api, store: Redis) -> None:
    api = well
    try:
        said = will(api, "tune", model="moody", changes={"policy": "fixed", "max_batch_size": "7"})
        assert "policy idle → fixed; max_batch_size 64 → 7. 2 workers (" in said
        assert DesiredState(store).read(["moody"])["moody"].tuned == {}

        assert "moody is tuned; 2 workers of 2 applied it at once" in done(
            api, "tune", model="moody", changes={"policy": "fixed", "max_batch_size": "7"}
        )

        def is_shown() -> bool:
            row = moody(api)
            return bool(
                (row["policy"], row["max_batch_size"], row["tuned"]) == ("fixed", 7, ["max_batch_size", "policy"])
            )

        wait_until(is_shown, what="it is in the table of models")
        assert "nothing will change" in will(api, "tune", model="moody", changes={"max_batch_size": 7})
        assert "max_batch_size 7 → 64" in will(api, "tune", model="moody", changes={"max_batch_size": ""})
    finally:
        done(api, "tune", model="moody", changes={"policy": "", "max_batch_size": ""})
    assert DesiredState(store).read(["moody"])["moody"].tuned == {}


@pytest.mark.parametrize(
    ("name", "arguments", "code", "words"),
    [
        ("pause", {}, "INVALID_INPUT", "model"),
        ("pause", {"model": "nothing"}, "UNKNOWN_MODEL", "nothing"),
        ("pause", {"model": "moody", "tier": "gold"}, "INVALID_INPUT", "gold"),
        ("resume", {"model": "moody", "tear": "free"}, "INVALID_INPUT", "tear"),
        ("resume", {"worker": "nobody"}, "INVALID_INPUT", "nobody"),
        ("drain", {"worker": ["worker1"]}, "INVALID_INPUT", "worker"),
        ("tune", {"model": "moody", "changes": {"max_batch_size": "many"}}, "INVALID_INPUT", "max_batch_size"),
        ("tune", {"model": "moody", "changes": {"policy": "psychic"}}, "INVALID_INPUT", "psychic"),
        ("tune", {"model": "moody"}, "INVALID_INPUT", "changes"),
    ],
)
def test_what_cannot_be_done_is_refused_before_and_when_it_is_confirmed(
    api: Api, name: str, arguments: dict[str, Any], code: str, words: str
) -> None:
    for confirm in (False, True):
        answer = act(api, name, {"arguments": arguments, "confirm": confirm})
        assert answer.error == code
        assert words in answer.json["message"]


def test_a_request_is_explained(well: Api) -> None:
    answer = well.post("/v1/inference", {"input": 1, "model": "simulated"}, X_Request_Id="slow-one")

    def about() -> Any:
        return well.get("/ops/explain/slow-one").json

    wait_until(lambda: about()["batch"] and about()["batch"].get("executor"), what="its batch is written down")
    assert about()["task_id"] == answer.json["task_id"]
    assert {each["stage"]: each["ms"] for each in about()["stages"]}["compute"] >= 50
    assert well.get("/ops/explain/never-seen").error == "UNKNOWN_TASK"
