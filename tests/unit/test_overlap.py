"""A model with `prepare` and `finish`: stages of neighbouring batches run together, and batches fail as before."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.request import Done, Failed, Ok, Rejected, Work
from bunch import InputRejected, TransientError
from tests.unit.computing import outputs, run, work
from workers.executor.compute import BatchComputer
from workers.executor.ipc import Fault, FrameReader, ToChild, encode
from workers.executor.overlap import Overlap
from workers.executor.shapes import Shapes

LONG_S = 30.0


class Staged:
    """Echoes what came through three stages: `{"p": …}` staged, doubled by `predict`, `finish` tells the result."""

    def __init__(self) -> None:
        self.predicted: list[list[Any]] = []
        self.threads: dict[str, set[str]] = {}
        self.on: dict[tuple[str, Any], Callable[[], None]] = {}

    def load(self, device: str) -> None:
        pass

    def prepare(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> Any:
        self._enter("prepare", inputs)
        return [InputRejected("no") if each == "refuse" else each for each in inputs]

    def predict(self, staged: Any, parameters: list[dict[str, Any]]) -> Any:
        assert len(staged) == len(parameters)
        self.predicted.append(list(staged))
        self._enter("predict", staged)
        return staged

    def finish(self, raw: Any) -> Any:
        self._enter("finish", raw)
        return [f"<{each}>" for each in raw]

    def _enter(self, stage: str, values: list[Any]) -> None:
        self.threads.setdefault(stage, set()).add(threading.current_thread().name)
        for value in values:
            # Only what is hashable can be a key.
            if not isinstance(value, list) and (act := self.on.get((stage, value))) is not None:
                act()


def fails(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def device_fault() -> BaseException:
    return RuntimeError("CUDA error: device-side assert triggered")


@pytest.fixture
def model() -> Staged:
    return Staged()


class Child:
    """The child's loop over a socket pair, in a thread of this process."""

    def __init__(self, model: Staged, **about: Any) -> None:
        self._ours, theirs = socket.socketpair()
        self.told: list[tuple[Done | None, Fault | None]] = []
        self._changed = threading.Condition()
        computer = BatchComputer(model, lambda value: None, **about)
        loop = Overlap(FrameReader(theirs, ToChild), computer, self._send)
        self._thread = threading.Thread(target=loop.run, name="main", daemon=True)
        self._thread.start()

    def send(self, batch_id: str, *inputs: Any, **about: Any) -> None:
        raw = [msgspec.json.encode(each) for each in inputs]
        self._ours.sendall(encode(Work(batch_id, raw, [b"{}"] * len(raw), **about)))

    def answers(self, count: int) -> list[tuple[Done | None, Fault | None]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.told) >= count, LONG_S), self.told
        return self.told

    def end(self) -> None:
        self._ours.close()
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()

    def _send(self, done: Done | None, fault: Fault | None) -> None:
        with self._changed:
            self.told.append((done, fault))
            self._changed.notify_all()


@pytest.fixture
def child(model: Staged) -> Iterator[Child]:
    made = Child(model)
    yield made
    made.end()


def told(answers: list[tuple[Done | None, Fault | None]]) -> list[tuple[str, list[Any]]]:
    found = []
    for done, fault in answers:
        assert fault is None
        assert done is not None
        values = [msgspec.json.decode(each.output) if isinstance(each, Ok) else each for each in done.outcomes]
        found.append((done.batch_id, values))
    return found


def meeting(model: Staged, *places: tuple[str, Any]) -> None:
    """Let these stages begin only together: each waits until the others have begun as well."""
    barrier = threading.Barrier(len(places))
    for place in places:
        model.on[place] = lambda: barrier.wait(LONG_S) and None  # type: ignore[func-returns-value]


def test_one_batch_goes_through_all_stages(model: Staged) -> None:
    assert outputs(run(BatchComputer(model), b"1", b"2")) == [b'"<1>"', b'"<2>"']


def test_the_next_batch_is_prepared_beside_predict(model: Staged, child: Child) -> None:
    meeting(model, ("predict", 1), ("prepare", 2))
    child.send("a", 1)
    child.send("b", 2)
    assert told(child.answers(2)) == [("a", ["<1>"]), ("b", ["<2>"])]


def test_a_batch_is_finished_beside_the_predict_of_the_next(model: Staged, child: Child) -> None:
    meeting(model, ("finish", 1), ("predict", 2))
    child.send("a", 1)
    child.send("b", 2)
    assert told(child.answers(2)) == [("a", ["<1>"]), ("b", ["<2>"])]
    # Where the model was loaded: contexts of a device, and many libraries, belong to a thread.
    assert model.threads["predict"] == {"main"}


