"""Models for the chaos tests, whose inputs, or a file, control what they do to their executor."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

from workers.models import TransientError

_LOOK_EVERY_S = 0.02
_MOUTHFUL_BYTES = 16 * 1024 * 1024
_FULL = 4
# Longer than any time limit here.
_FOR_EVER_S = 3600.0


class Cursed:
    """Echoes; an input `{"curse": …}` harms the whole batch, until there is a file at `repaired`.

    | curse     | what it does                        |
    |-----------|-------------------------------------|
    | `raise`   | `predict` raises                    |
    | `crash`   | writes to address 0: a segfault     |
    | `hang`    | never returns                       |
    | `gorge`   | eats all the memory that it may use |
    | `devour`  | eats until the kernel kills it      |
    """

    def __init__(self, repaired: str) -> None:
        self._repaired = Path(repaired)

    def load(self, device: str) -> None:
        # A crash is intended here; its core file would be useless.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if not self._repaired.exists():
            for value in inputs:
                _strike(value.get("curse") if isinstance(value, dict) else None)
        return inputs


def _strike(curse: str | None) -> None:
    match curse:
        case "raise":
            raise ValueError("cursed")
        case "crash":
            ctypes.memset(0, 0, 1)
        case "hang":
            time.sleep(_FOR_EVER_S)
        case "gorge":
            hoard = []
            while True:
                hoard.append(bytearray(_MOUTHFUL_BYTES))
        case "devour":
            # In its place, since the kernel might kill any other process on the machine that runs the tests.
            _ = [bytearray(_MOUTHFUL_BYTES) for _ in range(_FULL)]
            os.kill(os.getpid(), signal.SIGKILL)


class Poisoned:
    """Echoes like a process on a GPU: an input `{"poison": …}` breaks every later call too, and only a new process
    helps.

    | poison     | what it does                                                      |
    |------------|-------------------------------------------------------------------|
    | `assert`   | this call fails with the words of a device                        |
    | `later`    | this call goes well; the next one fails, with the device's words  |
    | `wordless` | this call fails, without a word of a device                       |

    `{"fail": …}` makes a call fail that harms nothing beyond it.
    """

    _error: Exception | None = None

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if self._error is not None:
            raise self._error
        about = [each for each in inputs if isinstance(each, dict)]
        for poison in (each["poison"] for each in about if "poison" in each):
            self._error = _POISONS[poison]
            if poison != "later":
                raise self._error
        if any("fail" in each for each in about):
            raise ValueError("harmless")
        return inputs


_POISONS: dict[str, Exception] = {
    "assert": RuntimeError("CUDA error: device-side assert triggered"),
    "later": RuntimeError("CUDA error: an illegal memory access was encountered"),
    "wordless": ValueError("broken"),
}


class Tally:
    """Echoes one input at a time, each once `gate` exists, and adds a line to `tally` for each input that it gets."""

    def __init__(self, gate: str, tally: str) -> None:
        self._gate = Path(gate)
        self._tally = tally

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        line = os.open(self._tally, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(line, b"".join(b"%d\n" % os.getpid() for _ in inputs))
        os.close(line)
        while not self._gate.exists():
            time.sleep(_LOOK_EVERY_S)
        return inputs


class Fickle:
    """Echoes numbers: a third of the calls raise a transient error, and every fiftieth number always fails."""

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[int], parameters: list[dict[str, Any]]) -> list[Any]:
        time.sleep(0.02)
        return [_answer(each) for each in inputs]


def _answer(number: int) -> object:
    if number % 50 == 7:
        return ValueError("not this number")
    return TransientError("not now") if random.random() < 0.3 else number


class Broken:
    """Fails for every input."""

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        raise KeyError("weights")


class Digest:
    """Takes bytes, as a view where they are in shared memory, and returns them turned round; a batch takes 30 ms."""

    accepts_views = True

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[memoryview], parameters: list[dict[str, Any]]) -> list[Any]:
        time.sleep(0.03)
        return [{"first": bytes(each[:8]).hex(), "last": bytes(each[-8:]).hex(), "size": len(each)} for each in inputs]
