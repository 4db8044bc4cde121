"""Models with shapes and stages, which tell what they have seen and fail where they are told to."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any


class Shaped:
    """Each output is `[input, the sizes of all calls of this process so far]`. A new size takes `new_size_s` more.

    The input "refused" makes a call fail.
    """

    def __init__(self, new_size_s: float = 0.0) -> None:
        self._new_size_s = new_size_s
        self._sizes: list[int] = []

    def load(self, device: str) -> None:
        pass

    def length(self, input: Any) -> int:
        return len(str(input))

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if len(inputs) not in self._sizes:
            time.sleep(self._new_size_s)
        self._sizes.append(len(inputs))
        if "refused" in inputs:
            raise ValueError("not this one")
        return [[each, list(self._sizes)] for each in inputs]


class Stages:
    """Echoes through three stages. An input `{"in": stage, "do": act}` acts in that stage: `fail`, `die`, `hang`,
    or `mark` by creating the file `path`.
    """

    def load(self, device: str) -> None:
        pass

    def prepare(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return self._act("prepare", inputs)

    def predict(self, staged: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return self._act("predict", staged)

    def finish(self, raw: list[Any]) -> list[Any]:
        return self._act("finish", raw)

    def _act(self, stage: str, values: list[Any]) -> list[Any]:
        for value in values:
            if not isinstance(value, dict) or value.get("in") != stage:
                continue
            match value["do"]:
                case "fail":
                    raise ValueError(f"in {stage}")
                case "die":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "hang":
                    time.sleep(3600)
                case "mark":
                    Path(value["path"]).touch()
        return values
