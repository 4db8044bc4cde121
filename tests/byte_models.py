"""Models whose inputs are bytes, for tests that control a whole stack from outside."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


class Described:
    """Tells what it was given."""

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[bytes], parameters: list[dict[str, Any]]) -> list[Any]:
        return [
            {"type": type(value).__name__, "size": len(value), "sha256": sha256(value).hexdigest(), "parameters": given}
            for value, given in zip(inputs, parameters, strict=True)
        ]


class Arrays:
    """Tells what it was given, and works in place."""

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[NDArray[np.generic]], parameters: list[dict[str, Any]]) -> list[Any]:
        found = []
        for value in inputs:
            about = {"type": type(value).__name__, "dtype": str(value.dtype), "shape": value.shape}
            found.append({**about, "values": value.tolist()})
            value[...] = 0
        return found


class Tables:
    """Tells what it was given."""

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[pa.Table], parameters: list[dict[str, Any]]) -> list[Any]:
        return [{"type": type(value).__name__, "columns": value.to_pydict()} for value in inputs]
