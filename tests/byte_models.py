"""Models whose inputs are bytes, for tests that control a whole stack from outside."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from bunch import Output

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


class Reversed:
    """Returns the bytes that it was given, backwards."""

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[bytes], parameters: list[dict[str, Any]]) -> list[bytes]:
        return [value[::-1] for value in inputs]


class Eyes:
    """Embeds a picture: its size, and its media type's length."""

    tasks = ("embed",)

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[bytes], parameters: list[dict[str, Any]]) -> list[list[float]]:
        types = (each.get("content_type", "") for each in parameters)
        return [[float(len(value)), float(len(each))] for value, each in zip(inputs, types, strict=True)]


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


def _columns() -> Any:
    import pyarrow as pa

    return pa.table({"a": [1, 2], "b": ["x", "y"]})


def _array() -> Any:
    import numpy as np

    return np.arange(6, dtype=np.float32).reshape(2, 3)


class Roots:
    """The roots of arrays: what is below 0 has none."""

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[NDArray[np.generic]], parameters: list[dict[str, Any]]) -> list[Any]:
        import numpy as np

        assert not any("$output" in each for each in parameters)
        with np.errstate(invalid="ignore"):
            return [np.sqrt(each) for each in inputs]


class Drawn:
    """Returns the output that its input names."""

    OUTPUTS: ClassVar[dict[str, Callable[[], Any]]] = {
        "png": lambda: Output(b"\x89PNG", {"content_type": "image/png", "größe": [1, 2]}),
        "html": lambda: Output(b"<script>", {"content_type": "Text/HTML; charset=utf-8"}),
        "a wrong type": lambda: Output(b"?", {"content_type": "x\r\nSet-Cookie: a=b"}),
        "much metadata": lambda: Output(b"m", {"content_type": "image/png", "more": "é" * 4000}),
        "a long type": lambda: Output(b"m", {"content_type": f"image/{'x' * 9000}"}),
        "bytes": lambda: b"plain",
        "view": lambda: memoryview(b"a view"),
        "text": lambda: "text",
        "liar": lambda: Output("AAAA", {"content_type": "image/png", "output_type": "bytes"}),
        "array": _array,
        "numbers": lambda: [1.5, 2.5],
        "ragged": lambda: [[1], [2, 3]],
        "table": _columns,
        "records": lambda: [{"a": 1}, {"a": 2}],
        "dict": lambda: {"a": [1, 2]},
        "null": lambda: None,
        "failure": lambda: ValueError("no"),
    }

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[str], parameters: list[dict[str, Any]]) -> list[Any]:
        # Forms of outputs are no affair of a model's.
        assert not any(parameters)
        return [self.OUTPUTS[each]() for each in inputs]


class Sums:
    """Gets one table for the whole batch, and returns a table with a row for each of its rows."""

    one_table = True

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, table: pa.Table, parameters: list[dict[str, Any]]) -> Any:
        import pyarrow.compute as pc

        if "returns" in table.column_names:
            return {"too few": table[:-1], "a number": 1, "a list": list(range(table.num_rows))}[
                table["returns"][0].as_py()
            ]
        return table.select([]).append_column("sum", pc.add(table["a"], table["b"]))


class Views:
    """Tells what it was given, takes memory that it cannot write to, and keeps it."""

    accepts_views = True

    def load(self, device: str) -> None:
        self._kept: list[Any] = []

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        self._kept += inputs
        return [
            {"type": type(value).__name__, "sha256": [sha256(each).hexdigest() for each in self._kept]}
            | {"readonly": memoryview(value).readonly, "address": _address(value) % 4096}
            for value in inputs
        ]


class Halves:
    """Works in place, and fails for every batch of more than one."""

    def load(self, device: str) -> None:
        """Nothing to load."""

    def predict(self, inputs: list[NDArray[np.generic]], parameters: list[dict[str, Any]]) -> list[Any]:
        totals = [int(value.sum()) for value in inputs]
        for value in inputs:
            value[...] = 0
        if len(inputs) > 1:
            raise ValueError("one at a time")
        return totals


def _address(value: Any) -> int:
    import numpy as np

    return int(np.frombuffer(value, np.uint8).__array_interface__["data"][0])
