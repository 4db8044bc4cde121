"""A claim loop ends: what is inside is answered, what is not goes back."""

from __future__ import annotations

import json
import threading

import pytest

from config.tiers import Tier
from tests.fakes.claim_rig import MODEL, Eager, Make, ScriptedExecutor, echo


@pytest.fixture(autouse=True)
def _short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("loop.TICK_S", "collector.TICK_S", "loop_state.TICK_S", "loop_state.LOOK_EVERY_S"):
        monkeypatch.setattr(f"batching.claim.{name}", 0.01)


class TestStopping:
    def test_answers_what_is_inside_and_leaves_the_rest_queued(self, make: Make) -> None:
        rig = make(ScriptedExecutor(lambda work: None), Eager(size=2))
        rig.put("a", "b")
        rig.start()
        rig.until(lambda: rig.executor.taken)
        rig.loop.stop_claiming()
        rig.put("c")
        stopping = threading.Thread(target=rig.loop.stop, args=(30.0,))
        stopping.start()
        rig.executor.say(echo(rig.executor.taken[0]))
        stopping.join(30)
        assert not stopping.is_alive()
        assert {reply.status for reply in rig.settled("a", "b")} == {"SUCCESS"}
        assert rig.waiting == 1
        assert rig.store.leases == {}

    def test_gives_back_what_is_not_done_in_time(self, make: Make) -> None:
        rig = make(ScriptedExecutor(lambda work: None), Eager(size=2))
        rig.put("a", "b", "c", "d")
        rig.start()
        rig.until(lambda: len(rig.executor.taken) == 2)
        rig.loop.stop(0.0)
        assert [json.loads(each)["headers"]["id"] for each in rig.store.queued(MODEL, Tier.PAID)] == list("abcd")
        assert rig.store.leases == {}
        # A late answer finds the lease gone.
        assert rig.store.results == {}

    def test_ends_soon_while_nothing_happens(self, make: Make) -> None:
        rig = make()
        rig.start()
        stopping = threading.Thread(target=rig.loop.stop, args=(3600.0,))
        stopping.start()
        stopping.join(30)
        assert not stopping.is_alive()
