"""Shapes: flat lists ⇄ rows of nested lists. Pure.

    [1, 2, 3, 4, 5, 6], shape [3, 2] ──rows_of──▶ [[1, 2], [3, 4], [5, 6]] ──flattened──▶ flat again, and the shape

The first dimension counts rows: each is a request. A model declares the shape of one row, with -1 where it varies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

from tasks.errors import InferenceFailed, InvalidInput
from tasks.protocol.json_structure import MAX_PARTS

MAX_DIMENSIONS = 32


def checked_shape(shape: Sequence[int], name: str, most_rows: int) -> int:
    """Return the number of elements. Raises InvalidInput for a shape that no tensor here can have."""
    if not shape:
        raise InvalidInput(f"{name}: its shape is []; the first dimension is the number of rows, so send [1]")
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidInput(f"{name}: its shape has more than {MAX_DIMENSIONS} dimensions")
    if min(shape) < 0:
        raise InvalidInput(f"{name}: its shape has a dimension below 0")
    if shape[0] > most_rows:
        raise InvalidInput(f"{name}: {shape[0]} rows; at most {most_rows} in one call")
    # Each list of the nested form is one, also where an inner dimension is 0.
    lists = 1
    for size in shape[:-1]:
        lists *= size
        if lists > MAX_PARTS:
            raise InvalidInput(f"{name}: its shape makes more than {MAX_PARTS:,} lists")
    return lists * shape[-1]


def matches(row_shape: Sequence[int], shape: Sequence[int]) -> bool:
    """True if rows of `shape` are as declared. A row of a single value may also come as a list of one."""
    if not row_shape:
        return not shape or list(shape) == [1]
    return len(row_shape) == len(shape) and all(want in {-1, size} for want, size in zip(row_shape, shape, strict=True))


def flat_data(data: list[Any], shape: Sequence[int], name: str) -> list[Any]:
    """Flatten JSON `data`, which is flat or nested as the shape says. Raises InvalidInput."""
    count = prod(shape)
    if list not in map(type, data):
        if len(data) != count:
            raise InvalidInput(f"{name}: {len(data)} elements of data, but its shape has {count}")
        return data
    for depth, size in enumerate(shape):
        if depth:
            if any(type(each) is not list or len(each) != size for each in data):
                raise InvalidInput(f"{name}: its data is nested otherwise than its shape says")
            data = list(chain.from_iterable(data))
        elif len(data) != size:
            raise InvalidInput(f"{name}: {len(data)} rows of data, but its shape has {size}")
    return data


def rows_of(values: list[Any], shape: Sequence[int], row_shape: Sequence[int]) -> list[Any]:
    """Return the rows of a flat list, nested as a row of the declared shape is."""
    inner = shape[: len(row_shape) + 1]
    for depth in range(len(inner) - 1, 0, -1):
        size = inner[depth]
        values = [values[at * size : (at + 1) * size] for at in range(prod(inner[:depth]))]
    return values


def flattened(rows: list[Any], row_shape: Sequence[int], name: str) -> tuple[list[Any], list[int]]:
    """Flatten the rows of an output; returns the elements and the shape of all of them.

    Raises:
        InferenceFailed: a row is not as declared, or not as long as its neighbours.
    """
    shape = [len(rows)]
    for declared in row_shape:
        if any(type(each) is not list for each in rows):
            raise InferenceFailed(f"the model's output {name} has fewer dimensions than it declares")
        sizes = set(map(len, rows))
        if len(sizes) > 1:
            raise InferenceFailed(f"the rows of the model's output {name} differ in shape; send one at a time")
        size = sizes.pop() if sizes else max(declared, 0)
        if declared not in {-1, size}:
            raise InferenceFailed(f"the model's output {name} has {size} where it declares {declared}")
        shape.append(size)
        rows = list(chain.from_iterable(rows))
    return rows, shape
