"""Computes one batch with one model: decode, predict, and exactly one outcome per input, whatever the model does.

    inputs ──decode──▶ refuse? ──▶ call ──▶ one output each ──encode──▶ JSON bytes
              │          │          │             │                │
              rejected   rejected   raised:       contract broken: that item's error
                                    halve it      all of the pass  (or it *is* an exception)

A call is `predict`, with `prepare` before and `finish` after it where the model has them (`workers.executor.call`).

An exception does not say which input caused it, so the batch runs again in halves, down to the culprit, which alone
fails: about 2·log2(n) extra passes for each. A model that fails for every input is recognised by the number of passes
without a success, and the rest fails with it. Out of memory is halved too, after one more try with what torch had
reserved for nothing; the worker is told the size that fitted, unless the halves lead to one input that is too large by
itself. A transient error is not halved, but returned to the
worker, which tries the whole batch again; on the last try it is halved like any other.

An error that poisons the process is not halved: the rest would fail too (`workers.executor.faults.health`).

The error of a call with several inputs may quote any of them, and is marked so: no caller can read it
(`tasks.protocol.disclosure`).

It runs in the executor's process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from time import perf_counter
from typing import Any

import msgspec
from msgspec import structs

from batching.request import Done, Failed, Ok, Rejected, Words, Work
from tasks.client.submission import NO_PARAMETERS
from tasks.protocol.traceparent import is_sampled
from workers.executor.batch_budget import Budget, cut
from workers.executor.call import Call, Stages, tell
from workers.executor.device_memory import free_unused
from workers.executor.faults.exception_text import ItemError, describe
from workers.executor.faults.health import LAST_WORDS, Harvest, Health, Sample, barren_limit
from workers.executor.forked import end_if_forked
from workers.executor.input_types import ReadInput, read_all, read_json, read_no_bytes
from workers.executor.ipc import Fault
from workers.executor.output_forms import Form, require_form, take_form
from workers.executor.outputs import as_list
from workers.executor.shapes import ANY_SHAPE, Part, Shapes
from workers.executor.shared_bytes import SharedBytes
from workers.executor.tables import kind_of
from workers.models import InputRejected, InvalidInput, Model


class BatchComputer:
    """Runs a loaded model over batches of JSON.

    Args:
        refuse: the refusal of an input that must not reach the model, or None.
        on_pass: called before each call of predict except the first of a batch: the batch is alive, its time restarts.
        budget: the budget of one call, or None.
        shapes: the shapes of a call.
        collapse: equal inputs with equal parameters are computed once, and share the outcome.
        watched: whether the process can be poisoned. One that only calls a remote API cannot.
        max_output_bytes: limit of one output, as JSON; 0: any size.
        continue_trace: called before each call with the trace that it is part of, or "".
        packs: requests may ask for vectors in base64 (`workers.executor.vectors`).
        read_input: reads one input.
        one_table: the model gets one table with the rows of all inputs (`workers.executor.tables`).
    """

    def __init__(
        self,
        model: Model,
        refuse: Callable[[Any], InputRejected | None] | None = None,
        on_pass: Callable[[], None] = lambda: None,
        budget: Budget | None = None,
        *,
        shapes: Shapes = ANY_SHAPE,
        collapse: bool = False,
        watched: bool = False,
        max_output_bytes: int = 0,
        continue_trace: Callable[[str], None] | None = None,
        packs: bool = False,
        read_input: ReadInput = read_no_bytes,
        one_table: bool = False,
    ) -> None:
        self._read_input = read_input
        self._stages = Stages(model, shapes, max_output_bytes, one_table=one_table)
        self._shapes = shapes
        # A batch is one call, unless memory has run out.
        self._whole = budget is None and shapes == ANY_SHAPE
        self._refuse = refuse
        self._on_pass = on_pass
        self._budget = budget
        self._collapse = collapse
        self._health = Health(self._retry) if watched else None
        self._continue_trace = continue_trace
        self._packs = packs

    def decode(self, work: Work) -> Batch:
        """Decode a batch. It uses no code of the model, so another thread may run it meanwhile."""
        return Batch(work, self._decode, collapse=self._collapse, packs=self._packs, values=self._values(work))

    @property
    def overlaps(self) -> bool:
        """Return whether a stage of the model can run beside `predict`."""
        return self._stages.overlap

    def only_call(self, batch: Batch) -> Call | None:
        """The call of a batch that needs one and may share this process; None: it must run by itself."""
        parts = [] if batch.work.suspect else self._parts(batch)
        return Call(self._stages, batch, parts[0]) if len(parts) == 1 else None

    def outcome(self, batch: Batch, call: Call) -> Done | None:
        """The outcomes of a batch after its only call; None if the call failed, or makes the process suspicious."""
        if call.error is not None:
            return None
        if self._health is not None and not self._health.went_well(batch.harvest()):
            return None
        work = batch.work
        return Done(work.batch_id, call.spent_s, batch.outcomes(), 1, None, len(batch.same), call.padding)

    def compute(self, batch: Batch, first: Call | None = None) -> tuple[Done | None, Fault | None]:
        """The outcomes of the batch, and the fault of this process, if any.

        A fault that is not settled comes without outcomes. `first` is a call of the whole batch that has been made
        beside another batch.
        """
        work, health = batch.work, self._health
        fault = health.before(suspect=work.suspect) if health and work.may_end else None
        if fault is not None:
            return None, fault
        done = self._compute(batch, first)
        if health is None or not batch.members:
            return done, None
        harvest = batch.harvest()
        fault = health.after(harvest, suspect=work.suspect, may_end=work.may_end, alone=first is None)
        if fault is None:
            return done, None
        if not fault.settled:
            return None, fault
        # Outputs that were computed before the fault showed are not trusted.
        through = [each for each in batch.members if isinstance(batch.known[each], Ok)]
        batch.fail(through, ItemError(LAST_WORDS[fault.cause]))
        return structs.replace(done, outcomes=batch.outcomes()), fault

    def _compute(self, batch: Batch, first: Call | None) -> Done:
        work, shapes = batch.work, self._shapes
        parts = [first.part] if first is not None else self._parts(batch)
        # Calls that the lengths of the inputs, or their columns, require are not passes in search of a culprit.
        planned = len(parts) if shapes.buckets or self._stages.one_table else 1
        called = barren = padding = 0
        compute_s = 0.0
        learned: int | None = None
        freed = False
        while parts:
            part = parts.pop()
            members = part.members
            if called:
                self._on_pass()
            called += 1
            if self._stages.plain:
                began = perf_counter()
                error = self._predict(batch, members)
                compute_s += perf_counter() - began
            else:
                call, first = first or self._called(batch, part), None
                error = call.error
                compute_s += call.spent_s
                padding += call.padding
                # What `prepare` has refused has its answer, whatever becomes of the others.
                members = call.members
            if error is None:
                barren = 0
                continue
            if error.out_of_memory and not freed and free_unused():
                freed = True
                parts.append(part._replace(members=members))
                continue
            # A refusal of one input by an exception is an answer as well: the model works.
            barren = 0 if error.rejected and len(members) == 1 else barren + 1
            smaller = shapes.smaller(len(members)) if error.out_of_memory else 0
            if error.out_of_memory:
                # Too large even alone: that is the input's fault, and says nothing about how many others fit.
                learned = (smaller or len(members) // 2 or None) if len(members) > 1 else None
            hopeless = error.device_fault or (error.retryable and not work.last_try)
            if len(members) == 1 or hopeless or barren > barren_limit(len(batch.members), error):
                batch.fail(members, error if len(members) == 1 else _of_the_call(error))
                if hopeless or len(members) > 1:
                    # Not because of one input: the rest would fail in the same way.
                    for rest in parts:
                        batch.fail(rest.members, _of_the_call(error))
                    break
            else:
                # With sizes, a half may be padded to the same size again, which memory has no room for.
                parts += [part._replace(members=each) for each in cut(members, smaller or -(-len(members) // 2))]
        passes = max(1, called - planned + 1) if called else 0
        return Done(work.batch_id, compute_s, batch.outcomes(), passes, learned, len(batch.same), padding)

    def _parts(self, batch: Batch) -> list[Part]:
        """Split into calls within the budget, the shapes and the device's memory; the last one is run first."""
        shapes, budget = self._shapes, self._budget
        if not batch.members:
            return []
        if self._stages.one_table:
            return [
                Part(piece) for kind in batch.by_kind(kind_of) for piece in cut(kind, shapes.most(batch.work.safe_size))
            ]
        if self._whole and batch.work.safe_size is None:
            return [Part(batch.members)]
        most = shapes.most(batch.work.safe_size)
        if shapes.length is not None:
            return shapes.by_bucket(*batch.measured(shapes.length, shapes.buckets[-1]), most)[::-1]
        if budget is None:
            return [Part(piece) for piece in cut(batch.members, most)]
        parts = budget.parts(*batch.measured(budget.cost))[::-1]
        return [Part(piece) for part in parts for piece in cut(part, most)]

    def _predict(self, batch: Batch, members: list[int]) -> ItemError | None:
        """A plain call of the model; returns its error, if any."""
        if self._continue_trace is not None:
            self._continue_trace(batch.trace_of(members))
        try:
            returned = self._stages.model.predict(*batch.fresh(members))
            outputs = as_list(returned, len(members), rows=bool(batch.forms))
            tell(batch, members, outputs, self._stages.max_output_bytes)
        except BaseException as error:  # noqa: BLE001
            # SystemExit and asyncio.CancelledError too: a library that ends "the program" must not end the executor.
            end_if_forked(error)
            return describe(error)
        end_if_forked()
        return None

    def _called(self, batch: Batch, part: Part) -> Call:
        """A call of the model that has gone through its stages."""
        call = Call(self._stages, batch, part)
        call.run()
        return call

    def _error_of(self, batch: Batch, part: Part) -> ItemError | None:
        return self._predict(batch, part.members) if self._stages.plain else self._called(batch, part).error

    def warm_up(self, raw: bytes) -> ItemError | None:
        """Run a call of every shape, the largest first, with copies of one input; returns the first error, if any."""
        for bucket in self._shapes.buckets[::-1] or (0,):
            for size in self._shapes.sizes[::-1]:
                batch = Batch(Work("", [raw] * size, [b"{}"] * size), self._decode)
                error = self._called(batch, Part(batch.members, bucket)).error if batch.members else None
                wrong = error or next((each for each in batch.known.values() if isinstance(each, ItemError)), None)
                if wrong is not None:
                    return wrong
        return None

    def _retry(self, sample: Sample) -> ItemError | None:
        """Run an input again that succeeded before; returns the error, if any."""
        self._on_pass()
        raw, options, is_bytes = sample
        again = Batch(Work("", [raw], [options], raw=[0] * is_bytes), self._decode, packs=self._packs)
        errors = [self._error_of(again, part) for part in self._parts(again)]
        outcome = (errors and errors[0]) or again.known[0]
        return outcome if isinstance(outcome, ItemError) and not outcome.rejected else None

    def _values(self, work: Work) -> list[Any] | None:
        """All inputs, if they can be read at once: as JSON, without parameters and refusals. Else None."""
        if self._refuse or self._read_input is not read_no_bytes or work.raw or set(work.parameters) != {NO_PARAMETERS}:
            return None
        return read_all(work.inputs)

    def _decode(self, raw: bytes | SharedBytes, raw_parameters: bytes, is_bytes: bool) -> tuple[Any, dict[str, Any]]:
        try:
            value = self._read_input(raw, is_bytes)
            # Most requests have none, and this is done for each.
            parameters = {} if raw_parameters == NO_PARAMETERS else read_json(raw_parameters)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidInput(f"not valid JSON: {error}") from None
        if not isinstance(parameters, dict):
            raise InvalidInput("parameters must be an object")
        if parameters:
            require_form(parameters)
        refusal = self._refuse(value) if self._refuse else None
        if refusal is not None:
            raise refusal
        return value, parameters


