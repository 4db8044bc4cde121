"""One call of a model for some members of a batch, stage by stage; each stage may run in a thread of its own.

    fresh inputs ──prepare──▶ staged ──predict──▶ raw ──finish──▶ n outputs ──▶ an outcome each

`prepare` and `finish` are optional. Whatever a stage raises is the error of the call. Nothing here keeps an exception:
its frames would keep the batch's tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workers.executor.faults.exception_text import ItemError, describe
from workers.executor.forked import end_if_forked
from workers.executor.outputs import as_list, outcome_of, plain_outcomes
from workers.executor.shapes import ANY_SHAPE, BUCKET, Part, Shapes
from workers.executor.tables import joined, split

if TYPE_CHECKING:
    from workers.executor.compute import Batch


class Stages:
    """The properties of a model that a call needs."""

    __slots__ = ("finishes", "max_output_bytes", "model", "one_table", "plain", "prepares", "shapes")

    def __init__(
        self, model: Any, shapes: Shapes = ANY_SHAPE, max_output_bytes: int = 0, *, one_table: bool = False
    ) -> None:
        self.model = model
        self.one_table = one_table
        self.prepares = callable(getattr(model, "prepare", None))
        self.finishes = callable(getattr(model, "finish", None))
        self.shapes = shapes
        # One call of `predict` with the inputs as they are: nearly every model.
        self.plain = not (self.prepares or self.finishes or shapes.sizes or shapes.buckets or one_table)
        self.max_output_bytes = max_output_bytes

    @property
    def overlap(self) -> bool:
        """Return whether a stage of the model can run beside `predict`."""
        return self.prepares or self.finishes


def tell(batch: Batch, members: list[int], outputs: list[Any] | str, max_output_bytes: int) -> None:
    """Give the outputs of a call to its members, as outcomes, or the error text for all of them. What padding gave is
    cut off.
    """
    if isinstance(outputs, str):
        batch.fail(members, ItemError(outputs))
        batch.miscounted = True
        return
    known, forms = batch.known, batch.forms
    if not forms and (plain := plain_outcomes(outputs, max_output_bytes)) is not None:
        known.update(zip(members, plain, strict=False))
        return
    for index, output in zip(members, outputs, strict=False):
        try:
            known[index] = outcome_of(forms[index](output) if index in forms else output, max_output_bytes)
        except BaseException as error:  # noqa: BLE001 - even asking what it is runs the model's own code
            known[index] = describe(error)


class Call:
    """A call; `error` is set by the stage that failed, and the stages after it do nothing.

    `members` are those that reach `predict`: `prepare` may put an exception in an item's place. `padding` counts the
    inputs beyond them. `spent_s` is the time of all stages.
    """

    __slots__ = ("_batch", "_options", "_rows", "_staged", "_stages", "error", "members", "padding", "part", "spent_s")

    def __init__(self, stages: Stages, batch: Batch, part: Part) -> None:
        self._stages = stages
        self._batch = batch
        self._staged: Any = None
        self._options: list[dict[str, Any]] = []
        # Of each table, where the model gets one for all.
        self._rows: list[int] = []
        self.part = part
        self.members = part.members
        self.padding = 0
        self.error: ItemError | None = None
        self.spent_s = 0.0

    def run(self) -> ItemError | None:
        """All stages, here and now; returns the error, if any."""
        self._guarded(self._all)
        return self.error

    def prepare(self) -> None:
        self._guarded(self._prepare)

    def predict(self) -> None:
        self._guarded(self._predict)

    def finish(self) -> None:
        self._guarded(self._finish)

    def _all(self) -> None:
        self._prepare()
        self._predict()
        self._finish()

    def _prepare(self) -> None:
        staged, options = self._inputs()
        if self._stages.prepares:
            staged = self._stages.model.prepare(staged, options)
            while refused := self._refused(staged, len(options)):
                staged, options = self._without(refused, staged, options)
        self._staged, self._options = staged, options

    def _inputs(self) -> tuple[Any, list[dict[str, Any]]]:
        """Fresh inputs and parameters of the members, and of the last one again and again as padding."""
        members = self.members
        self.padding = self._stages.shapes.size(len(members)) - len(members)
        rows = [*members, *[members[-1]] * self.padding] if self.padding else members
        inputs, options = self._batch.fresh(rows)
        if self.part.bucket:
            for each in options:
                each[BUCKET] = self.part.bucket
        if self._stages.one_table:
            self._rows = [each.num_rows for each in inputs]
            return joined(inputs), options
        return inputs, options

    def _predict(self) -> None:
        if self.members:
            staged, self._staged = self._staged, None
            self._staged = self._stages.model.predict(staged, self._options)

    def _finish(self) -> None:
        if not self.members:
            return
        stages, batch = self._stages, self._batch
        raw, self._staged = self._staged, None
        outputs = stages.model.finish(raw) if stages.finishes else raw
        if stages.one_table:
            outputs = split(outputs, self._rows)
        else:
            outputs = as_list(outputs, len(self.members) + self.padding, rows=bool(batch.forms))
        tell(batch, self.members, outputs, stages.max_output_bytes)

    def _refused(self, staged: Any, rows: int) -> dict[int, BaseException]:
        """The members in whose place `prepare` has put an exception, by position; padding is the last member's."""
        if self._stages.one_table or not isinstance(staged, list) or len(staged) != rows:
            return {}
        last = len(self.members) - 1
        return {min(n, last): each for n, each in enumerate(staged) if isinstance(each, BaseException)}

    def _without(
        self, refused: dict[int, BaseException], staged: Any, options: list[dict[str, Any]]
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Leave out the refused members; where padding must fill their place, prepare all anew.

        `predict` may work in place, so a row of padding must not be the object of an item.
        """
        for n, error in refused.items():
            self._batch.known[self.members[n]] = describe(error)
        rows = [n for n in range(len(self.members)) if n not in refused]
        self.members = [self.members[n] for n in rows]
        self.padding = self._stages.shapes.size(len(rows)) - len(rows) if rows else 0
        if not self.padding:
            return [staged[n] for n in rows], [options[n] for n in rows]
        inputs, options = self._inputs()
        return self._stages.model.prepare(inputs, options), options

    def _guarded(self, stage: Callable[[], None]) -> None:
        if self.error is not None:
            return
        began = time.perf_counter()
        try:
            stage()
        except BaseException as error:  # noqa: BLE001
            # SystemExit and asyncio.CancelledError too: a library that ends "the program" must not end the executor.
            end_if_forked(error)
            self.error = describe(error)
            self._staged = None
        else:
            end_if_forked()
        self.spent_s += time.perf_counter() - began
