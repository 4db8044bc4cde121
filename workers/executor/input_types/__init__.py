"""The types of an input (`input_type` in bunch.toml): from the JSON of a request to what `predict` gets.

    json    any JSON ──────────────────────────────▶ a Python value
    bytes   {"$base64": "…"} ──unwrapped──▶ bytes ──▶ bytes
    npy     …                               bytes ──▶ a numpy array             (numpy, `input_types.npy`)
    arrow   …                               bytes ──▶ a pyarrow table           (pyarrow, `input_types.arrow`)

Large inputs are in shared memory (`workers.executor.shared_bytes`). A table looks at them there. So does an array: in a
private mapping, since the model may change it; or read-only, if the model `accepts_views`. `bytes` are copied out for
any other model.

Anybody may have made the bytes. A header that claims more than there is costs nothing, and nothing is unpickled.
numpy and pyarrow are imported for a model that takes their type, and for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from tasks.protocol import kombu_types
from tasks.protocol.binary import BASE64, unwrapped
from workers.executor.shared_bytes import SharedBytes
from workers.models import InvalidInput, LoadError

Raw: TypeAlias = bytes | SharedBytes

_first_of = itemgetter(0)
_MARK = kombu_types.MARK[0]
ReadInput: TypeAlias = Callable[[Raw, bool], Any]
"""Reads the JSON of an input, or with True its bytes. Raises ValueError or MsgspecError for no JSON, InvalidInput
for another type.
"""
Decode: TypeAlias = Callable[[bytes | memoryview], Any]
"""Makes a value of bytes. Raises ValueError, whose text is for the caller."""


def read_json(raw: bytes | memoryview) -> Any:
    """Any value. Raises ValueError or MsgspecError."""
    return kombu_types.loads(bytes(raw)) if raw[:1] == kombu_types.MARK else msgspec.json.decode(raw)


def reader_of(input_type: str, *, views: bool = False) -> ReadInput:
    """The function that reads inputs of a type. `views`: the model takes memory that it cannot write to.

    Raises LoadError, if the package for it is not installed.
    """
    if input_type == "json":
        return read_no_bytes
    decode = _decoder_of(input_type, views=views)
    changes, copies = input_type == "npy" and not views, decode is bytes

    def read(raw: Raw, is_bytes: bool) -> Any:
        try:
            if not is_bytes:
                return decode(_bytes_in(_text(raw)))
            if isinstance(raw, SharedBytes):
                # What is copied anyway needs no mapping.
                return bytes(raw) if copies else decode(raw.private() if changes else raw.view)
            return decode(raw)
        except ValueError as error:
            raise InvalidInput(f"the input is not {_NAMES[input_type]}: {error}") from None

    return read


def read_no_bytes(raw: Raw, is_bytes: bool = False) -> Any:
    """Any value of JSON. Raises ValueError or MsgspecError, InvalidInput for bytes."""
    if is_bytes:
        raise InvalidInput("this model takes JSON, not bytes")
    text = raw.view if isinstance(raw, SharedBytes) else raw
    # As `read_json`, without another call for each request.
    return msgspec.json.decode(text) if text[:1] != kombu_types.MARK else kombu_types.loads(bytes(text))


def read_all(inputs: Sequence[Raw]) -> list[Any] | None:
    """`read_no_bytes` for each of a batch, without a loop in Python; None where they must be read one by one: an error
    is that of its own input.
    """
    try:
        return list(map(msgspec.json.decode, inputs)) if _MARK not in map(_first_of, inputs) else None  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - an input that is no JSON, or in shared memory, or too large
        return None


def _text(raw: Raw) -> bytes | memoryview:
    return raw.view if isinstance(raw, SharedBytes) else raw


_NAMES = {"bytes": "bytes", "npy": "a .npy array", "arrow": "an Arrow stream"}


def _bytes_in(raw: bytes | memoryview) -> bytes:
    """The bytes in the JSON of an input: in our own form, or in that of a Celery client that has sent `bytes`."""
    if raw[:1] != kombu_types.MARK:
        return unwrapped(raw)
    value = kombu_types.loads(bytes(raw))
    if not isinstance(value, bytes):
        raise ValueError(f'send bytes, or {{"{BASE64}": "…"}}')  # noqa: TRY004 - as for any other wrong form
    return value


def _decoder_of(input_type: str, *, views: bool) -> Decode:
    try:
        if input_type == "npy":
            from workers.executor.input_types.npy import array_of

            return partial(array_of, read_only=views)
        if input_type == "arrow":
            from workers.executor.input_types.arrow import table_of

            return table_of
    except ImportError as error:
        package = "pyarrow" if input_type == "arrow" else "numpy"
        raise LoadError(f'input_type = "{input_type}" needs {package}: {error}') from error
    return _view if views else bytes


def _view(raw: bytes | memoryview) -> memoryview:
    return memoryview(raw).toreadonly()