@pytest.mark.parametrize("stage", ["prepare", "predict", "finish"])
def test_whatever_stage_raises_the_culprit_is_found_and_the_order_kept(model: Staged, child: Child, stage: str) -> None:
    model.on[stage, 3] = fails(ValueError("three"))
    for batch_id, inputs in (("a", [1, 2, 3, 4]), ("b", [5, 6]), ("c", [7])):
        child.send(batch_id, *inputs)
    answers = told(child.answers(3))
    assert [batch_id for batch_id, _ in answers] == ["a", "b", "c"]
    one, two, culprit, four = answers[0][1]
    assert (one, two, four) == ("<1>", "<2>", "<4>")
    assert isinstance(culprit, Failed)
    assert "three" in culprit.message
    assert answers[1:] == [("b", ["<5>", "<6>"]), ("c", ["<7>"])]


def test_prepare_is_never_in_two_threads_at_once(model: Staged, child: Child) -> None:
    """A batch whose call failed runs by itself while the next is prepared: either waits for the other."""
    inside: list[str] = []
    most: list[int] = []
    both = threading.Event()

    def prepare(inputs: list[Any], parameters: list[dict[str, Any]]) -> Any:
        inside.append(threading.current_thread().name)
        most.append(len(inside))
        if len(inside) > 1:
            both.set()
        elif inputs != ["bad", 1]:
            both.wait(0.2)
        inside.pop()
        return inputs

    model.prepare = prepare  # type: ignore[method-assign]
    model.on["predict", "bad"] = fails(ValueError("bad"))
    child.send("a", "bad", 1)
    child.send("b", 2)
    child.answers(2)
    assert max(most) == 1


def test_a_failed_finish_is_answered_though_no_other_batch_comes(model: Staged, child: Child) -> None:
    model.on["finish", 2] = fails(ValueError("two"))
    child.send("a", 1, 2)
    ((_, (one, two)),) = told(child.answers(1))
    assert one == "<1>"
    assert isinstance(two, Failed)


def test_prepare_refuses_an_item_and_predict_does_not_get_it(model: Staged, child: Child) -> None:
    child.send("a", 1, "refuse", 3)
    assert told(child.answers(1)) == [("a", ["<1>", Rejected("no"), "<3>"])]
    assert model.predicted == [[1, 3]]


@pytest.mark.parametrize("error", [TransientError("away"), device_fault()])
def test_a_refusal_of_prepare_outlives_an_error_of_the_call(model: Staged, error: BaseException) -> None:
    for value in (1, 3):
        model.on["predict", value] = fails(error)
    refused, *others = run(BatchComputer(model), b'"refuse"', b"1", b"3").outcomes
    assert refused == Rejected("no")
    assert all(isinstance(each, Failed) for each in others)


def test_the_only_one_that_prepare_left_is_the_culprit(model: Staged) -> None:
    model.on["predict", 2] = fails(ValueError("two"))
    done = run(BatchComputer(model), b'"refuse"', b"2", b'"refuse"')
    assert isinstance(done.outcomes[1], Failed)
    assert done.passes == 1


def test_nothing_is_predicted_where_prepare_refuses_all(model: Staged, child: Child) -> None:
    child.send("a", "refuse", "refuse")
    assert told(child.answers(1)) == [("a", [Rejected("no")] * 2)]
    assert model.predicted == []


def test_refused_items_leave_an_allowed_size(model: Staged) -> None:
    done = run(BatchComputer(model, shapes=Shapes((2, 8))), b"1", b'"refuse"', b"3", b"4")
    assert outputs(done) == [b'"<1>"', b'"<3>"', b'"<4>"']
    assert model.predicted == [[1, 3, 4, 4, 4, 4, 4, 4]]
    assert done.padding == 5


@pytest.mark.parametrize("second", [b'"refuse"', b"[2]"])
def test_padding_is_nobodys_item_where_predict_works_in_place(model: Staged, second: bytes) -> None:
    def predict(staged: list[list[int]], parameters: list[dict[str, Any]]) -> Any:
        for row, options in zip(staged, parameters, strict=True):
            row[0] += 1
            options["seen"] = options.get("seen", 0) + 1
        seen.append([options["seen"] for options in parameters])
        return staged

    seen: list[list[int]] = []
    model.predict = predict  # type: ignore[method-assign]
    done = run(BatchComputer(model, shapes=Shapes((4,))), b"[1]", second, b"[3]")
    assert seen == [[1, 1, 1, 1]]
    assert (outputs(done)[0], outputs(done)[-1]) == (b'"<[2]>"', b'"<[4]>"')


def test_a_wrong_number_from_finish_is_the_batchs_own_error(model: Staged, child: Child) -> None:
    model.finish = lambda raw: raw[1:]  # type: ignore[method-assign]
    child.send("a", 1, 2)
    ((_, values),) = told(child.answers(1))
    assert all(isinstance(each, Failed) and "1 outputs for 2 inputs" in each.message for each in values)


