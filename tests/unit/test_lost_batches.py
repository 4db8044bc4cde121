"""A batch whose process ended: whoever was alone in it for the last time fails with the reason."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from batching.executor import Cause, Event, ExecutorState, Lost
from batching.request import Done, Failed, Work
from tests.fakes.claim_rig import Eager, Make, Rig, ScriptedExecutor, done, echo

SLOW = "the batch ran longer than timeout_ms = 1000"


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Rig] = []

    def build(executor: object = None, **options: object) -> Rig:
        made.append(Rig(executor, **options))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for rig in made:
        rig.close()


def inputs(work: Work) -> list[str]:
    return [msgspec.json.decode(each) for each in work.inputs]


def dies_of(culprit: str, event: Callable[[Work], Event]) -> ScriptedExecutor:
    return ScriptedExecutor(lambda work: event(work) if culprit in inputs(work) else echo(work))


def test_the_reason_travels_to_the_one_that_was_alone_with_it_to_the_end(make: Make) -> None:
    rig = make(dies_of("slow", lambda work: Lost(work.batch_id, (), SLOW, Cause.TIMEOUT)))
    rig.put("a", "slow", "b")
    rig.start()
    assert [each.status for each in rig.settled("a", "slow", "b")] == ["SUCCESS", "FAILURE", "SUCCESS"]
    error, details = rig.error("slow")
    assert SLOW in error.text
    assert "3 processes" in error.text
    assert details.code == "INFERENCE_FAILED"
    # It was not handed over once more to find that out.
    assert [lost for _, lost in rig.witness.tries("slow")] == [0, 1, 2]
    assert set(rig.store.letters) == {"slow"}
    assert rig.store.leases == {}


@pytest.mark.parametrize("max_attempts", [1, 2, 3, 9])
def test_members_of_a_batch_whose_process_can_tell_by_itself_are_alone_the_next_time(
    make: Make, max_attempts: int
) -> None:
    def answer(work: Work) -> Event:
        if "poison" not in inputs(work):
            return echo(work)
        if len(work.inputs) > 1:
            return Lost(work.batch_id, (), "its device failed", Cause.DEVICE)
        rig.executor.say(done(work, [Failed("the device failed")]))
        return Lost(None, (), "its device failed", Cause.DEVICE)

    rig = make(ScriptedExecutor(answer), max_attempts=max_attempts)
    names = [f"n{n}" for n in range(7)]
    rig.put(*names[:3], "poison", *names[3:])
    rig.start()
    assert {each.status for each in rig.settled(*names)} == {"SUCCESS"}
    assert rig.error("poison")[0].text == "the device failed"
    assert [len(work.inputs) for work in rig.executor.taken] == [8] + [1] * 8
    assert [work.suspect for work in rig.executor.taken] == [False] + [True] * 8


def test_a_suspect_that_met_anothers_fault_alone_is_not_charged_with_it(make: Make) -> None:
    faults = iter([Cause.DEVICE] * 6)

    def answer(work: Work) -> Event:
        return Lost(work.batch_id, (), "its device failed", cause) if (cause := next(faults, None)) else echo(work)

    rig = make(ScriptedExecutor(answer), max_attempts=1)
    rig.put("innocent")
    rig.start()
    assert rig.settled("innocent")[0].status == "SUCCESS"
    assert rig.witness.tries("innocent") == [(1, 0)] + [(2, 1)] * 6


def test_the_last_try_of_any_of_a_batch_is_told_to_the_executor(make: Make) -> None:
    def answer(work: Work) -> Done:
        if "busy" in inputs(work) and not work.last_try:
            return done(work, [Failed("busy", retryable=True)] * len(work.inputs))
        return echo(work)

    rig = make(ScriptedExecutor(answer), max_attempts=2)
    rig.put("busy")
    rig.start()
    assert rig.settled("busy")[0].status == "SUCCESS"
    assert [work.last_try for work in rig.executor.taken] == [False, True]


class Restarting(ScriptedExecutor):
    """Is away while `ready` is not set, as a real one is after a death."""

    def __init__(self, answer: Callable[[Work], Event | None]) -> None:
        super().__init__(answer)
        self.ready = threading.Event()
        self.ready.set()

    @property
    def state(self) -> ExecutorState:
        return ExecutorState.READY if self.ready.is_set() else ExecutorState.STARTING

    def wait_ready(self, timeout_s: float) -> bool:
        return self.ready.wait(timeout_s)


def test_batches_that_are_lost_together_wait_in_their_order_again(make: Make) -> None:
    def answer(work: Work) -> Event | None:
        if len(executor.taken) == 1:
            return None
        if len(executor.taken) > 2:
            return echo(work)
        executor.ready.clear()
        inside, beside = (each.batch_id for each in executor.taken)
        return Lost(inside, (), SLOW, Cause.EXIT, (beside,))

    executor = Restarting(answer)
    rig = make(executor, policy=Eager(2))
    rig.put("a", "b", "c", "d")
    rig.start()
    rig.until(lambda: len(rig.witness.returns) == 4)
    executor.ready.set()
    rig.settled("a", "b", "c", "d")
    assert rig.executor_inputs()[4:] == ["a", "b", "c", "d"]
