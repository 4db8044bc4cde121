"""One table for a whole batch: one call for tables that can be joined, and each request gets the rows of its own."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.request import Failed, Ok
from config.schema import ModelSettings
from tasks.protocol.binary import wrapped
from tests.unit.computing import Model, work
from workers.executor.compute import BatchComputer
from workers.executor.input_types import reader_of
from workers.executor.main import _wants_one_table
from workers.executor.shapes import Shapes
from workers.executor.tables import joined, split
from workers.models import LoadError


def raw(**columns: Any) -> bytes:
    table = pa.table(columns)
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return wrapped(file.getvalue())


def run(predict: Any, *inputs: bytes, **more: Any) -> list[Any]:
    """The outputs, or the messages of errors."""
    computer = BatchComputer(Model(predict), read_input=reader_of("arrow"), one_table=True, **more)
    done, _ = computer.compute(computer.decode(work(*inputs)))
    assert done is not None
    return [each.output if isinstance(each, Ok) else each.message for each in done.outcomes]


def test_one_call_with_one_piece_of_each_column() -> None:
    calls: list[pa.Table] = []

    def predict(table: pa.Table, parameters: list[dict[str, Any]]) -> Any:
        calls.append(table)
        assert len(parameters) == 3
        return table["a"]

    assert run(predict, raw(a=[1, 2]), raw(a=pa.array([], pa.int64())), raw(a=[3])) == [b"[1,2]", b"[]", b"[3]"]
    (table,) = calls
    assert table["a"].num_chunks == 1


def test_tables_with_other_columns_are_other_calls() -> None:
    calls: list[list[str]] = []

    def predict(table: pa.Table, parameters: list[dict[str, Any]]) -> Any:
        calls.append(table.column_names)
        return list(range(table.num_rows))

    inputs = [raw(a=[1]), raw(b=[1]), raw(a=[2, 3]), raw(a=["x"])]
    assert run(predict, *inputs) == [b"[0]", b"[0]", b"[1,2]", b"[0]"]
    assert sorted(calls) == [["a"], ["a"], ["b"]]


def test_a_culprit_is_found_by_halves() -> None:
    def predict(table: pa.Table, parameters: list[dict[str, Any]]) -> Any:
        if "bad" in table["a"].to_pylist():
            raise ValueError("cannot")
        return table["a"]

    outputs = run(predict, *(raw(a=[each]) for each in ["w", "x", "bad", "y"]))
    assert outputs == [b'["w"]', b'["x"]', "ValueError: cannot", b'["y"]']


def test_padding_repeats_a_table_whose_rows_nobody_gets() -> None:
    sizes: list[int] = []

    def predict(table: pa.Table, parameters: list[dict[str, Any]]) -> Any:
        sizes.append(table.num_rows)
        return np.arange(table.num_rows)

    assert run(predict, raw(a=[1]), raw(a=[2]), raw(a=[3, 4]), shapes=Shapes((4,))) == [b"[0]", b"[1]", b"[2,3]"]
    assert sizes == [6]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_the_rows_come_back_to_their_tables_without_a_copy(counts: list[int]) -> None:
    tables = [pa.table({"n": pa.array([number] * count, pa.int64())}) for number, count in enumerate(counts)]
    whole = joined(tables)
    for returned in (whole, whole["n"], whole["n"].combine_chunks(), whole["n"].to_numpy(), whole["n"].to_pylist()):
        parts = split(returned, counts)
        assert isinstance(parts, list)
        got = [part.to_pydict()["n"] if isinstance(part, pa.Table) else list(part) for part in parts]
        assert [[int(str(each)) for each in part] for part in got] == [[n] * count for n, count in enumerate(counts)]
    array = whole["n"].combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        return
    parts = split(array, counts)
    assert isinstance(parts, list)
    assert {part.buffers()[1].address for part in parts if len(part)} <= {array.buffers()[1].address}


@pytest.mark.parametrize("returned", [None, 1, "ab", {"a": [1, 2]}, [1], [1, 2, 3], np.zeros(()), np.zeros(3)])
def test_what_has_not_a_row_for_each_is_the_models_error(returned: Any) -> None:
    wrong = split(returned, [1, 1])
    assert isinstance(wrong, str)
    assert "a table of 2 rows" in wrong
    assert all("one_table" in each for each in run(lambda *_: returned, raw(a=[1]), raw(a=[2])))
    assert Failed


def test_it_needs_arrow() -> None:
    class Sums:
        one_table = True

    def wants(model: Any, **settings: Any) -> bool:
        return _wants_one_table(ModelSettings(name="m", source="m:M", **settings), model)

    assert wants(Sums(), input_type="arrow")
    assert not wants(object(), input_type="arrow")
    with pytest.raises(LoadError, match="input_type"):
        wants(Sums())
    with pytest.raises(LoadError, match="max_batch_cost"):
        wants(Sums(), input_type="arrow", max_batch_cost=1)
