"""Tables in Arrow's stream format, from bytes that anybody may have made.

    stream ─▶ each message: its size when decompressed ─▶ pyarrow ─▶ types ─▶ validate(full) ─▶ a table

The table's columns are views of the bytes. A stream can be far larger than its bytes: compressed, with rows that have
no data, or with values that many rows refer to. Each of these is counted before anything is unfolded. So are its parts:
a column of a batch takes microseconds, however little is in it, and a stream has room for a million.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from tasks.protocol.json_structure import MAX_DEPTH, MAX_PARTS

# In these any number of rows may refer to the same bytes, or run lengths stand for rows.
_UNFOLDING = (
    pa.types.is_run_end_encoded,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
    pa.types.is_binary_view,
    pa.types.is_string_view,
    pa.types.is_union,
)
_OPTIONS = ipc.IpcReadOptions(use_threads=False)
_MOST_TEXT = 300
# How far a stream may unfold: to so many bytes, and so many times its own besides.
_UNFOLDED_BYTES = 1024 * 1024
_UNFOLDED_TIMES = 20
# Requests to one model have the same few schemas: each message that has described an accepted one, and whether its
# columns hold values within values.
_accepted: dict[bytes, bool] = {}
_MOST_ACCEPTED = 256
_LONGEST_ACCEPTED = 16 * 1024
# A hundred bytes for each column are usual.
_MOST_SCHEMA_BYTES = 8 * 1024 * 1024


def table_of(raw: bytes | memoryview) -> pa.Table:
    """The table in a whole stream. Raises ValueError."""
    source = pa.py_buffer(raw)
    # Batches are limited by the bytes of their messages: what unfolds further could fill the memory together.
    most_bytes = _UNFOLDED_BYTES + _UNFOLDED_TIMES * len(raw)
    try:
        described, unpacked = _walk(source, most_bytes)
        size = max(len(raw), unpacked)
        with ipc.open_stream(source, options=_OPTIONS) as stream:
            nests = _accepted.get(described)
            if nests is None:
                nests = _check_types(stream.schema)
                if len(_accepted) < _MOST_ACCEPTED and len(described) <= _LONGEST_ACCEPTED:
                    _accepted[described] = nests
            table = stream.read_all()
        table.validate(full=True)
        _check_length(table.num_rows, size)
        if nests:
            _check_lengths(table, size, most_bytes)
    except UnicodeDecodeError as error:
        raise ValueError("a name in its schema is not UTF-8") from error
    except (pa.ArrowException, OSError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(str(error).partition("\n")[0][:_MOST_TEXT] or type(error).__name__) from error
    return table


def _walk(source: pa.Buffer, most_bytes: int) -> tuple[bytes, int]:
    """The message that describes the columns, and the bytes of all buffers when decompressed, as their own prefixes
    say. Raises ValueError over `most_bytes`, or with too many parts.
    """
    described, size, parts = b"", 0, 0
    messages = ipc.MessageReader.open_stream(source)
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return described, size
        parts += 1
        if message.type == "schema":
            if message.metadata.size > _MOST_SCHEMA_BYTES:
                raise ValueError(f"its schema has more than {_MOST_SCHEMA_BYTES} bytes")
            described = described or message.metadata.to_pybytes()
        elif message.type in {"record batch", "dictionary"}:
            head = message.metadata.to_pybytes()
            batch = _batch_in(head, message.type)
            parts += _nodes_of(head, batch)
            size += _size_of(head, batch, memoryview(message.body or b""))
            if size > most_bytes:
                raise ValueError(f"it would unfold to more than {most_bytes} bytes; send it without compression")
        if parts > MAX_PARTS:
            raise ValueError(f"its batches have more than {MAX_PARTS:,} columns together; send fewer, larger batches")


def _batch_in(head: bytes, kind: str) -> int:
    """The place of the batch in a message (Message.fbs of Arrow's format; pyarrow has verified that it is one)."""
    (at,) = struct.unpack_from("<I", head)
    batch = _follow(head, _field(head, at, 2))
    return _follow(head, _field(head, batch, 1)) if kind == "dictionary" else batch


def _nodes_of(head: bytes, batch: int) -> int:
    """The number of columns, and of those within columns."""
    place = _field(head, batch, 1)
    return int(struct.unpack_from("<I", head, _follow(head, place))[0]) if place else 0


def _size_of(head: bytes, batch: int, body: memoryview) -> int:
    """The size of the buffers of one batch."""
    place = _field(head, batch, 2)
    if not place:
        return 0
    vector = _follow(head, place)
    (count,) = struct.unpack_from("<I", head, vector)
    # A pair of offset and length for each buffer.
    pairs = struct.unpack_from(f"<{2 * count}q", head, vector + 4)
    offsets, lengths = pairs[::2], pairs[1::2]
    if min(pairs, default=0) < 0:
        raise ValueError("a buffer has a negative place or length")
    if not _field(head, batch, 3):
        return sum(lengths)
    return sum(_unpacked(body, *each) for each in zip(offsets, lengths, strict=True) if each[1])


def _unpacked(body: memoryview, offset: int, length: int) -> int:
    """The length of a compressed buffer once it is not: in its first eight bytes, -1 if it was not worth it."""
    (unpacked,) = struct.unpack_from("<q", body, offset)
    return length if unpacked < 0 else int(unpacked)


def _field(head: bytes, table: int, number: int) -> int:
    """The place of a field of a flatbuffer's table; 0: it has none."""
    vtable = table - struct.unpack_from("<i", head, table)[0]
    slot = 4 + 2 * number
    if slot >= struct.unpack_from("<H", head, vtable)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", head, vtable + slot)
    return table + offset if offset else 0


def _follow(head: bytes, at: int) -> int:
    return int(at + struct.unpack_from("<I", head, at)[0])


def _check_types(schema: pa.Schema) -> bool:
    """Return whether there are values within values, which must be counted one by one.

    Raises:
        ValueError: a type has values that can be far larger than their bytes, or a name that no dict can have.
    """
    _check_names(schema.names)
    nests = False
    pending = [(kind, 1) for kind in schema.types]
    for kind, depth in pending:
        if any(unfolds(kind) for unfolds in _UNFOLDING):
            raise ValueError(f"its type {str(kind)[:_MOST_TEXT]} is not supported")
        if depth > MAX_DEPTH:
            raise ValueError(f"its types are nested more than {MAX_DEPTH} levels deep")
        if pa.types.is_dictionary(kind):
            if pa.types.is_nested(kind.value_type):
                raise ValueError("a dictionary of nested values is not supported")
            nests = True
            pending.append((kind.value_type, depth + 1))
        if isinstance(kind, pa.BaseExtensionType):
            nests = True
            _check_names([kind.extension_name])
            pending.append((kind.storage_type, depth + 1))
        if pa.types.is_timestamp(kind):
            _check_names([kind.tz])
        inner = [kind.field(n) for n in range(kind.num_fields)]
        _check_names([field.name for field in inner])
        nests = nests or bool(inner)
        pending += [(field.type, depth + 1) for field in inner]
    return nests


def _check_names(names: list[str | None]) -> None:
    """Raises ValueError, for a name twice, which no dict can have. That of one that is not UTF-8 comes from asking for
    it, which a model's code would be the first to do.
    """
    if len(set(names)) < len(names):
        raise ValueError("a name in its schema is there twice")


def _check_lengths(table: pa.Table, size_bytes: int, most_bytes: int) -> None:
    """Raises ValueError, if a column holds more values than bits of data, or such that take more than `most_bytes`."""
    pending: list[pa.Array] = [chunk for column in table.columns for chunk in column.chunks]
    for array in pending:
        _check_length(len(array), size_bytes)
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            pending.append(array.storage)
        elif pa.types.is_struct(kind):
            pending += [array.field(n) for n in range(kind.num_fields)]
        elif pa.types.is_dictionary(kind):
            _check_dictionary(array, most_bytes)
        elif pa.types.is_nested(kind):
            pending.append(array.values)


def _check_length(count: int, size_bytes: int) -> None:
    if count > 8 * size_bytes:
        raise ValueError(f"it claims {count} values in {size_bytes} bytes")


def _check_dictionary(array: pa.DictionaryArray, most_bytes: int) -> None:
    values = array.dictionary
    if not (pa.types.is_binary(values.type) or pa.types.is_string(values.type)) and not (
        pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    ):
        return
    size = pc.sum(pc.take(pc.cast(pc.binary_length(values), pa.int64()), array.indices)).as_py() or 0
    if size > most_bytes:
        raise ValueError(f"its values take more than {most_bytes} bytes when its dictionaries are looked up")
