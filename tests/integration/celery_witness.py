"""A model that records every input, so that a test knows what was computed, and how often."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from workers.models import InputRejected


class Witness:
    """Echoes. `{"hold": path}` waits until the file exists, `{"raise": text}` fails the batch, `{"reject": text}` is
    refused.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        with self._path.open("a") as file:
            file.writelines(json.dumps(each) + "\n" for each in inputs)
        return [self._output(each) for each in inputs]

    @staticmethod
    def _output(value: Any) -> Any:
        wish = value if isinstance(value, dict) else {}
        while "hold" in wish and not Path(wish["hold"]).exists():
            time.sleep(0.01)
        if "raise" in wish:
            raise ValueError(wish["raise"])
        return InputRejected(wish["reject"]) if "reject" in wish else value
