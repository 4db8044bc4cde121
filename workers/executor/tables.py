"""One table for a whole batch, for a model of tables that says `one_table = True`.

    n tables ──joined──▶ one table, in one piece ──predict──▶ as many rows ──split──▶ n slices, without a copy

No value is looked at: the columns are copied once, end to end, and the outputs are views. Tables whose columns differ
are not joined; each kind is a call of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def kind_of(table: pa.Table) -> Hashable:
    """Equal for tables that can be joined: same names and types of columns, in one order."""
    kind: Hashable = table.schema.remove_metadata()
    return kind


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of all rows, in which each column is one piece."""
    import pyarrow as pa

    whole = pa.concat_tables([each.replace_schema_metadata(None) for each in tables])
    return whole.combine_chunks()


def split(returned: Any, counts: Sequence[int]) -> list[Any] | str:
    """The rows of each input, whose table had so many; or the error text if `predict` has returned anything else."""
    total = sum(counts)
    rows = _rows_in(returned)
    if rows != total:
        given = f"a {type(returned).__name__}" + ("" if rows is None else f" of {rows} rows")
        return (
            f"the model returned {given} for a table of {total} rows; with one_table, predict must return a table, an "
            "array or a list with a row for each"
        )
    cuts = [0, *accumulate(counts)]
    if hasattr(returned, "slice"):
        return [returned.slice(begin, count) for begin, count in zip(cuts, counts, strict=False)]
    return [returned[begin : begin + count] for begin, count in zip(cuts, counts, strict=False)]


def _rows_in(returned: Any) -> int | None:
    """The rows of what can be cut into slices; None for anything else."""
    rows = getattr(returned, "num_rows", None)
    if rows is None and (isinstance(returned, list) or hasattr(returned, "slice")):
        rows = len(returned)
    if rows is None:
        shape = getattr(returned, "shape", None)
        rows = shape[0] if isinstance(shape, tuple) and shape else None
    return rows if isinstance(rows, int) else None
