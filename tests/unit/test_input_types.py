"""Arrays and tables from bytes that anybody may have made: what they claim is counted before it costs anything."""

from __future__ import annotations

import io
import pickle
import struct
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from batching.request import Ok, Rejected
from tasks.protocol.binary import wrapped
from tests.unit.computing import Model, work
from workers.executor.compute import BatchComputer
from workers.executor.input_types import reader_of
from workers.executor.input_types.arrow import table_of
from workers.executor.input_types.npy import array_of
from workers.models import LoadError

MIB = 1024 * 1024


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # That old versions of numpy cannot read names of fields that are not Latin.
        warnings.simplefilter("ignore")
        np.save(file, array, **options)
    return file.getvalue()


def claiming(descr: str, shape: str, data: bytes = b"") -> bytes:
    """A `.npy` file whose header says anything."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return file.getvalue()


@given(
    arrays.arrays(
        st.one_of(arrays.scalar_dtypes(), arrays.unicode_string_dtypes(), arrays.nested_dtypes()).filter(
            lambda dtype: dtype.itemsize and not dtype.hasobject
        ),
        arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
)
def test_an_array_is_the_one_that_was_saved(array: np.ndarray) -> None:
    for each in (array, array.T):
        found = array_of(npy(each))
        assert (found.dtype, found.shape, found.tobytes()) == (each.dtype, each.shape, each.tobytes())
        # A model may work in place.
        assert found.flags.writeable


def test_bytes_that_may_be_written_to_are_not_copied() -> None:
    raw = bytearray(npy(np.zeros(4)))
    array_of(memoryview(raw))[:] = 1
    assert np.frombuffer(raw[-32:]).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (npy(np.array([{}], dtype=object), allow_pickle=True), "never unpickled"),
        (npy(np.array([(1, {})], dtype=[("a", "i4"), ("b", "O")]), allow_pickle=True), "never unpickled"),
        (pickle.dumps({}), "magic"),
        (b"", "magic"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "version"),
        (npy(np.zeros(100))[:-1], "claims 100 elements"),
        (npy(np.zeros(100)) + b"\0", "claims 100 elements"),
        (claiming("'<f8'", "(1250000000000,)"), "claims 1250000000000 elements"),
        (claiming("'<f8'", f"({2**62}, {2**62})"), "claims"),
        (claiming("'<f8'", "(-1,)"), "negative"),
        (claiming("'<f8'", "(True,)", bytes(8)), "no integer"),
        (claiming("'<f8'", "('1',)", bytes(8)), "."),
        (claiming("'V0'", "(1000000000000,)"), "no size"),
        (claiming("'<f8'", "(1000000000000, 0)"), "more than 65536 rows"),
        (claiming("'<f8'", "(0, 1000000000000)"), "more than 65536 rows"),
        (claiming("'<f8'", "(" + "1, " * 100 + ")", bytes(8)), "."),
        (claiming("'no type'", "(1,)", bytes(8)), "."),
        (claiming("__import__('os').abort()", "(1,)", bytes(8)), "."),
        (claiming("'" + "f4," * 1_000 + "f4'", "(1,)"), "."),
        (claiming("[" * 500 + "]" * 500, "(1,)"), "."),
    ],
)
def test_a_header_that_lies_is_refused_and_costs_nothing(raw: bytes, why: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=why):
            array_of(raw)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


_COLUMNS = {
    "number": [1, None, 3],
    "text": ["x", None, "yy"],
    "list": [[1], [], None],
    "struct": [{"a": 1}, None, {"a": 2}],
    "dictionary": pa.array(["u", "v", "u"]).dictionary_encode(),
    "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    "null": pa.nulls(3),
    "none": pa.array([None] * 3, pa.float32()),
}


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_a_table_is_the_one_that_was_written(compression: str | None) -> None:
    table = pa.table(_COLUMNS)
    assert table_of(stream(table, compression)).equals(table)
    assert table_of(stream(table[:0], compression)).num_rows == 0
    half = pa.table({"a": np.random.default_rng(1).random(100_000)})
    assert table_of(stream(half, compression)).equals(half)


def _pool() -> int:
    allocated: int = pa.total_allocated_bytes()
    return allocated


@pytest.mark.parametrize(
    ("table", "compression", "why"),
    [
        (pa.table({"a": np.zeros(10_000_000)}), "zstd", "unfold"),
        (pa.table({"a": np.zeros(10_000_000)}), "lz4", "unfold"),
        (
            pa.table({"d": pa.DictionaryArray.from_arrays(np.zeros(100, np.int8), ["x" * 1_000_000])}),
            "zstd",
            "dictionaries",
        ),
        (
            pa.table({"d": pa.DictionaryArray.from_arrays(np.zeros(90_000, np.int8), ["x" * 100_000])}),
            None,
            "dictionaries",
        ),
        (pa.table({"n": pa.nulls(10**9)}), None, "claims 1000000000 values"),
        (pa.table({"l": pa.ListArray.from_arrays([0, 2**31 - 1], pa.nulls(2**31 - 1))}), None, "claims 2147483647"),
        (pa.table({"s": pa.array(["a"], pa.string_view())}), None, "string_view"),
        (pa.table({"r": pa.RunEndEncodedArray.from_arrays([10**9], [1])}), None, "run_end_encoded"),
        (pa.table({"u": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}), None, "union"),
        (pa.table({"v": pa.array([[1]], pa.list_view(pa.int8()))}), None, "list_view"),
    ],
    ids=range(10),
)
def test_what_would_unfold_is_refused_unopened(table: pa.Table, compression: str | None, why: str) -> None:
    raw = stream(table, compression)
    before = _pool()
    with pytest.raises(ValueError, match=why):
        table_of(raw)
    assert _pool() - before < MIB
    assert len(raw) < 2 * MIB


def _with_offsets(*offsets: int) -> bytes:
    """A stream with a column of texts whose offsets are changed."""
    raw = stream(pa.table({"a": ["abc", "def"]}))
    right = struct.pack("<3i", 0, 3, 6)
    assert raw.count(right) == 1
    return raw.replace(right, struct.pack("<3i", *offsets))


@pytest.mark.parametrize(
    ("kind", "columns", "batches"),
    [
        (pa.int8(), 1, 60_000),
        (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.int8()))]), 1000, 30),
        (pa.dictionary(pa.int8(), pa.string()), 1000, 60),
    ],
)
def test_a_stream_of_very_many_small_parts_is_refused(kind: pa.DataType, columns: int, batches: int) -> None:
    names = [str(n) for n in range(columns)]
    batch = pa.record_batch([pa.array([None], kind)] * columns, names=names)
    file = io.BytesIO()
    with pa.ipc.new_stream(file, batch.schema) as writer:
        for _ in range(batches // 6):
            writer.write_batch(batch)
        few = file.tell()
        for _ in range(2 * batches):
            writer.write_batch(batch)
    raw = file.getvalue()
    assert table_of(raw[:few]).num_columns == columns
    with pytest.raises(ValueError, match="fewer, larger batches"):
        table_of(raw)


def test_schemas_that_are_remembered_take_little_memory() -> None:
    long = "x" * (2 * MIB)
    tracemalloc.start()
    for number in range(20):
        table_of(stream(pa.table({"a": [1]}).replace_schema_metadata({"x": f"{number}{long}"})))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2 * MIB
    with pytest.raises(ValueError, match="schema has more than"):
        table_of(stream(pa.table({"a": [1]}).replace_schema_metadata({"x": long * 5})))


@pytest.mark.parametrize("offsets", [(0, 3, 2**31 - 1), (0, -1, 6), (0, 6, 3), (-(2**31), 3, 6), (0, 7, 7)])
def test_offsets_that_lead_out_of_the_data_are_refused(offsets: tuple[int, ...]) -> None:
    assert table_of(_with_offsets(0, 2, 6)).to_pydict() == {"a": ["ab", "cdef"]}
    with pytest.raises(ValueError, match=r"."):
        table_of(_with_offsets(*offsets))


def test_a_name_that_is_there_twice_is_refused() -> None:
    twice = pa.struct([("a", pa.int8()), ("a", pa.int8())])
    for table in (
        pa.table([[1], [2]], names=["a", "a"]),
        pa.table({"s": pa.array([None], twice)}),
        pa.table({"l": pa.array([None], pa.list_(twice))}),
    ):
        with pytest.raises(ValueError, match="twice"):
            table_of(stream(table))


def test_texts_and_names_that_are_not_utf8_are_refused() -> None:
    for table in (
        pa.table({"abc": [1]}),
        pa.table({"s": [{"abc": 1}]}),
        pa.table({"t": pa.array([1], pa.timestamp("s", "abc"))}),
    ):
        with pytest.raises(ValueError, match="UTF-8"):
            table_of(stream(table).replace(b"abc", b"\xff\xff\xff"))
    with pytest.raises(ValueError, match="UTF8"):
        table_of(stream(pa.table({"a": ["abc"]})).replace(b"abc", b"\xff\xff\xff"))


def test_a_broken_input_costs_its_neighbours_nothing() -> None:
    seen: list[list[Any]] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        seen.append(inputs)
        return [each.shape for each in inputs]

    computer = BatchComputer(Model(predict), read_input=reader_of("npy"))
    good, bad = npy(np.zeros((2, 3))), npy(np.array([{}], dtype=object), allow_pickle=True)
    raws = [wrapped(good), wrapped(bad), wrapped(good), b'"text"', b"\t{}"]
    done, _ = computer.compute(computer.decode(work(*raws)))
    assert done is not None
    assert [type(each) for each in done.outcomes] == [Ok, Rejected, Ok, Rejected, Rejected]
    assert {each.exc_type for each in done.outcomes if isinstance(each, Rejected)} == {"InvalidInput"}
    assert [len(each) for each in seen] == [2]


def test_a_type_whose_package_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "workers.executor.input_types.arrow", None)
    with pytest.raises(LoadError, match='input_type = "arrow" needs pyarrow'):
        reader_of("arrow")