class Batch:
    """The inputs of one batch, and the state of each. `members` are those that reach the model, `forms` has the form of
    the output of each that asks for one.
    """

    def __init__(
        self,
        work: Work,
        decode: Callable[[bytes, bytes, bool], tuple[Any, dict[str, Any]]],
        *,
        collapse: bool = False,
        packs: bool = False,
        values: list[Any] | None = None,
    ) -> None:
        self.work = work
        self._packs = packs
        self.forms: dict[int, Form] = {}
        is_bytes = [False] * len(work.inputs)
        for index in work.raw:
            is_bytes[index] = True
        self._raw: list[Sample] = list(zip(work.inputs, work.parameters, is_bytes, strict=True))
        self._decode = decode
        self._decoded: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.known: dict[int, Ok | ItemError] = {}
        # Index → index of the first equal input.
        self.same = _repeats(self._raw) if collapse and len(set(work.inputs)) < len(work.inputs) else {}
        if values is not None and not self.same:
            self._decoded = {index: (value, {}) for index, value in enumerate(values)}
        else:
            self._decode_each()
        self.members = list(self._decoded)
        # Whether the model returned a wrong number of outputs, which proves that it could compute.
        self.miscounted = False

    def _decode_each(self) -> None:
        for index, sample in enumerate(self._raw):
            if index in self.same:
                continue
            try:
                self._decoded[index] = self._decode(*sample)
            except Exception as error:  # noqa: BLE001 - a refusal, or no memory for it: nobody else's affair
                self.known[index] = describe(error)

    def fresh(self, members: list[int]) -> tuple[list[Any], list[dict[str, Any]]]:
        """Inputs and parameters that no call has seen: a model's changes of its inputs stay within that call."""
        pairs = [
            self._decoded.pop(index) if index in self._decoded else self._decode(*self._raw[index]) for index in members
        ]
        parameters = [options for _, options in pairs]
        if any(parameters):
            for index, options in zip(members, parameters, strict=True):
                if options and (form := take_form(options, packs=self._packs)) is not None:
                    self.forms[index] = form
        return [value for value, _ in pairs], parameters

    def measured(self, measure: Callable[[Any], int], most: int | None = None) -> tuple[list[int], list[int]]:
        """The members and the cost or length of each. An input that cannot be measured, or has more than `most`, fails
        alone, and is removed.
        """
        values = []
        for index in self.members:
            try:
                value = int(measure(self._decoded[index][0]))
            except BaseException as error:  # noqa: BLE001 - the model's own code may raise anything
                end_if_forked(error)
                self.known[index] = describe(error)
                continue
            if most is not None and value > most:
                self.known[index] = describe(InputRejected(f"the input has length {value}; the limit is {most}"))
            else:
                values.append(value)
        self.members = [index for index in self.members if index not in self.known]
        return self.members, values

    def by_kind(self, kind_of: Callable[[Any], Hashable]) -> list[list[int]]:
        """The members whose inputs are of one kind, for each."""
        kinds: dict[Hashable, list[int]] = {}
        for index in self.members:
            kinds.setdefault(kind_of(self._decoded[index][0]), []).append(index)
        return list(kinds.values())

    def fail(self, members: list[int], error: ItemError) -> None:
        for index in members:
            self.known[index] = error

    def trace_of(self, members: list[int]) -> str:
        """The trace of a call with these members: that of the first recorded one, else the first; empty without any.

        A call has one parent. The others' traces have the worker's own spans of the batch, which are linked.
        """
        traceparents = self.work.traceparents
        if not traceparents:
            return ""
        theirs = [each for each in (traceparents[index] for index in members) if each]
        return next(filter(is_sampled, theirs), theirs[0] if theirs else "")

    def harvest(self) -> Harvest:
        return Harvest(self.members, self._raw, self.known, miscounted=self.miscounted)

    def outcomes(self) -> list[Ok | Rejected | Failed]:
        known = [self.known[self.same.get(index, index)] for index in range(len(self._raw))]
        if set(map(type, known)) == {Ok}:
            # Nearly always true.
            return known  # type: ignore[return-value]
        return [each if isinstance(each, Ok) else each.outcome() for each in known]


def _repeats(raw: Sequence[Sample]) -> dict[int, int]:
    """For each repeated one, the index of its first occurrence. Spelling counts; frontends use one for each value."""
    first: dict[Sample, int] = {}
    return {index: seen for index, each in enumerate(raw) if (seen := first.setdefault(each, index)) != index}


def _of_the_call(error: ItemError) -> ItemError:
    """An error as the outcome of inputs that it may not be about: not a refusal, and not readable by callers."""
    return structs.replace(error, rejected=False, exc_type=ItemError("").exc_type, words=Words.CALL)
