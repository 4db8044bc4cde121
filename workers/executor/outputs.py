"""Converts a model's return value to one strict JSON text per input, or to an error text.

predict ──▶ a list, an array or a tensor ──as_list──▶ n outputs ──outcome_of──▶ Ok: JSON bytes
              anything else: nobody's                      │  Output ──▶ value, and metadata_of
                                                           └─ cannot be JSON: that input's error alone
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from batching.request import OWN_METADATA, RAW_BYTES, Ok, Words, quoted_base64
from tasks.protocol.binary import CONTENT_TYPE, OUTPUT_TYPE
from tasks.protocol.json_structure import MAX_DEPTH, too_deep
from workers.executor.faults.exception_text import ItemError, describe
from workers.models import Output

MAX_METADATA_BYTES = 16_384
_BYTES = frozenset({bytes, bytearray, memoryview})
IS_BYTES = b'"%b":"bytes"' % OUTPUT_TYPE.encode()
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PLAIN = frozenset({str, int, bool})
_SCALARS = frozenset({str, int, float, bool, type(None)})


class RawBytes(NamedTuple):
    """An output that a form has made: bytes, with all of their metadata."""

    data: bytes
    metadata: bytes


def as_list(outputs: object, count: int, *, rows: bool = False) -> list[Any] | str:
    """The outputs of `count` inputs, or the error text if `predict` has returned something else.

    A dict has a length too, and a generator may yield the right number; but only a list, and an array by its first
    dimension, define which output belongs to which input. With `rows` those of an array stay arrays. Raises whatever
    an array's own code raises.
    """
    if not isinstance(outputs, list):
        kind = type(outputs).__name__
        array = _as_array(outputs)
        shape = getattr(array, "shape", None)
        to_list = getattr(array, "tolist", None)
        if not isinstance(shape, tuple) or not callable(to_list):
            return (
                f"the model returned a {kind} for {count} inputs; predict must return a list of one output each, or an "
                "array whose first dimension is their number"
            )
        if not shape or shape[0] != count:
            return (
                f"the model returned a {kind} of shape {tuple(shape)} for {count} inputs; its first dimension must be "
                "their number"
            )
        outputs = [array[n] for n in range(count)] if rows else to_list()
        if not isinstance(outputs, list):
            return f"the model returned a {kind} for {count} inputs whose tolist() gives no list"
    if len(outputs) != count:
        return f"the model returned {len(outputs)} outputs for {count} inputs; predict must return one each"
    return outputs


def _as_array(value: Any) -> Any:
    """An object with `tolist` as it is; anything else of numpy's array protocol as its array; None otherwise.

    A tensor of TensorFlow or a frame of pandas has no `tolist`.
    """
    if isinstance(value, type):
        return None
    if hasattr(value, "tolist"):
        return value
    to_array = getattr(value, "__array__", None)
    return to_array() if callable(to_array) else None


def outcome_of(output: object, max_bytes: int = 0) -> Ok | ItemError:
    """The outcome of one output with its metadata. `max_bytes` as in `encode_output`.

    Raises whatever the output's own code raises when its type is checked.
    """
    if type(output) is RawBytes:
        return _bytes_outcome(output.data, output.metadata, max_bytes)
    metadata = b""
    if isinstance(output, Output):
        told = metadata_of(output)
        if isinstance(told, ItemError):
            return told
        metadata, output = told, output.value
    if type(output) in _BYTES:
        return _bytes_outcome(output, metadata, max_bytes)
    encoded = encode_output(output, max_bytes)
    return Ok(encoded, metadata) if isinstance(encoded, bytes) else encoded


def plain_outcomes(outputs: list[Any], max_bytes: int) -> list[Ok] | None:
    """`outcome_of` for each of a batch, without a loop in Python; None where they must be looked at one by one.

    Nothing can be wrong with a text, an integer or a boolean but its size.
    """
    if not set(map(type, outputs)) <= _PLAIN:
        return None
    try:
        encoded = list(map(_encoder.encode, outputs))
    except Exception:  # noqa: BLE001 - for example half of a surrogate pair: an error of that output alone
        return None
    if 0 < max_bytes < max(map(len, encoded), default=0):
        return None
    return list(map(Ok, encoded))


def _bytes_outcome(output: Any, metadata: bytes, max_bytes: int) -> Ok | ItemError:
    raw = memoryview(output).nbytes > RAW_BYTES
    # What reads it as JSON has it as base64.
    size = len('""') + (memoryview(output).nbytes + 2) // 3 * 4
    if 0 < max_bytes < size:
        return ItemError(f"the model's output is {size} bytes as base64; the limit is {max_bytes}")
    told = metadata if metadata.endswith(IS_BYTES) else _told(metadata)
    return Ok(bytes(output), told, raw=True) if raw else Ok(quoted_base64(output), told)


def _told(metadata: bytes) -> bytes:
    """The metadata of an output that is bytes."""
    # A model that names no media type has said that it is bytes, and no more.
    added = [metadata] if metadata else []
    if CONTENT_TYPE not in _members.decode(b"{%b}" % metadata):
        added.append(b'"%b":"application/octet-stream"' % CONTENT_TYPE.encode())
    return b",".join((*added, IS_BYTES))


def encode_output(output: object, max_bytes: int = 0) -> bytes | ItemError:
    """One output as strict JSON, or the reason why it cannot be. `max_bytes` 0: any size."""
    if isinstance(output, BaseException):
        return describe(output)
    try:
        encoded = _encoder.encode(output)
        wrong = _wrong_with(output, encoded, max_bytes)
    except BaseException as error:  # noqa: BLE001  (a model's objects may raise anything)
        why = describe(error)
        # The values of a tensor are fetched here, so an asynchronous error of the call may show only now.
        message = f"the model's output is not JSON: {why.message}"
        return ItemError(message, device_fault=why.device_fault, words=Words.INPUT)
    return encoded if wrong is None else ItemError(f"the model's output {wrong}")


def _wrong_with(output: object, encoded: bytes, max_bytes: int) -> str | None:
    if 0 < max_bytes < len(encoded):
        return f"is {len(encoded)} bytes of JSON; the limit is {max_bytes}"
    # msgspec writes NaN and the infinities as null; the bytes show cheaply that there is none.
    if b"null" in encoded and _has_non_finite(msgspec.to_builtins(output, enc_hook=_to_list)):
        return "holds NaN or Infinity, which JSON cannot carry"
    if too_deep(encoded):
        return f"is nested more than {MAX_DEPTH} levels deep, which readers refuse"
    if b"{" in encoded and (doubled := _doubled_name(output, encoded)) is not None:
        return f"has two keys in one object that are both {doubled!r} in JSON"
    return None


def metadata_of(output: Output) -> bytes | ItemError:
    """The members of a JSON object, one after the other and without its braces, or the reason why they cannot be
    encoded.
    """
    metadata = output.metadata
    if not isinstance(metadata, Mapping) or not all(isinstance(name, str) for name in metadata):
        return ItemError("the metadata of the model's output must be a dict with strings as keys")
    encoded = encode_output({name: value for name, value in metadata.items() if name not in OWN_METADATA})
    if isinstance(encoded, ItemError):
        return msgspec.structs.replace(encoded, message=f"{encoded.message} (in its metadata)")
    if len(encoded) > MAX_METADATA_BYTES:
        return ItemError(
            f"the metadata of the model's output is {len(encoded)} bytes of JSON; the limit is {MAX_METADATA_BYTES}"
        )
    return encoded[1:-1]


def _doubled_name(output: object, encoded: bytes) -> str | None:
    """A name that appears twice in one object, for example of the keys 1 and "1"; None if there is none."""
    # Read back, one of the two is lost. A large integer may change, too.
    if _is_plain(output) or len(_encoder.encode(msgspec.json.decode(encoded))) == len(encoded):
        return None
    pending = [msgspec.to_builtins(output, enc_hook=_to_list)]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            names = Counter(_as_name(key) for key in each)
            for name, times in names.items():
                if times > 1:
                    return name
            pending.extend(each.values())
        elif isinstance(each, list | tuple | set | frozenset):
            pending.extend(each)
    return None


def _is_plain(output: object) -> bool:
    """Return whether it has only Python's own types, with strings as keys: nearly every output, and quick to check."""
    pending = [output]
    for each in pending:
        kind = type(each)
        if kind is dict:
            for key, value in each.items():  # type: ignore[attr-defined]
                if type(key) is not str:
                    return False
                if type(value) not in _SCALARS:
                    pending.append(value)
        elif kind is list:
            pending += [value for value in each if type(value) not in _SCALARS]  # type: ignore[attr-defined]
        elif kind not in _SCALARS:
            return False
    return True


def _as_name(key: object) -> str:
    """A dict's key as the encoder writes it."""
    return next(iter(msgspec.json.decode(_encoder.encode({key: None}), type=dict[str, None])))


def _to_list(value: Any) -> Any:
    """Converts numpy arrays and scalars, torch tensors and anything else that is an array, at any depth."""
    to_columns = getattr(value, "to_pydict", None)
    if callable(to_columns):
        # A pyarrow table.
        return to_columns()
    to_list = getattr(_as_array(value), "tolist", None)
    if to_list is None:
        raise TypeError(f"{type(value).__name__} has no JSON form")
    listed = to_list()
    if type(listed) is not type(value):
        return listed
    # numpy's long double returns itself; so does a complex one, which JSON does not have.
    if not hasattr(value, "as_integer_ratio"):
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return float(value)


def _has_non_finite(value: Any) -> bool:
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, float):
            if not math.isfinite(each):
                return True
        elif isinstance(each, dict):
            pending.extend(each.values())
        elif isinstance(each, list | tuple | set | frozenset):
            pending.extend(each)
    return False


_encoder = msgspec.json.Encoder(enc_hook=_to_list)
