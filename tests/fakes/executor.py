"""The executor port without a process: predicts in a thread of this one."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from batching.executor import Cause, Event, ExecutorGone, ExecutorState, Lost
from batching.request import Work
from workers.executor.compute import BatchComputer

Predict = Callable[[list[Any], list[dict[str, Any]]], list[Any]]


class _Function:
    def __init__(self, predict: Predict) -> None:
        self.predict = predict

    def load(self, device: str) -> None:
        pass


class InlineExecutor:
    """`batching.executor.Executor` around a predict function.

    Args:
        load: called at every start until it does not raise, with short pauses.
    """

    def __init__(self, predict: Predict, *, name: str = "inline/0", load: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._predict = predict
        self._computer = BatchComputer(_Function(predict), watched=True)
        self._load = load
        self._state = ExecutorState.STARTING
        self._error: str | None = None
        self._changed = threading.Condition()
        self._work: deque[Work] = deque()
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        # A thread cannot be killed: one of an earlier generation is ignored.
        self._generation = 0
        self._started = False

    @property
    def state(self) -> ExecutorState:
        return self._state

    @property
    def error(self) -> str | None:
        return self._error

    def start(self) -> None:
        with self._changed:
            if not self._started and self._state is not ExecutorState.STOPPED:
                self._started = True
                self._spawn()

    def wait_ready(self, timeout_s: float) -> bool:
        with self._changed:
            ends = (ExecutorState.READY, ExecutorState.STOPPED)
            self._changed.wait_for(lambda: self._state in ends, timeout_s)
            return self._state is ExecutorState.READY

    def send(self, work: Work) -> None:
        with self._changed:
            if self._state is not ExecutorState.READY:
                raise ExecutorGone(f"{self.name} is {self._state.value}")
            self._work.append(work)
            self._changed.notify_all()

    def receive(self, timeout_s: float) -> Event | None:
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def interrupt(self) -> None:
        self._events.put(None)

    def kill(self, reason: str = "killed by a test") -> None:
        """Die now, whatever is inside, and start again."""
        with self._changed:
            self._die(reason)
            self._spawn()

    def stop(self, timeout_s: float) -> None:
        with self._changed:
            if self._state is ExecutorState.STOPPED:
                return
            self._become(ExecutorState.STOPPED)
            self._changed.wait_for(lambda: not self._work, timeout_s)
            if self._work:
                self._die("the executor was stopped")
            self._generation += 1
            self._changed.notify_all()

    def _spawn(self) -> None:
        self._generation += 1
        self._become(ExecutorState.STARTING)
        threading.Thread(target=self._run, args=(self._generation,), daemon=True).start()

    def _die(self, reason: str, cause: Cause = Cause.EXIT, *, answered: bool = False) -> None:
        self._generation += 1
        ids = [work.batch_id for work in self._work]
        inside = ids.pop(0) if ids and not answered else None
        self._work.clear()
        self._events.put(Lost(inside, tuple(ids), reason, cause))
        self._changed.notify_all()

    def _become(self, state: ExecutorState) -> None:
        self._state = state
        self._changed.notify_all()

    def _run(self, generation: int) -> None:
        while not self._loaded(generation):
            time.sleep(0.02)
            if generation != self._generation:
                return
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work or generation != self._generation)
                if generation != self._generation:
                    return
                work = self._work[0]
            done, fault = self._computer.compute(self._computer.decode(work))
            with self._changed:
                if generation != self._generation:
                    return
                if done is not None:
                    self._work.popleft()
                    self._events.put(done)
                    self._changed.notify_all()
                if fault is not None:
                    self._die(fault.reason, Cause(fault.cause), answered=fault.settled or not fault.reached)
                    # A new process knows nothing about the last one.
                    self._computer = BatchComputer(_Function(self._predict), watched=True)
                    self._spawn()
                    return

    def _loaded(self, generation: int) -> bool:
        error = None
        try:
            self._load()
        except Exception as raised:  # noqa: BLE001
            error = f"{type(raised).__name__}: {raised}"
        with self._changed:
            if generation == self._generation and self._state is not ExecutorState.STOPPED:
                self._error = error
                self._become(ExecutorState.FAILED if error else ExecutorState.READY)
        return error is None
