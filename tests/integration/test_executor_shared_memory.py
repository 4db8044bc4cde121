"""Large inputs and outputs with real child processes: what is used, and what is left of it after any death."""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import signal
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batching.executor import Cause, ExecutorState
from batching.request import Done, Ok, Work
from tests.integration import executors
from tests.integration.executors import LONG_S, Start, lost, run, work
from tests.waiting import wait_until
from workers.executor.ipc import LARGE_BYTES
from workers.executor.process_executor import ProcessExecutor

# Fixtures.
build, start = executors.build, executors.start

LARGE = "x" * (2 * LARGE_BYTES)


def segments(pid: int | str) -> int:
    """The number of descriptors of segments in a process."""
    gc.collect()
    return sum("bunch-batch" in _target(each) for each in Path(f"/proc/{pid}/fd").iterdir())


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""


def numbers(executor: ProcessExecutor) -> int:
    """How many segments its batches have needed."""
    assert executor._child is not None
    return executor._child._writer._segments._numbers


def test_large_inputs_and_outputs_travel_in_memory_that_is_used_again(start: Start) -> None:
    executor = start()
    for n in range(5):
        assert run(executor, LARGE + str(n), "small", n) == [LARGE + str(n), "small", n]
    assert numbers(executor) == 1
    # Its own, and that of the child's outputs.
    assert segments("self") == 2


@pytest.mark.parametrize("how", ["killed", "exits", "hangs", "replaced", "condemned"])
def test_nothing_is_left_of_a_child_however_it_ends(start: Start, tmp_path: Path, how: str) -> None:
    # Longer than it takes to send the second batch.
    executor = start(timeout_ms=2500 if how == "hangs" else 60_000)
    assert run(executor, LARGE) == [LARGE]
    before, pid = segments("self"), executor.pid
    assert before == 2
    if how == "replaced":
        executor.replace(executor._model)
    elif how == "condemned":
        executor.condemn("it is told to")
    elif how == "exits":
        executor.send(work("a", LARGE, {"do": "exit", "status": 1}))
    else:
        executor.send(work("a", LARGE, {"do": "hold", "path": str(tmp_path / "never")}))
        wait_until((tmp_path / "never.begun").exists)
        # Sent and not looked at: the descriptor may be on its way.
        executor.send(work("b", LARGE, LARGE))
        if how == "killed":
            os.kill(pid or 0, signal.SIGKILL)
    if how != "replaced":
        causes = {"hangs": Cause.TIMEOUT, "condemned": Cause.DEVICE}
        assert lost(executor).cause is causes.get(how, Cause.EXIT)
    wait_until(lambda: executor.pid not in {None, pid} and executor.state is ExecutorState.READY)
    wait_until(lambda: segments("self") == 0)
    assert run(executor, LARGE) == [LARGE]


def test_a_process_that_runs_out_of_descriptors_is_replaced_and_loses_no_batch(start: Start) -> None:
    executor = start("tests.fakes.models:Hoarder")
    assert run(executor, "take all descriptors") == [0]
    executor.send(work("a", LARGE))
    event = lost(executor)
    assert event.inside == "a"
    assert executor.wait_ready(LONG_S)
    assert run(executor, LARGE) == [len(LARGE)]


def test_a_worker_without_descriptors_goes_on_with_the_socket(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    executor = start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    held: list[Any] = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    try:
        executor.send(work("a", LARGE))
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(executor.receive(LONG_S), Done)
    assert "goes through the socket" in caplog.text


def test_a_model_may_run_a_large_batch_in_parts(start: Start) -> None:
    """The halves see the inputs as they came, whatever the whole has done to them."""
    executor = start()
    good, bad, other = run(executor, [LARGE], {"do": "raise", "text": LARGE}, [LARGE])
    assert (good, other) == ([LARGE], [LARGE])
    assert not isinstance(bad, str)


def test_programs_that_a_model_starts_inherit_no_segment(start: Start) -> None:
    executor = start()
    assert run(executor, LARGE) == [LARGE]
    pid = executor.pid
    assert pid
    for each in Path(f"/proc/{pid}/fd").iterdir():
        if "bunch-batch" in _target(each):
            flags = int(Path(f"/proc/{pid}/fdinfo/{each.name}").read_text().split("flags:\t")[1].split()[0], 8)
            assert flags & os.O_CLOEXEC


def raw_work(*inputs: bytes) -> Work:
    """A batch of inputs that are bytes themselves."""
    return Work("raw", list(inputs), [b"{}"] * len(inputs), raw=list(range(len(inputs))))


def answers(executor: ProcessExecutor, work: Work) -> list[Any]:
    executor.send(work)
    done = executor.receive(LONG_S)
    assert isinstance(done, Done), done
    return [json.loads(each.output) if isinstance(each, Ok) else each for each in done.outcomes]


def digests(*values: bytes) -> list[str]:
    return [sha256(each).hexdigest() for each in values]


BIG = [bytes([n]) * (2 * LARGE_BYTES) for n in range(3)]


def test_bytes_are_bytes_however_large_they_are(start: Start) -> None:
    executor = start("tests.byte_models:Described", input_type="bytes")
    big, small = answers(executor, raw_work(BIG[1], b"small"))
    assert (big["type"], big["sha256"]) == ("bytes", digests(BIG[1])[0])
    assert (small["type"], small["sha256"]) == ("bytes", digests(b"small")[0])


def test_a_model_that_accepts_views_may_keep_them(start: Start) -> None:
    executor = start("tests.byte_models:Views", input_type="bytes")
    for n, value in enumerate(BIG):
        (told,) = answers(executor, raw_work(value))
        # Views of the memory that the worker has written to, which no later batch changes.
        assert told == {"type": "memoryview", "sha256": digests(*BIG[: n + 1]), "readonly": True, "address": 0}
    (small,) = answers(executor, raw_work(b"small"))
    assert (small["type"], small["readonly"]) == ("memoryview", True)


@pytest.mark.parametrize("size", [10, 300_000])
def test_an_array_may_be_changed_and_the_batch_still_run_in_parts(start: Start, size: int) -> None:
    executor = start("tests.byte_models:Halves", input_type="npy")
    arrays = [npy(np.full(size, n, np.uint8)) for n in (1, 2)]
    assert answers(executor, raw_work(*arrays)) == [size, 2 * size]


def test_arrays_and_tables_are_made_where_the_bytes_are(start: Start) -> None:
    executor = start("tests.byte_models:Views", input_type="npy")
    value = np.arange(100_000, dtype=np.uint32)
    (told,) = answers(executor, raw_work(npy(value)))
    # Behind numpy's header, in a page of the segment.
    assert told == {"type": "ndarray", "sha256": digests(value.tobytes()), "readonly": True, "address": 128}
    executor = start("tests.byte_models:Tables", input_type="arrow")
    table = pa.table({"a": list(range(50_000))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    (told,) = answers(executor, raw_work(sink.getvalue().to_pybytes()))
    assert told["columns"] == {"a": list(range(50_000))}


def test_views_are_for_inputs_that_are_bytes(build: Start) -> None:
    executor = build("tests.byte_models:Views")
    executor.start()
    wait_until(lambda: executor.state is ExecutorState.FAILED)
    assert "accepts_views" in str(executor.error)


def npy(value: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, value)
    return file.getvalue()