def test_nothing_is_prepared_beside_a_suspect(model: Staged, child: Child) -> None:
    """Both would be in question, if the process ended."""
    prepared = threading.Event()
    model.on["prepare", 2] = prepared.set
    seen = []
    model.on["finish", 1] = lambda: seen.append(prepared.wait(0.2))
    child.send("a", 1, suspect=True)
    child.send("b", 2)
    assert told(child.answers(2)) == [("a", ["<1>"]), ("b", ["<2>"])]
    assert seen == [False]


@pytest.mark.parametrize("stage", ["prepare", "predict", "finish"])
def test_a_device_that_fails_beside_another_batch_convicts_nobody(model: Staged, stage: str) -> None:
    child = Child(model, watched=True)
    model.on[stage, 1] = fails(device_fault())
    # The first of a new process, which would be convicted if no other batch could have been inside with it.
    child.send("a", 1)
    ((done, fault),) = child.answers(1)
    assert done is None
    assert fault is not None
    assert (fault.cause, fault.settled) == ("device", False), "one alone, but perhaps not the cause"
    child.end()


def test_a_suspect_whose_device_fails_is_convicted(model: Staged) -> None:
    child = Child(model, watched=True)
    model.on["finish", 1] = fails(device_fault())
    child.send("a", 1, suspect=True)
    ((done, fault),) = child.answers(1)
    assert done is not None
    assert isinstance(done.outcomes[0], Failed)
    assert fault is not None
    assert (fault.cause, fault.settled) == ("device", True)
    child.end()


def test_a_barren_batch_is_looked_into(model: Staged) -> None:
    child = Child(model, watched=True)
    child.send("a", 1)
    for value in (1, 2, 3):
        model.on["predict", value] = fails(ValueError("everything"))
    child.send("b", 2, 3)
    done, fault = child.answers(2)[1]
    assert done is None
    assert fault is not None
    assert fault.cause == "barren"
    child.end()


STAGE = st.sampled_from(["prepare", "predict", "finish"])
BATCHES = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(max_examples=25)
@given(BATCHES, st.dictionaries(st.integers(0, 12), STAGE, max_size=3), st.sets(st.integers(0, 7), max_size=2))
def test_batches_come_to_what_they_come_to_one_by_one(
    batches: list[list[int]], culprits: dict[int, str], suspects: set[int]
) -> None:
    def prepared() -> Staged:
        model = Staged()
        model.on = {(stage, value): fails(ValueError(f"{value}")) for value, stage in culprits.items()}
        return model

    child = Child(prepared())
    for n, inputs in enumerate(batches):
        child.send(str(n), *inputs, suspect=n in suspects)
    together = told(child.answers(len(batches)))
    child.end()
    alone = BatchComputer(prepared())
    for n, (batch_id, values) in enumerate(together):
        assert batch_id == str(n)
        expected = run(alone, *(b"%d" % each for each in batches[n])).outcomes
        assert [isinstance(each, Failed) for each in values] == [isinstance(each, Failed) for each in expected]
        assert [each for each in values if isinstance(each, str)] == [
            msgspec.json.decode(each.output) for each in expected if isinstance(each, Ok)
        ]


def test_the_end_of_the_pipe_ends_the_loop_after_the_last_answer(model: Staged) -> None:
    child = Child(model)
    child.send("a", 1)
    child.send("b", 2)
    child.end()
    assert [batch_id for batch_id, _ in told(child.told)] == ["a", "b"]


def test_an_answer_that_cannot_be_sent_ends_the_loop(model: Staged) -> None:
    ours, theirs = socket.socketpair()
    computer = BatchComputer(model)

    def send(done: Done | None, fault: Fault | None) -> None:
        raise BrokenPipeError

    with contextlib.closing(ours), contextlib.closing(theirs):
        ours.sendall(encode(work(b"1")))
        with pytest.raises(BrokenPipeError):
            Overlap(FrameReader(theirs, ToChild), computer, send).run()


def test_an_error_of_the_finish_thread_reaches_a_main_thread_that_has_the_next_batch(model: Staged) -> None:
    ours, theirs = socket.socketpair()
    failed = threading.Event()

    def send(done: Done | None, fault: Fault | None) -> None:
        failed.set()
        raise MemoryError

    model.on["predict", 2] = lambda: failed.wait(LONG_S) and None  # type: ignore[func-returns-value]
    ended: list[BaseException] = []

    def serve() -> None:
        try:
            Overlap(FrameReader(theirs, ToChild), BatchComputer(model), send).run()
        except MemoryError as error:
            ended.append(error)

    main = threading.Thread(target=serve, daemon=True)
    with contextlib.closing(ours), contextlib.closing(theirs):
        for batch_id, raw in (("a", b"1"), ("b", b"2")):
            ours.sendall(encode(Work(batch_id, [raw], [b"{}"])))
        main.start()
        main.join(LONG_S)
    assert ended, "it waits for an answer that nobody gives"
