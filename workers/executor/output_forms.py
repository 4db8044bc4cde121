"""Outputs in the form that a request asks for: JSON unless it says otherwise.

    "encoding_format": "base64"   to an `embed` model: its vector as base64 of float32   (`workers.executor.vectors`)
    "$output": "npy"              an array, or numbers: a .npy file
    "$output": "arrow"            a table, an array, columns or records: a stream of Arrow's IPC format
    "$output": "FP32", …          more than a few numbers: a .npy file with elements of that datatype of KServe's

The frontend adds the second for `Accept: application/x-npy`, the third for Arrow's media type, the fourth for KServe's
callers who want tensors in binary form; the model sees none.
An output that has no such form keeps its own. Bytes are told from text by `output_type` in the metadata.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from bunch import Output
from tasks.protocol.binary import ARROW, CONTENT_TYPE, NPY, OUTPUT
from tasks.protocol.tensors import CODES
from workers.executor.outputs import IS_BYTES, RawBytes
from workers.executor.tensors import as_few_numbers, as_tensor
from workers.executor.vectors import packed, takes_format
from workers.models import InvalidInput

Form: TypeAlias = Callable[[Any], Any]
"""Gives an output another form. Raises whatever an array's own code raises."""

# The name of the only column of a table that is made of an array.
_COLUMN = "output"
NPY_TYPE = "application/x-npy"
_ABOUT_NPY = b'"%b":"%b",%b' % (CONTENT_TYPE.encode(), NPY_TYPE.encode(), IS_BYTES)


def take_form(parameters: dict[str, Any], *, packs: bool) -> Form | None:
    """Take the form out of a request's parameters; None: it asks for none. `packs`: the model's outputs are vectors."""
    if packs and takes_format(parameters):
        return packed
    return _FORMS[parameters.pop(OUTPUT)] if OUTPUT in parameters else None


def require_form(parameters: dict[str, Any]) -> None:
    """Raise InvalidInput, if a request asks for a form that there is not: it may be any value of JSON."""
    form = parameters.get(OUTPUT, NPY)
    if not isinstance(form, str) or form not in _FORMS:
        raise InvalidInput(f'parameters["{OUTPUT}"] must be {" or ".join(map(repr, _FORMS))}')


def _with(output: Any, encoded: Callable[[Any], bytes | None], content_type: str) -> Any:
    value, metadata = (output.value, output.metadata) if isinstance(output, Output) else (output, {})
    if isinstance(value, BaseException | str | bytes) or value is None:
        return output
    raw = encoded(value)
    if raw is None or not isinstance(metadata, Mapping):
        return output
    return Output(raw, {**metadata, CONTENT_TYPE: content_type})


def _npy(value: Any) -> bytes | None:
    try:
        import numpy as np
    except ImportError:
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        # Ragged, or a tensor on a device.
        to_list = getattr(value, "tolist", None)
        if to_list is None:
            return None
        array = np.asarray(to_list())
    if array.dtype.hasobject or array.dtype.kind in "SUV":
        return None
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def _arrow(value: Any) -> bytes | None:
    try:
        import pyarrow as pa
    except ImportError:
        return None
    try:
        table = _table(pa, value)
        if table is None:
            return None
        file = io.BytesIO()
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write(table)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return file.getvalue()


def _table(pa: Any, value: Any) -> Any:
    """A table with the value; None if it is none. Raises ArrowException, TypeError, ValueError."""
    if isinstance(value, pa.Table | pa.RecordBatch):
        return value
    if isinstance(value, Mapping):
        return pa.table(dict(value))
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        return pa.Table.from_pylist(value)
    shape = getattr(value, "shape", None)
    if shape is not None:
        value = list(value) if len(shape) > 1 else value
    elif not isinstance(value, list | pa.Array | pa.ChunkedArray):
        return None
    return pa.table({_COLUMN: value})


def _as_tensor(datatype: str, output: Any) -> Any:
    if isinstance(output, Output | BaseException | str | bytes):
        return _with(output, lambda value: as_tensor(value, datatype), NPY_TYPE)
    if (small := as_few_numbers(output)) is not None:
        return small
    # What there is to tell of a row is always the same.
    raw = as_tensor(output, datatype)
    return output if raw is None else RawBytes(raw, _ABOUT_NPY)


_FORMS: dict[str, Form] = {
    NPY: lambda output: _with(output, _npy, NPY_TYPE),
    ARROW: lambda output: _with(output, _arrow, "application/vnd.apache.arrow.stream"),
    **{datatype: partial(_as_tensor, datatype) for datatype in CODES},
}
