"""The real executor: a child process per instance, supervised by one thread from start to death, again and again.

    feeder thread ────send────▶ socket ───▶ child: predict
    collector thread ◀─receive─ socket ◀────┘
                             ▲─ events ◀─── supervisor thread ◀── the child's death, the clock

Only the supervisor starts, times and buries the child, one at a time, and it reads what is left before it judges. So
events are in order: every batch that was answered, then the death with the batch inside. It sleeps in one `poll`: what
is sent meanwhile is overdue only after the sleep, and a limit that becomes shorter wakes it, so timeouts are exact.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import threading
import time
from collections.abc import Callable

from msgspec import structs

from batching.executor import Cause, Event, ExecutorGone, ExecutorState
from batching.request import Done, Failed, Work
from config.logging import encodable
from config.process.devices import Machine, Placement, placement, this_machine
from config.settings import Devices, ModelSettings
from workers.executor.answers import Answers, Wake
from workers.executor.faults.recovery import FAULTS, Patience
from workers.executor.in_flight import InFlight
from workers.executor.ipc import BrokenFrames, Fault, Passing, ToParent
from workers.executor.listener import guarded
from workers.executor.process import EXIT_GRACE_S, ChildProcess, Death, StartFailed, milliseconds
from workers.executor.spare import Spare
from workers.executor.time_limit import TimeLimit
from workers.models import effective_version

logger = logging.getLogger(__name__)

_READY = ExecutorState.READY
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 10.0
_LOOK_FOR_RELOAD_S = 0.5


class ProcessExecutor:
    """`batching.executor.Executor` over child processes.

    Args:
        folder: the folder of bunch.toml, first on the model's path.
        devices: those of the pool, for a model that names none.
        max_output_bytes: limit of one output as JSON; 0: any size.
        on_change: called after every change of state, by any thread; the others by the supervisor's.
        on_loaded: called with the seconds that each successful start took.
        on_replaced: called with the cause when a child that had been ready is gone, and another is to follow.
    """

    def __init__(
        self,
        model: ModelSettings,
        index: int,
        *,
        folder: str = "",
        devices: Devices = None,
        max_output_bytes: int = 0,
        on_change: Callable[[], None] | None = None,
        on_loaded: Callable[[float], None] | None = None,
        on_replaced: Callable[[Cause], None] | None = None,
        machine: Callable[[], Machine] = this_machine,
    ) -> None:
        self.name = f"{model.name}/{index}"
        self._model, self._index, self._devices, self._machine = model, index, devices, machine
        self._folder, self._max_output_bytes = folder, max_output_bytes
        self._on_change = guarded(on_change, self.name)
        self._on_loaded, self._on_replaced = guarded(on_loaded, self.name), guarded(on_replaced, self.name)
        self._state = ExecutorState.STARTING
        self._changed = threading.Condition()
        self._error: str | None = None
        self._hopeless: ModelSettings | None = None
        self._loaded: ModelSettings | None = None
        self._child: ChildProcess | None = None  # None unless it is ready to take batches.
        self.pid: int | None = None
        self._handed = InFlight(TimeLimit.of(model))
        # Held while a frame is written. The supervisor takes it before it reports a death, so that by then each batch
        # has either been sent as a whole or been taken back by its sender.
        self._sending = threading.Lock()
        self.spare = Spare(self.name, self._start, self._on_loaded)
        self._supervisor = Wake()
        self._answers = Answers(self._answered, self._supervisor.set)
        self._looks_at = -math.inf  # When the supervisor looks again, at the latest.
        self._backoff_s = FIRST_BACKOFF_S
        self._patience = Patience()
        # The reason why the child must be replaced, if any.
        self._fault: Fault | None = None
        self._stop_at: float | None = None
        self._stop = Wake()
        self._thread: threading.Thread | None = None
        self.overlaps = False  # True if stages of its model run beside those of other batches.
        self._version, self.starts, self.batches, self.busy_s = "", 0, 0, 0.0
        # False while it shall have no process (`workers.executor.on_demand`).
        self._wanted = True

    @property
    def state(self) -> ExecutorState:
        return self._state

    @property
    def error(self) -> str | None:
        """The error of the last start; while a child is being replaced, the reason."""
        return self._error

    @property
    def placement(self) -> Placement:
        return placement(self._model, self._devices, self._index, self._machine())

    @property
    def restarts(self) -> int:
        """The number of restarts, after deaths and after failed starts."""
        return max(0, self.starts - 1)

    @property
    def loaded(self) -> ModelSettings | None:
        """The settings of the child that is ready now; None while none is."""
        return self._loaded

    @property
    def version(self) -> str:
        return effective_version(self._model, self._version)

    def start(self) -> None:
        """Start the supervisor. Starting again is a no-op; a stopped executor stays stopped."""
        with self._changed:
            if self._thread is not None or self._stop_at is not None:
                return
            # The thread must outlive its children: they are killed when the thread that started them ends.
            self._thread = threading.Thread(target=self._supervise, name=f"executor {self.name}", daemon=True)
            self._thread.start()

    def wait_ready(self, timeout_s: float) -> bool:
        # Nearly always, and asked before each claim: access to an enum's member costs a call, a set of them its hashes.
        if self._state is not _READY:
            with self._changed:
                self._changed.wait_for(lambda: self._state is _READY or self._state is ExecutorState.STOPPED, timeout_s)
        return self._state is _READY

    def send(self, work: Work) -> None:
        """Send a batch. Blocks while the child does not read and the buffer is full: it is stopped, its model lets no
        other thread run, or a batch takes unexpectedly long.

        Raises:
            ExecutorGone: no living child could take it.
        """
        traced = work.traceparents if self._model.is_remote else []  # No other model continues a trace.
        work = structs.replace(work, traceparents=traced, may_end=self._patience.grants(time.monotonic()))
        with self._sending:
            child = self._child
            if child is None:
                raise ExecutorGone(f"{self.name} is {self._state.value}")
            frame = child.pack(work)
            # Before the first byte: the answer may arrive before `write` returns.
            shares = self.overlaps and not work.suspect
            self._handed.give(work.batch_id, len(work.inputs), time.monotonic(), shares=shares)
            try:
                child.write(frame)
            except OSError as error:
                self._handed.take_back(work.batch_id)
                raise ExecutorGone(f"{self.name} died") from error

    def replace(self, model: ModelSettings) -> None:
        """Let the child finish its batches, and replace it by one for `model`. Returns at once."""
        with self._sending:
            self._model = model
            self._handed.limit = TimeLimit.of(model)
            self._loaded = None
            self._backoff_s = FIRST_BACKOFF_S
            self._patience = Patience()
            child, self._child = self._child, None
        if child is not None:
            child.close_input()
        # Whoever waits for the new model must not take the error of the old one for its own.
        self._become(ExecutorState.STARTING, instead_of=ExecutorState.FAILED)

    def condemn(self, reason: str) -> None:
        """Replace a ready child at once, as if it had found its device broken itself."""
        with self._sending:
            if self._child is not None:
                self._fault = Fault(Cause.DEVICE.value, reason)
                self._child.kill()

    def receive(self, timeout_s: float) -> Event | None:
        return self._answers.receive(timeout_s)

    def interrupt(self) -> None:
        self._answers.interrupt()

    def stop(self, timeout_s: float) -> None:
        """Stop; batches that the child has not finished by then are reported as `Lost`."""
        with self._changed:
            if self._stop_at is None:
                self._stop_at = time.monotonic() + timeout_s
                self._stop.set()
            thread = self._thread
        if thread is None:
            self._become(ExecutorState.STOPPED)
        elif thread is not threading.current_thread():
            thread.join(timeout_s + EXIT_GRACE_S)

    def _supervise(self) -> None:
        while self._stop_at is None:
            try:
                self._live()
            except OSError as error:
                self._start_failed(f"cannot start a process: {error}")
            except Exception:
                logger.exception("%s: supervisor", self.name)
            # A source that leads to no model is not tried again until it changes or is reloaded.
            while self._stop_at is None and self._wanted and self._hopeless is self._model:
                self._poll().poll(milliseconds(_LOOK_FOR_RELOAD_S))
            if self._stop_at is None and self._wanted and self._hopeless is None and self.spare.pid is None:
                self._poll().poll(milliseconds(self._backoff_s))
                self._backoff_s = min(MAX_BACKOFF_S, self._backoff_s * 2)
        self.spare.close()
        self._become(ExecutorState.STOPPED)

    def _live(self) -> None:
        """One child from its start to its death."""
        self._become(ExecutorState.STARTING)
        self.starts += 1
        self._hopeless = None
        model = self._model
        child = self.spare.take(model) or self._start(model)
        loaded = child.loaded
        self.pid = child.pid
        try:
            ready = child.await_ready(model.start_timeout_s, self._stop.fileno())
            # It was replaced while it was starting: then the next child counts.
            if ready is not None and model is self._model:
                self._version, self.overlaps = ready.version, ready.overlaps
                if not loaded:
                    self._on_loaded(time.monotonic() - child.started_at)
                self._serve(child, model)
        except StartFailed as error:
            if model is self._model:
                self._hopeless = model if error.final else None
                self._start_failed(error.why)
        finally:
            self.pid = None
            child.bury()
            child.close()

    def _start(self, model: ModelSettings) -> ChildProcess:
        return ChildProcess(model, self.name, self.placement, self._folder, self._max_output_bytes)

    def _start_failed(self, error: str) -> None:
        error = encodable(error)
        again = "next try when the model is reloaded" if self._hopeless else f"next try in {self._backoff_s:.1f} s"
        again = again if self._wanted else "next try when requests wait for it, after a pause"
        # Logged once; the state keeps showing it.
        level = logging.DEBUG if error == self._error else logging.ERROR
        logger.log(level, "%s: the executor did not start; %s: %s", self.name, again, error.rstrip())
        self._error = error
        self._become(ExecutorState.FAILED)

    def _serve(self, child: ChildProcess, model: ModelSettings) -> None:
        """Serve from ready to death. However it ends, no batch is left without an event."""
        self._error = self._fault = None
        with self._sending:
            if model is not self._model or not self._wanted:
                return
            self._child, self._loaded = child, model
        self._answers.serve(child)
        self._become(ExecutorState.READY)
        death = Death(Cause.EXIT, "the thread that supervises the executor failed; the executor is started again")
        try:
            death = self._answer_until_gone(child)
        finally:
            self._report_death(child, death)

    def _answer_until_gone(self, child: ChildProcess) -> Death:
        """Wait until the child is gone or must be killed; returns the death."""
        poll, stopping = self._poll(child), False
        while True:
            if self._stop_at is None and self.spare.tend(self._model):
                poll = self._poll(child)
            self._looks_at = math.inf  # A limit that becomes shorter from here on wakes this thread.
            left_s = self._time_left(stopping)
            self._looks_at = time.monotonic() + left_s
            poll.poll(milliseconds(left_s))
            self._supervisor.clear()
            if (death := self._judged(child, now := time.monotonic())) is not None:
                return death
            if self._stop_at is not None:
                if now >= self._stop_at:
                    return Death(Cause.EXIT, "the executor was stopped")
                if not stopping:
                    stopping = True
                    # Nobody looks after it any more, and others want its memory.
                    self.spare.close()
                    poll = self._poll(child, stop=False)
                    self._child = None
                    child.close_input()

    def _judged(self, child: ChildProcess, now: float) -> Death | None:
        """The child's death, if it is gone or must be killed."""
        with self._answers.reading:
            gone = child.gone
            if self._answers.read_all() and self._handed:
                self._handed.touch(now)  # The child writes a large answer on only as it is read.
            if self._answers.broken is not None:
                return Death(Cause.EXIT, f"the model wrote into the executor's pipe: {self._answers.broken}")
            if self._fault is not None:
                return Death(cause := Cause(self._fault.cause), FAULTS[cause])
            if not (gone or child.gone):
                return Death(Cause.TIMEOUT, self._handed.overdue()) if self._handed.left(now) <= 0 else None
        return child.ended(EXIT_GRACE_S if self._stop_at is None else self._stop_at - time.monotonic())

    def _report_death(self, child: ChildProcess, death: Death) -> None:
        replaced = self._stop_at is None and self._child is None
        self._child = self._loaded = None
        self._answers.leave()
        # First, because a thread that gets the death and then waits for READY must wait for the next child.
        if self._stop_at is None:
            self._error = None if replaced else death.reason
            self._become(ExecutorState.STARTING)
        child.kill()
        with self._sending:
            # Batches that it finished between the last look and its death still count.
            with contextlib.suppress(BrokenFrames):
                for message in child.messages():
                    self._answered(message)
            self._answers.wake()
            # One that is killed for its time is the front batch alone.
            both = self._handed.overlap and self._stop_at is None and death.cause is not Cause.TIMEOUT
            left = self._handed.drop_all()
        fault, told = self._fault, death.reason
        if fault is not None:
            self._patience = self._patience.replaced(time.monotonic())
            # In the model's own text, which is for operators only.
            told = f"{told}: {fault.reason}"
        if self._stop_at is None and self._wanted:
            self._on_replaced(Cause.RELOAD if replaced else death.cause)
        if replaced and not left:
            logger.info("%s: %s; %s", self.name, "replaced" if self._wanted else "unloaded", told)
        elif left or self._stop_at is None:
            logger.error("%s: the executor ended with %d batches in hand: %s", self.name, len(left), told)
            self._answers.put(death.lost(left, reached=fault is None or fault.is_inside, overlap=both))

    def _answered(self, message: ToParent) -> None:
        """A batch is done or runs in parts, or the child must be replaced.

        Raises:
            BrokenFrames: it is not the front batch, or does not have one outcome per input.
        """
        now = time.monotonic()
        if isinstance(message, Done) and self._handed:
            self._handed.done(message, now)
            if now + self._handed.left(now) < self._looks_at:
                self._supervisor.set()
            self.batches += 1
            self.busy_s += message.compute_s
            if set(map(type, message.outcomes)) - {Failed}:
                self._backoff_s = FIRST_BACKOFF_S
                self._patience = Patience()
            self._answers.add(message)
        elif isinstance(message, Passing) and self._handed:
            self._handed.touch(now)
        elif isinstance(message, Fault):
            # Its batches are given back.
            self._fault = message
            self._supervisor.set()
        else:
            raise BrokenFrames(f"unexpected {type(message).__name__}")

    def _time_left(self, stopping: bool) -> float:
        """The time until the front batch or the stop is overdue; idle, the limit of any batch (see the module)."""
        left_s = self._handed.left(now := time.monotonic())
        return min(left_s, self._stop_at - now if stopping and self._stop_at is not None else self.spare.wait_s())

    def _poll(self, child: ChildProcess | None = None, *, stop: bool = True) -> select.poll:
        poll = select.poll()
        if child is not None:
            poll.register(self._supervisor, select.POLLIN)
            child.watch_death(poll)
            self.spare.watch(poll)
        if stop:
            poll.register(self._stop, select.POLLIN)
        return poll

    def _become(self, state: ExecutorState, *, instead_of: ExecutorState | None = None) -> None:
        with self._changed:
            if self._state is state or instead_of not in {None, self._state}:
                return
            self._state = state
            self._changed.notify_all()
        self._on_change()
