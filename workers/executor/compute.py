"""One batch through one model: decode, predict, and exactly one outcome per input, whatever the model does.

    inputs ──decode──▶ refuse? ──▶ predict ──▶ one output each ──encode──▶ JSON bytes
              │          │           │             │                │
              rejected   rejected    raised:       contract broken: that item's error
                                     halve it      all of the pass  (or it *is* an exception)

An exception says nothing about which input it is for, so the batch is run again in halves, down to the culprit, which
alone fails: about 2·log2(n) extra passes for each. A model that fails whatever it is given is told by that: no pass has
come through after so many, and the rest fails with it. Out of memory is halved too, and the worker is told which size
had room, unless the halves lead to one input that is too large by itself. An error that may pass is not halved, but put
to the worker, which tries all of it again; on the last try it is halved like any other.

What poisons the process is not halved: the rest would fail of it too (`workers.executor.faults.health`).

What was said of a call with several inputs may quote any of them, and is marked so: no caller reads it
(`tasks.protocol.disclosure`).

Runs in the executor's child process. Nothing here holds on to an exception: its frames would hold the batch's tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import structs

from batching.request import Done, Failed, Ok, Rejected, Words, Work
from tasks.protocol import kombu_types
from tasks.protocol.traceparent import is_sampled
from workers.executor.batch_budget import Budget, cut
from workers.executor.faults.exception_text import ItemError, describe
from workers.executor.faults.health import LAST_WORDS, Harvest, Health, Sample, barren_limit
from workers.executor.forked import end_if_forked
from workers.executor.ipc import Fault
from workers.executor.outputs import as_list, outcome_of
from workers.models import InputRejected, InvalidInput, Model


class BatchComputer:
    """Runs a loaded model over batches of JSON.

    Args:
        refuse: what to say to an input that must not reach the model, or None.
        on_pass: called before each call of predict but a batch's first: the batch is alive, its time starts anew.
        budget: what one call may cost, or None.
        collapse: equal inputs with equal parameters go to the model once, and share what comes of it.
        watched: whether its process can be poisoned. One that only asks somebody else cannot.
        max_output_bytes: of one output, as JSON; 0: any size.
        continue_trace: told, before each call, the trace that it is part of, or an empty text.
    """

    def __init__(
        self,
        model: Model,
        refuse: Callable[[Any], InputRejected | None] | None = None,
        on_pass: Callable[[], None] = lambda: None,
        budget: Budget | None = None,
        *,
        collapse: bool = False,
        watched: bool = False,
        max_output_bytes: int = 0,
        continue_trace: Callable[[str], None] | None = None,
    ) -> None:
        self._model = model
        self._refuse = refuse
        self._on_pass = on_pass
        self._budget = budget
        self._collapse = collapse
        self._health = Health(self._retry) if watched else None
        self._max_output_bytes = max_output_bytes
        self._continue_trace = continue_trace

    def decode(self, work: Work) -> Batch:
        """Touches no code of the model, so another thread may do it meanwhile."""
        return Batch(work, self._decode, collapse=self._collapse)

    def compute(self, batch: Batch) -> tuple[Done | None, Fault | None]:
        """What came of the batch, once, and why this process is done for, if it is.

        With a fault that is not settled there are no outcomes.
        """
        work, health = batch.work, self._health
        fault = health.before(suspect=work.suspect) if health and work.may_end else None
        if fault is not None:
            return None, fault
        done = self._compute(batch)
        if health is None or not batch.members:
            return done, None
        fault = health.after(batch.harvest(), suspect=work.suspect, may_end=work.may_end)
        if fault is None:
            return done, None
        if not fault.settled:
            return None, fault
        # What had come through before the fault showed is not to be trusted.
        through = [each for each in batch.members if isinstance(batch.known[each], Ok)]
        batch.fail(through, ItemError(LAST_WORDS[fault.cause]))
        return structs.replace(done, outcomes=batch.outcomes()), fault

    def _compute(self, batch: Batch) -> Done:
        work = batch.work
        passes = 0
        barren = 0
        compute_s = 0.0
        learned: int | None = None
        parts = [piece for part in self._affordable(batch)[::-1] for piece in cut(part, work.safe_size)]
        while parts:
            members = parts.pop()
            if passes:
                self._on_pass()
            passes += 1
            began = time.perf_counter()
            error = self._predict(batch, members)
            compute_s += time.perf_counter() - began
            if error is None:
                barren = 0
                continue
            # One input refused by raising is an answer as well: the model works.
            barren = 0 if error.rejected and len(members) == 1 else barren + 1
            if error.out_of_memory:
                # Too large even alone: that is the input's fault, and says nothing about how many others fit.
                learned = len(members) // 2 or None
            hopeless = error.device_fault or (error.retryable and not work.last_try)
            if len(members) == 1 or hopeless or barren > barren_limit(len(batch.members), error):
                batch.fail(members, error if len(members) == 1 else _of_the_call(error))
                if hopeless or len(members) > 1:
                    # Not for one input's sake: the rest would fail in the same way.
                    for rest in parts:
                        batch.fail(rest, _of_the_call(error))
                    break
            else:
                half = len(members) // 2
                parts += (members[half:], members[:half])
        return Done(work.batch_id, compute_s, batch.outcomes(), passes, learned, len(batch.same))

    def _affordable(self, batch: Batch) -> list[list[int]]:
        """Into parts that keep to the budget; the first one is run first."""
        if self._budget is None or not batch.members:
            return [batch.members]
        return self._budget.parts(*batch.weighed(self._budget.cost))

    def _predict(self, batch: Batch, members: list[int]) -> ItemError | None:
        """One call of the model; what it raised, if it did."""
        if self._continue_trace is not None:
            self._continue_trace(batch.trace_of(members))
        try:
            outputs = as_list(self._model.predict(*batch.fresh(members)), len(members))
        except BaseException as error:  # noqa: BLE001
            # SystemExit and asyncio.CancelledError too: a library that ends "the program" must not end the executor.
            end_if_forked(error)
            return describe(error)
        end_if_forked()
        if isinstance(outputs, str):
            batch.fail(members, ItemError(outputs))
            batch.miscounted = True
            return None
        for index, output in zip(members, outputs, strict=True):
            try:
                batch.known[index] = outcome_of(output, self._max_output_bytes)
            except BaseException as error:  # noqa: BLE001 - even asking what it is runs the model's own code
                batch.known[index] = describe(error)
        return None

    def _retry(self, sample: Sample) -> ItemError | None:
        """An input that came through before, once more; what failed, if anything did."""
        self._on_pass()
        again = Batch(Work("", [sample[0]], [sample[1]]), self._decode)
        error = self._predict(again, again.members)
        outcome = error or again.known[0]
        return outcome if isinstance(outcome, ItemError) and not outcome.rejected else None

    def _decode(self, raw: bytes, raw_parameters: bytes) -> tuple[Any, dict[str, Any]]:
        try:
            value, parameters = _loads(raw), _loads(raw_parameters)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidInput(f"not valid JSON: {error}") from None
        if not isinstance(parameters, dict):
            raise InvalidInput("parameters must be an object")
        refusal = self._refuse(value) if self._refuse else None
        if refusal is not None:
            raise refusal
        return value, parameters


def _loads(raw: bytes) -> Any:
    return kombu_types.loads(raw) if raw[:1] == kombu_types.MARK else msgspec.json.decode(raw)


class Batch:
    """The inputs of one batch, and what is known of each. `members` are those that reach the model."""

    def __init__(
        self,
        work: Work,
        decode: Callable[[bytes, bytes], tuple[Any, dict[str, Any]]],
        *,
        collapse: bool = False,
    ) -> None:
        self.work = work
        self._raw = list(zip(work.inputs, work.parameters, strict=True))
        self._decode = decode
        self._decoded: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.known: dict[int, Ok | ItemError] = {}
        # Index → that of the first input like it.
        self.same = _repeats(self._raw) if collapse else {}
        for index, (value, options) in enumerate(self._raw):
            if index in self.same:
                continue
            try:
                self._decoded[index] = decode(value, options)
            except Exception as error:  # noqa: BLE001 - a refusal, or no memory for it: nobody else's affair
                self.known[index] = describe(error)
        self.members = list(self._decoded)
        # Whether the model returned anything but one output each, which says that it could compute.
        self.miscounted = False

    def fresh(self, members: list[int]) -> tuple[list[Any], list[dict[str, Any]]]:
        """Inputs and parameters that no call has seen: what a model does to its inputs stays in that call."""
        pairs = [
            self._decoded.pop(index) if index in self._decoded else self._decode(*self._raw[index]) for index in members
        ]
        return [value for value, _ in pairs], [options for _, options in pairs]

    def weighed(self, cost: Callable[[Any], int]) -> tuple[list[int], list[int]]:
        """Members and the cost of each; one that cannot be weighed fails alone, and is a member no more."""
        costs = []
        for index in self.members:
            try:
                costs.append(int(cost(self._decoded[index][0])))
            except BaseException as error:  # noqa: BLE001 - the model's own code may raise anything
                end_if_forked(error)
                self.known[index] = describe(error)
        self.members = [index for index in self.members if index not in self.known]
        return self.members, costs

    def fail(self, members: list[int], error: ItemError) -> None:
        for index in members:
            self.known[index] = error

    def trace_of(self, members: list[int]) -> str:
        """The trace of a call with these: that of the first one that is recorded, else the first; empty without any.

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
        return [each if isinstance(each, Ok) else each.outcome() for each in known]


def _repeats(raw: Sequence[tuple[bytes, bytes]]) -> dict[int, int]:
    """Of each pair that was there before: where it was first. Spelling counts; frontends have one for each value."""
    first: dict[tuple[bytes, bytes], int] = {}
    return {index: seen for index, pair in enumerate(raw) if (seen := first.setdefault(pair, index)) != index}


def _of_the_call(error: ItemError) -> ItemError:
    """As an outcome of inputs that it may not be about: nobody's refusal, and no caller's to read."""
    return structs.replace(error, rejected=False, exc_type=ItemError("").exc_type, words=Words.CALL)
