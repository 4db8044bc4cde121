"""Models that do what each input tells them, so that a test can control one from outside."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workers.models import InputRejected


class Puppet:
    """Echoes; an input `{"do": what, …}` makes it do that first. `ACTIONS` has them all."""

    def load(self, device: str) -> None:
        self.device = device

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        outputs: list[Any] = []
        for value in inputs:
            action = ACTIONS.get(value.get("do", "")) if isinstance(value, dict) else None
            outputs.append(action(value) if action else value)
        return [each for each in outputs if each is not SKIPPED]


class Placed:
    """Returns the device that it was loaded to, and the GPUs that CUDA would show it."""

    def load(self, device: str) -> None:
        self._device = device

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return [[self._device, os.environ.get("CUDA_VISIBLE_DEVICES")] for _ in inputs]


class Numbered:
    """Returns its number: as a vector for a text, as a score for a pair of texts."""

    tasks = ("embed", "rerank")

    def __init__(self, number: float) -> None:
        self._number = number

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return [self._number if isinstance(each, dict) else [self._number] for each in inputs]


class LoadsLater:
    """Cannot be loaded until the file `until` exists."""

    def __init__(self, until: str) -> None:
        self._until = Path(until)

    def load(self, device: str) -> None:
        if not self._until.exists():
            raise RuntimeError("the weights are missing")

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return inputs


class LoadsSlowly:
    """Echoes; loading takes `load_ms`, a batch `batch_ms`."""

    def __init__(self, load_ms: int = 200, batch_ms: int = 5) -> None:
        self._load_s, self._batch_s = load_ms / 1000, batch_ms / 1000

    def load(self, device: str) -> None:
        time.sleep(self._load_s)

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        time.sleep(self._batch_s)
        return inputs


class DiesLoading:
    def load(self, device: str) -> None:
        os._exit(3)

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return inputs


class LoadsForever:
    def load(self, device: str) -> None:
        threading.Event().wait()

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return inputs


class Talkative(Puppet):
    def load(self, device: str) -> None:
        logger = logging.getLogger("a.model")
        logger.info("too quiet")
        logger.warning("heard")


SKIPPED = object()


def _hold(value: dict[str, Any]) -> Any:
    """Write `<path>.begun` when the batch is inside; go on when `path` exists."""
    gate = Path(value["path"])
    gate.with_suffix(".begun").touch()
    while not gate.exists():
        time.sleep(0.005)
    return "held"


def _signal(value: dict[str, Any]) -> Any:
    os.kill(os.getpid(), getattr(signal, value["name"]))
    return "survived"


def _print(value: dict[str, Any]) -> Any:
    print(value["text"])
    os.write(1, value["text"].encode())
    print(value["text"], file=sys.stderr)
    return "printed"


def _leave_child(value: dict[str, Any]) -> Any:
    """Start a process that inherits every descriptor it can, report its id, and die before it."""
    child = subprocess.Popen(["sleep", "600"], close_fds=False)
    Path(value["path"]).write_text(str(child.pid))
    os._exit(4)


def _fork_holding_all(value: dict[str, Any]) -> Any:
    """A fork has the pipe too, in spite of all precautions."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    Path(value["path"]).write_text(str(pid))
    os._exit(4)


def _raise(value: dict[str, Any]) -> Any:
    raise ValueError(value["text"])


def _gorge(value: dict[str, Any]) -> Any:
    """Allocate memory until there is none."""
    hoard = []
    while True:
        hoard.append(bytearray(value["bytes"]))


ACTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "hold": _hold,
    "gorge": _gorge,
    "oom score": lambda value: int(Path("/proc/self/oom_score_adj").read_text()),
    "exit": lambda value: os._exit(value["status"]),
    "signal": _signal,
    "print": _print,
    "leave child": _leave_child,
    "fork": _fork_holding_all,
    "raise": _raise,
    "sys.exit": lambda value: sys.exit("the model wants out"),
    "return error": lambda value: KeyError(value["text"]),
    "return rejection": lambda value: InputRejected(value["text"]),
    "skip": lambda value: SKIPPED,
    "pid": lambda value: os.getpid(),
    "modules": lambda value: sorted(sys.modules),
    "argv": lambda value: sys.argv,
}


class Hoarder:
    """Returns the length of each input; the first batch of one process leaves it no descriptor, if it is short."""

    def load(self, device: str) -> None:
        self._held: list[int] = []

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if len(inputs[0]) > 1000:
            return [len(each) for each in inputs]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        with contextlib.suppress(OSError):
            while True:
                self._held.append(os.dup(2))
        return [0 for _ in inputs]
