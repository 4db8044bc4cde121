"""The executor's child process: loads one model and answers batches until its pipe ends.

It is started by `workers.executor.process.ChildProcess`, never by hand. Standard output and error are the worker's own,
for the model's prints; the protocol has a socket of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import logging.config
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from batching.request import Done
from config.logging import log_to_stderr
from config.model_files.import_path import make_way
from config.process.memory import keep_freed_memory, limit_memory, offer_to_the_oom_killer
from config.settings import ModelSettings
from workers.executor.batch_budget import Budget
from workers.executor.batches import Batches
from workers.executor.compute import BatchComputer
from workers.executor.device_memory import limit_device_memory
from workers.executor.faults.exception_text import format_traceback
from workers.executor.forked import end_if_forked, keep_apart
from workers.executor.input_types import reader_of
from workers.executor.ipc import (
    Fault,
    FrameReader,
    FrameWriter,
    NotReady,
    Passing,
    Ready,
    Start,
    ToChild,
    encode,
)
from workers.executor.overlap import Overlap
from workers.executor.shapes import Shapes
from workers.executor.shared_bytes import MappedSegments
from workers.executor.stdout import make_stdout_tell
from workers.models import LoadError, loader_of
from workers.models.function import FunctionModel

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
# For programs that watch processes from outside; the worker has been told the reason.
_FAULTY = 70


def main(descriptor: int) -> None:
    """Serve on the socket with this descriptor; returns when the parent has closed its side."""
    # The parent ended before the answer, so nobody is left to be told.
    with socket.socket(fileno=descriptor) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _serve(sock)


def _serve(sock: socket.socket) -> None:
    # Inherited across exec on purpose, once. A process that the model starts must not keep our pipe open.
    sock.set_inheritable(False)
    faulthandler.enable()
    keep_apart(sock, _leave_signals_to_the_parent())
    reader, writer = FrameReader(sock, ToChild, MappedSegments()), FrameWriter(sock)
    start = reader.next()
    if not isinstance(start, Start):
        return
    _die_with(start.parent_pid)
    offer_to_the_oom_killer()
    sys.argv = [start.name]
    _configure_output(start)
    try:
        computer, version = _load(start, lambda: sock.sendall(encode(Passing())))
    except BaseException as error:  # noqa: BLE001  (whatever stops a model from loading is to be told)
        end_if_forked(error)
        final = isinstance(error, LoadError)
        sock.sendall(encode(NotReady(str(error) if final else format_traceback(error), final)))
        return
    end_if_forked()
    # Objects made by loading stay until the end: the collector must not walk them in the middle of a batch.
    gc.collect()
    gc.freeze()
    sock.sendall(encode(Ready(version, computer.overlaps)))

    def send(done: Done | None, fault: Fault | None) -> None:
        data, lent = writer.pack(done) if done else (bytearray(), None)
        if fault is not None:
            data += encode(fault)
        writer.send((data, lent))
        if fault is not None:
            # Without the clean-up of a library whose device has failed: that may hang.
            logging.shutdown()
            os._exit(_FAULTY)

    if computer.overlaps:
        Overlap(reader, computer, send).run()
        return
    batches = Batches(reader, computer.decode)
    while (batch := batches.next()) is not None:
        with batches.computing():
            told = computer.compute(batch)
        # Its inputs' memory is given back before the worker hears of it, and writes the next ones there.
        del batch
        send(*told)


def _load(start: Start, on_pass: Callable[[], None]) -> tuple[BatchComputer, str]:
    limit_memory(start.model.max_memory_bytes)
    if start.model.takes_bytes and not start.model.max_memory_bytes:
        keep_freed_memory()
    load = loader_of(start.model)
    make_way([os.fsdecode(each) for each in start.path], start.model.source)
    model: Any = load(start.model)
    # Again after `load`, which may be what imports torch.
    limit_device_memory(start.model)
    model.load(start.model.device)
    limit_device_memory(start.model)
    warmup = getattr(model, "warmup", None)
    if callable(warmup):
        warmup()
    version = getattr(model, "version", "")
    shapes = _shapes(start.model, model)
    refuse = model.refuse if isinstance(model, FunctionModel) else None
    computer = BatchComputer(
        model,
        refuse,
        on_pass,
        _budget(start, model),
        shapes=shapes,
        collapse=start.model.collapses,
        watched=not start.model.is_remote,
        continue_trace=getattr(model, "continue_trace", None) if start.model.is_remote else None,
        max_output_bytes=start.max_output_bytes,
        packs=_embeds(start.model, model),
        read_input=reader_of(start.model.input_type, views=_takes_views(start.model, model)),
        one_table=_wants_one_table(start.model, model),
    )
    if start.model.warmup_input is not None:
        _warm_up(computer, start.model.warmup_input)
    elif shapes.sizes and not callable(warmup):
        logger.warning("batch_sizes are not warmed up: the model has no warmup(), and its table no warmup_input")
    return computer, version if isinstance(version, str) else ""


def _shapes(settings: ModelSettings, model: Any) -> Shapes:
    if not settings.length_buckets:
        return Shapes(settings.batch_sizes)
    length = getattr(model, "length", None)
    if not callable(length):
        raise LoadError(f"{settings.source} has no length(input), so length_buckets have no effect; remove them")
    return Shapes(settings.batch_sizes, settings.length_buckets, length)


def _warm_up(computer: BatchComputer, value: Any) -> None:
    error = computer.warm_up(msgspec.json.encode(value))
    if error is None:
        return
    text = f"warmup_input: {error.message}"
    if error.traceback is None or error.rejected:
        raise LoadError(text)
    raise RuntimeError(f"{text}\n{error.traceback}")


def _embeds(settings: ModelSettings, model: Any) -> bool:
    tasks = getattr(model, "tasks", ()) if settings.tasks is None else settings.tasks
    return isinstance(tasks, list | tuple) and "embed" in tasks


def _takes_views(settings: ModelSettings, model: Any) -> bool:
    if getattr(model, "accepts_views", False) is not True:
        return False
    if settings.input_type == "json":
        raise LoadError(f'{settings.source} has accepts_views = True, which has no effect on input_type = "json"')
    return True


def _wants_one_table(settings: ModelSettings, model: Any) -> bool:
    if getattr(model, "one_table", False) is not True:
        return False
    if settings.input_type != "arrow":
        raise LoadError(f'{settings.source} has one_table = True, which needs input_type = "arrow" in bunch.toml')
    if settings.max_batch_cost or settings.length_buckets:
        raise LoadError(f"{settings.source} has one_table = True: max_batch_cost and length_buckets have no effect")
    return True


def _budget(start: Start, model: Any) -> Budget | None:
    settings = start.model
    if not settings.max_batch_cost:
        return None
    cost = getattr(model, "cost", None)
    if not callable(cost):
        raise LoadError(f"{settings.source} has no cost(input), so max_batch_cost has no effect; remove it")
    return Budget(cost, settings.max_batch_cost, settings.group_by_cost)


def _leave_signals_to_the_parent() -> dict[int, Any]:
    """Ignore Ctrl-C and TERM, which reach whole process groups: only the parent knows which batches are still to be
    answered.

    Handlers are used rather than SIG_IGN, which programs that the model starts would inherit. Returns the previous
    ones.
    """
    return {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}


def _die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when the parent dies, even in the middle of a computation.

    The end of the pipe says so as well, but is only read between batches. PR_SET_PDEATHSIG follows the
    *thread* that started us: the executor's supervising thread, which lives as long as the child.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        # The parent died before the line above.
        os._exit(1)


def _configure_output(start: Start) -> None:
    logging.config.dictConfig(log_to_stderr(start.log_level, start.log_format))
    logging.captureWarnings(True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_NamesItself(start.name))
    make_stdout_tell(start.log_format)


class _NamesItself(logging.Filter):
    """Adds the executor's name to each record: the child writes into its worker's log."""

    def __init__(self, executor: str) -> None:
        super().__init__()
        self._executor = executor
        self._model = executor.partition("/")[0]

    def filter(self, record: logging.LogRecord) -> bool:
        vars(record).update(model=self._model, executor=self._executor, executor_pid=os.getpid())
        return True
