"""The types of an input (`input_type` in bunch.toml): from the JSON of a request to what `predict` gets.

    json    any JSON ──────────────────────────────▶ a Python value
    bytes   {"$base64": "…"} ──unwrapped──▶ bytes ──▶ bytes
    npy     …                               bytes ──▶ a numpy array             (numpy, `input_types.npy`)
    arrow   …                               bytes ──▶ a pyarrow table           (pyarrow, `input_types.arrow`)

Anybody may have made the bytes. A header that claims more than there is costs nothing, and nothing is unpickled.
numpy and pyarrow are imported for a model that takes their type, and for no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from tasks.protocol import kombu_types
from tasks.protocol.binary import BASE64, unwrapped
from workers.models import InvalidInput, LoadError

ReadInput: TypeAlias = Callable[[bytes | memoryview, bool], Any]
"""Reads the JSON of an input, or with True its bytes. Raises ValueError or MsgspecError for no JSON, InvalidInput
for another type.
"""
Decode: TypeAlias = Callable[[bytes | memoryview], Any]
"""Makes a value of bytes. Raises ValueError, whose text is for the caller."""


def read_json(raw: bytes | memoryview) -> Any:
    """Any value. Raises ValueError or MsgspecError."""
    return kombu_types.loads(bytes(raw)) if raw[:1] == kombu_types.MARK else msgspec.json.decode(raw)


def reader_of(input_type: str) -> ReadInput:
    """The function that reads inputs of a type. Raises LoadError, if the package for it is not installed."""
    if input_type == "json":
        return read_no_bytes
    decode = _decoder_of(input_type)

    def read(raw: bytes | memoryview, is_bytes: bool) -> Any:
        try:
            return decode(raw if is_bytes else _bytes_in(raw))
        except ValueError as error:
            raise InvalidInput(f"the input is not {_NAMES[input_type]}: {error}") from None

    return read


def read_no_bytes(raw: bytes | memoryview, is_bytes: bool = False) -> Any:
    """Any value of JSON. Raises ValueError or MsgspecError, InvalidInput for bytes."""
    if is_bytes:
        raise InvalidInput("this model takes JSON, not bytes")
    # As `read_json`, without another call for each request.
    return msgspec.json.decode(raw) if raw[:1] != kombu_types.MARK else kombu_types.loads(bytes(raw))


_NAMES = {"bytes": "bytes", "npy": "a .npy array", "arrow": "an Arrow stream"}


def _bytes_in(raw: bytes | memoryview) -> bytes:
    """The bytes in the JSON of an input: in our own form, or in that of a Celery client that has sent `bytes`."""
    if raw[:1] != kombu_types.MARK:
        return unwrapped(raw)
    value = kombu_types.loads(bytes(raw))
    if not isinstance(value, bytes):
        raise ValueError(f'send bytes, or {{"{BASE64}": "…"}}')  # noqa: TRY004 - as for any other wrong form
    return value


def _decoder_of(input_type: str) -> Decode:
    try:
        if input_type == "npy":
            from workers.executor.input_types.npy import array_of

            return array_of
        if input_type == "arrow":
            from workers.executor.input_types.arrow import table_of

            return table_of
    except ImportError as error:
        package = "pyarrow" if input_type == "arrow" else "numpy"
        raise LoadError(f'input_type = "{input_type}" needs {package}: {error}') from error
    return bytes
