"""The real executor: a child process per instance, watched by one thread from start to death and over again.

    feeder thread ────send────▶ socket ───▶ child: predict
    collector thread ◀─receive─ queue ◀──── supervisor thread ◀── socket, the child's death, the clock

The supervisor alone starts, reads, times and buries the child, one child at a time, so what it reports is in
order: every batch that was answered, then the death with what was inside. It sleeps in one `poll`, whose
timeout is exact without being woken for each batch: a batch handed over during the sleep cannot be overdue
before the sleep ends.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from batching.executor import Event, ExecutorGone, ExecutorState, Lost, Work
from config.settings import ModelSettings
from workers.frames import BrokenFrames, ItemError, NotReady, Passing, Ran, Ready, Run, encode
from workers.models import effective_version
from workers.outcomes import to_done
from workers.process import ChildProcess

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0
# A child that was told to end has nothing more to answer: only its own clean-up, for instance of CUDA.
_EXIT_GRACE_S = 2.0


@dataclass(slots=True, eq=False)
class _Handed:
    """A batch in the child's hands. `since` is when it came to the front: only that one is being computed."""

    batch_id: str
    size: int
    since: float


class ProcessExecutor:
    """`batching.executor.Executor` over child processes.

    Args:
        on_change: called without arguments after every change of state, from the supervisor's thread.
        folder: of bunch.toml; first on the model's path.
    """

    def __init__(
        self, model: ModelSettings, index: int, *, on_change: Callable[[], None] | None = None, folder: str = ""
    ) -> None:
        self.name = f"{model.name}/{index}"
        self._model = model
        self._on_change = on_change
        self._folder = folder
        self._state = ExecutorState.STARTING
        self._changed = threading.Condition()
        self._error: str | None = None
        self._version = ""
        self._loaded: ModelSettings | None = None
        # None unless a child is ready to take batches.
        self._child: ChildProcess | None = None
        self._pid: int | None = None
        self._handed: deque[_Handed] = deque()
        # Held while a frame is written. The supervisor takes it before it reports a death, so that by then
        # each batch has either been handed over whole or been taken back by its sender.
        self._sending = threading.Lock()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._backoff_s = FIRST_BACKOFF_S
        self._stop_at: float | None = None
        self._stop_pipe: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None
        self._starts = 0
        self.batches = 0
        self.busy_s = 0.0
        self.last_error: str | None = None

    @property
    def state(self) -> ExecutorState:
        return self._state

    @property
    def error(self) -> str | None:
        return self._error

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def restarts(self) -> int:
        """How often a child was started again, after deaths and after failed starts."""
        return max(0, self._starts - 1)

    @property
    def loaded(self) -> ModelSettings | None:
        """What the child was started from that is ready now; None while none is."""
        return self._loaded

    @property
    def version(self) -> str:
        return effective_version(self._model, self._version)

    def start(self) -> None:
        """As the port says. Starting again is a no-op; a stopped executor stays stopped."""
        with self._changed:
            if self._thread is not None or self._stop_at is not None:
                return
            self._stop_pipe = os.pipe()
            # The thread must outlive its children: they are killed when the thread that started them ends.
            self._thread = threading.Thread(target=self._supervise, name=f"executor {self.name}", daemon=True)
            self._thread.start()

    def wait_ready(self, timeout_s: float) -> bool:
        with self._changed:
            ready = (ExecutorState.READY, ExecutorState.STOPPED)
            self._changed.wait_for(lambda: self._state in ready, timeout_s)
            return self._state is ExecutorState.READY

    def send(self, work: Work) -> None:
        """Hand over a batch. Blocks only while the child is stopped, or its model lets no other thread of it run.

        Raises:
            ExecutorGone: as the port says.
        """
        frame = encode(Run(work.batch_id, list(work.inputs), list(work.parameters), work.safe_size))
        with self._sending:
            child = self._child
            if child is None:
                raise ExecutorGone(f"{self.name} is {self._state.value}")
            # Before the first byte: its answer may be there before `write` returns.
            handed = _Handed(work.batch_id, len(work.inputs), time.monotonic())
            self._handed.append(handed)
            try:
                child.write(frame)
            except OSError as error:
                self._handed.remove(handed)
                raise ExecutorGone(f"{self.name} died") from error

    def replace(self, model: ModelSettings) -> None:
        """Have the child finish what it has, and go on with one that is started from `model`. Returns at once."""
        with self._sending:
            self._model = model
            self._loaded = None
            self._backoff_s = FIRST_BACKOFF_S
            child, self._child = self._child, None
        if child is not None:
            child.close_input()

    def receive(self, timeout_s: float) -> Event | None:
        try:
            return self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None

    def stop(self, timeout_s: float) -> None:
        """As the port says; what was in the child's hands and is not done by then comes as a `Lost`."""
        with self._changed:
            if self._stop_at is None:
                self._stop_at = time.monotonic() + timeout_s
                if self._stop_pipe is not None:
                    os.write(self._stop_pipe[1], b"s")
            thread = self._thread
        if thread is None:
            self._become(ExecutorState.STOPPED)
        elif thread is not threading.current_thread():
            thread.join(timeout_s + _EXIT_GRACE_S)

    def _supervise(self) -> None:
        while self._stop_at is None:
            try:
                self._live()
            except OSError as error:
                self._start_failed(f"cannot start a process: {error}")
            except Exception:
                logger.exception("%s: supervisor", self.name)
            if self._stop_at is None:
                self._sleep(self._backoff_s)
                self._backoff_s = min(MAX_BACKOFF_S, self._backoff_s * 2)
        self._become(ExecutorState.STOPPED)
        with self._changed:
            reading, writing = self._stop_pipe or (-1, -1)
            self._stop_pipe = None
            os.close(reading)
            os.close(writing)

    def _sleep(self, delay_s: float) -> None:
        poll = select.poll()
        if self._stop_pipe is not None:
            poll.register(self._stop_pipe[0], select.POLLIN)
        poll.poll(_milliseconds(delay_s))

    def _live(self) -> None:
        """One child from its start to its death."""
        self._become(ExecutorState.STARTING)
        self._starts += 1
        model = self._model
        child = ChildProcess(model, self.name, self._folder)
        self._pid = child.pid
        try:
            # Replaced while it was starting: then the next one counts.
            if self._await_start(child) and model is self._model:
                self._serve(child, model)
        finally:
            self._pid = None
            child.bury()
            child.close()

    def _await_start(self, child: ChildProcess) -> bool:
        deadline = time.monotonic() + self._model.start_timeout_s
        poll = self._poll(child)
        while (left := deadline - time.monotonic()) > 0:
            poll.poll(_milliseconds(left))
            if self._stop_at is not None:
                return False
            # Before what it wrote is read, or a last word could fall between the two looks.
            gone = child.gone
            try:
                for message in child.messages():
                    if isinstance(message, Ready):
                        self._version = message.version
                        return True
                    if isinstance(message, NotReady):
                        self._start_failed(message.error)
                        return False
            except BrokenFrames as error:
                self._start_failed(f"the model wrote into the executor's pipe: {error}")
                return False
            if gone or child.gone:
                child.wait(_EXIT_GRACE_S)
                self._start_failed(f"the process {child.bury()} while the model was loading")
                return False
        self._start_failed(
            f"not ready after {self._model.start_timeout_ms} ms; raise start_timeout_ms if it needs longer"
        )
        return False

    def _start_failed(self, error: str) -> None:
        self._error = error
        self.last_error = error
        logger.error("%s: start failed, again in %.1f s: %s", self.name, self._backoff_s, error)
        self._become(ExecutorState.FAILED)

    def _serve(self, child: ChildProcess, model: ModelSettings) -> None:
        """From ready to death. Whatever ends this, no batch is left without an event."""
        self._error = None
        with self._sending:
            if model is not self._model:
                return
            self._child = child
            self._loaded = model
        self._become(ExecutorState.READY)
        reason = "the executor's supervisor failed"
        try:
            reason = self._answer_until_gone(child)
        finally:
            self._report_death(child, reason)

    def _answer_until_gone(self, child: ChildProcess) -> str:
        """Pass on answers until the child is gone or must go; the reason."""
        poll = self._poll(child)
        stopping = False
        while True:
            poll.poll(_milliseconds(self._time_left(stopping)))
            gone = child.gone
            try:
                for message in child.messages():
                    self._answered(message)
            except BrokenFrames as error:
                return f"the model wrote into the executor's pipe: {error}"
            if gone or child.gone:
                return self._cause_of_death(child)
            now = time.monotonic()
            if self._overdue(now):
                return f"timeout: a batch computed for more than {self._model.timeout_ms} ms"
            if self._stop_at is not None:
                if now >= self._stop_at:
                    return "the executor was stopped"
                if not stopping:
                    stopping = True
                    poll = self._poll(child, stop=False)
                    self._child = None
                    child.close_input()

    def _cause_of_death(self, child: ChildProcess) -> str:
        # The pipe ends a moment before the process does, and longer when it has things to clean up.
        grace_s = _EXIT_GRACE_S if self._stop_at is None else self._stop_at - time.monotonic()
        if child.wait(min(_EXIT_GRACE_S, grace_s)):
            return f"the process {child.bury()}"
        child.bury()
        return "the process closed its pipe"

    def _report_death(self, child: ChildProcess, reason: str) -> None:
        replaced = self._stop_at is None and self._child is None
        self._child = None
        self._loaded = None
        # First of all: whoever hears of the death and then waits for READY must wait for the next child.
        if self._stop_at is None:
            self._become(ExecutorState.STARTING)
        child.kill()
        with self._sending:
            # What it finished between the last look and its death still counts.
            with contextlib.suppress(BrokenFrames):
                for message in child.messages():
                    self._answered(message)
            left = [handed.batch_id for handed in self._handed]
            self._handed.clear()
        if replaced and not left:
            logger.info("%s: replaced; %s", self.name, reason)
        elif left or self._stop_at is None:
            self.last_error = reason
            logger.error("%s: lost with %d batches in hand: %s", self.name, len(left), reason)
            self._events.put(Lost(left[0] if left else None, tuple(left[1:]), reason))

    def _answered(self, message: Ready | NotReady | Passing | Ran) -> None:
        """One batch is done, or is gone through in parts.

        Raises:
            BrokenFrames: it is not the one whose turn it was, or has not one outcome per input.
        """
        if isinstance(message, Passing) and self._handed:
            self._handed[0].since = time.monotonic()
            return
        if not isinstance(message, Ran) or not self._handed:
            raise BrokenFrames(f"unexpected {type(message).__name__}")
        handed = self._handed[0]
        if message.batch_id != handed.batch_id or len(message.outcomes) != handed.size:
            raise BrokenFrames(f"an answer to {message.batch_id} where {handed.batch_id} was due")
        self._handed.popleft()
        if self._handed:
            self._handed[0].since = time.monotonic()
        self.batches += 1
        self.busy_s += message.compute_s
        failures = [each for each in message.outcomes if isinstance(each, ItemError) and not each.rejected]
        if len(failures) < len(message.outcomes):
            self._backoff_s = FIRST_BACKOFF_S
        if failures:
            self.last_error = failures[0].message
            cause = failures[0].traceback or failures[0].message
            # One traceback a batch: when everything fails, the log must not be the next thing to break.
            extra = {"batch_id": message.batch_id, "model": self._model.name}
            logger.error("%s: %d of a batch failed: %s", self.name, len(failures), cause, extra=extra)
        self._events.put(to_done(message))

    def _time_left(self, stopping: bool) -> float:
        """Until the front batch is overdue, or the stop is; idle, what any batch has (see the module)."""
        now = time.monotonic()
        timeout_s = self._model.timeout_s
        with contextlib.suppress(IndexError):
            timeout_s += self._handed[0].since - now
        if stopping and self._stop_at is not None:
            timeout_s = min(timeout_s, self._stop_at - now)
        return timeout_s

    def _overdue(self, now: float) -> bool:
        try:
            return now - self._handed[0].since >= self._model.timeout_s
        except IndexError:
            return False

    def _poll(self, child: ChildProcess, *, stop: bool = True) -> select.poll:
        poll = select.poll()
        child.watch(poll)
        if stop and self._stop_pipe is not None:
            poll.register(self._stop_pipe[0], select.POLLIN)
        return poll

    def _become(self, state: ExecutorState) -> None:
        with self._changed:
            if self._state is state:
                return
            self._state = state
            self._changed.notify_all()
        if self._on_change is not None:
            try:
                self._on_change()
            except Exception:
                logger.exception("%s: on_change", self.name)


def _milliseconds(seconds: float) -> int:
    """For `poll`: rounded up, as waking just before the time means spinning until it; and within a C int."""
    return math.ceil(min(max(0.0, seconds), 3600.0) * 1000)
