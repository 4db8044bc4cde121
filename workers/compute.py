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

What poisons the process is not halved: the rest would fail of it too (`workers.health`).

What was said of a call with several inputs may quote any of them, and is marked so: no caller reads it
(`tasks.disclosure`).

Runs in the executor's child process. Nothing here holds on to an exception: its frames would hold the batch's tensors.
"""

from __future__ import annotations

import math
import re
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import structs

from batching.request import Words
from workers.costs import Budget, cut
from workers.device_faults import is_device_fault
from workers.forked import end_if_forked
from workers.frames import Fault, ItemError
from workers.health import LAST_WORDS, Harvest, Health, Sample, barren_limit
from workers.models import InputRejected, InvalidInput, Model, TransientError, UpstreamError

MAX_MESSAGE = 2_000
MAX_TRACEBACK = 16_000
# Each reader between here and the caller parses the output inside an envelope of its own, with a stack of its own.
MAX_DEPTH = 200
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS = re.compile(rb"[\[\]{}]")
_FULL = re.compile(r"out of memory|can't allocate memory|not enough memory|_ALLOC_FAILED")

# Of the wire, not of Python: readers decide by these names, so a model's own class names stay inside the
# message.
REJECTED = "InputRejected"
INVALID = "InvalidInput"


class Computed(msgspec.Struct, frozen=True):
    """`passes` counts calls of predict; `safe_size` is what memory had room for, None unless it ran out here;
    `collapsed` counts the inputs that were answered by an equal one's output. With a `fault` that is not settled there
    are no outcomes.
    """

    compute_s: float
    outcomes: list[bytes | ItemError]
    passes: int = 0
    safe_size: int | None = None
    collapsed: int = 0
    fault: Fault | None = None


class BatchComputer:
    """Runs a loaded model over batches of JSON.

    Args:
        refuse: what to say to an input that must not reach the model, or None.
        on_pass: called before each call of predict but a batch's first: the batch is alive, its time starts anew.
        budget: what one call may cost, or None.
        collapse: equal inputs with equal parameters go to the model once, and share what comes of it.
        watched: whether its process can be poisoned. One that only asks somebody else cannot.
        max_output_bytes: of one output, as JSON; 0: any size.
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
    ) -> None:
        self._model = model
        self._refuse = refuse
        self._on_pass = on_pass
        self._budget = budget
        self._collapse = collapse
        self._health = Health(self._retry) if watched else None
        self._max_output_bytes = max_output_bytes

    def decode(self, inputs: Sequence[bytes], parameters: Sequence[bytes]) -> Batch:
        """Shapes: n inputs and n parameters. Touches no code of the model, so another thread may do it meanwhile."""
        return Batch(inputs, parameters, self._decode, collapse=self._collapse)

    def run(self, inputs: Sequence[bytes], parameters: Sequence[bytes], safe_size: int | None = None) -> Computed:
        """Shapes: n inputs and n parameters in, n outcomes out; at most `safe_size` of them in one call."""
        return self.compute(self.decode(inputs, parameters), safe_size)

    def compute(
        self,
        batch: Batch,
        safe_size: int | None = None,
        *,
        suspect: bool = False,
        last_try: bool = False,
        may_end: bool = True,
    ) -> Computed:
        """As `run`, for a batch that has been decoded before; once.

        Args:
            suspect: a process has ended with these inputs inside.
            last_try: some of them are not tried again.
            may_end: whether this process may ask to be replaced.
        """
        health = self._health
        fault = health.before(suspect=suspect) if health and may_end else None
        if fault is not None:
            return Computed(0.0, [], fault=fault)
        computed = self._compute(batch, safe_size, last_try=last_try)
        if health is None or not batch.members:
            return computed
        fault = health.after(batch.harvest(), suspect=suspect, may_end=may_end)
        if fault is None:
            return computed
        if not fault.settled:
            return structs.replace(computed, outcomes=[], fault=fault)
        # What had come through before the fault showed is not to be trusted.
        through = [each for each in batch.members if isinstance(batch.known[each], bytes)]
        batch.fail(through, ItemError(LAST_WORDS[fault.cause]))
        return structs.replace(computed, outcomes=batch.outcomes(), fault=fault)

    def _compute(self, batch: Batch, safe_size: int | None, *, last_try: bool) -> Computed:
        passes = 0
        barren = 0
        compute_s = 0.0
        learned: int | None = None
        parts = [piece for part in self._affordable(batch)[::-1] for piece in cut(part, safe_size)]
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
            hopeless = error.device_fault or (error.retryable and not last_try)
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
        return Computed(compute_s, batch.outcomes(), passes, learned, len(batch.same))

    def _affordable(self, batch: Batch) -> list[list[int]]:
        """Into parts that keep to the budget; the first one is run first."""
        if self._budget is None or not batch.members:
            return [batch.members]
        return self._budget.parts(*batch.weighed(self._budget.cost))

    def _predict(self, batch: Batch, members: list[int]) -> ItemError | None:
        """One call of the model; what it raised, if it did."""
        values, options = batch.fresh(members)
        try:
            outputs = self._model.predict(values, options)
        except BaseException as error:  # noqa: BLE001
            # SystemExit and asyncio.CancelledError too: a library that ends "the program" must not end the executor.
            end_if_forked(error)
            return describe(error)
        end_if_forked()
        broken = contract_broken(outputs, len(members))
        if broken:
            batch.fail(members, ItemError(broken))
            batch.miscounted = True
            return None
        for index, output in zip(members, outputs, strict=True):
            batch.known[index] = encode_output(output, self._max_output_bytes)
        return None

    def _retry(self, sample: Sample) -> ItemError | None:
        """An input that came through before, once more; what failed, if anything did."""
        self._on_pass()
        again = Batch([sample[0]], [sample[1]], self._decode)
        error = self._predict(again, again.members)
        outcome = error or again.known[0]
        return outcome if isinstance(outcome, ItemError) and not outcome.rejected else None

    def _decode(self, raw: bytes, raw_parameters: bytes) -> tuple[Any, dict[str, Any]]:
        try:
            value, parameters = msgspec.json.decode(raw), msgspec.json.decode(raw_parameters)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidInput(f"not readable as JSON: {error}") from None
        if not isinstance(parameters, dict):
            raise InvalidInput("parameters must be an object")
        refusal = self._refuse(value) if self._refuse else None
        if refusal is not None:
            raise refusal
        return value, parameters


class Batch:
    """The inputs of one batch, and what is known of each. `members` are those that reach the model."""

    def __init__(
        self,
        inputs: Sequence[bytes],
        parameters: Sequence[bytes],
        decode: Callable[[bytes, bytes], tuple[Any, dict[str, Any]]],
        *,
        collapse: bool = False,
    ) -> None:
        self._raw = list(zip(inputs, parameters, strict=True))
        self._decode = decode
        self._decoded: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.known: dict[int, bytes | ItemError] = {}
        # Index → that of the first input like it.
        self.same = _repeats(self._raw) if collapse else {}
        for index, (value, options) in enumerate(self._raw):
            if index in self.same:
                continue
            try:
                self._decoded[index] = decode(value, options)
            except InputRejected as refusal:
                self.known[index] = describe(refusal)
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
            except Exception as error:  # noqa: BLE001 - the model's own code may raise anything
                self.known[index] = describe(error)
        self.members = [index for index in self.members if index not in self.known]
        return self.members, costs

    def fail(self, members: list[int], error: ItemError) -> None:
        for index in members:
            self.known[index] = error

    def harvest(self) -> Harvest:
        return Harvest([(self._raw[each], self.known[each]) for each in self.members], miscounted=self.miscounted)

    def outcomes(self) -> list[bytes | ItemError]:
        return [self.known[self.same.get(index, index)] for index in range(len(self._raw))]


def _repeats(raw: Sequence[tuple[bytes, bytes]]) -> dict[int, int]:
    """Of each pair that was there before: where it was first. Spelling counts; frontends have one for each value."""
    first: dict[tuple[bytes, bytes], int] = {}
    return {index: seen for index, pair in enumerate(raw) if (seen := first.setdefault(pair, index)) != index}


def _of_the_call(error: ItemError) -> ItemError:
    """As an outcome of inputs that it may not be about: nobody's refusal, and no caller's to read."""
    return structs.replace(error, rejected=False, exc_type=ItemError("").exc_type, words=Words.CALL)


def contract_broken(outputs: object, count: int) -> str | None:
    """What is wrong with a return value of `predict` for `count` inputs; None when nothing is.

    A dict or a tensor has a length too, and a generator may even yield the right number: only a list says
    plainly which output belongs to which input.
    """
    if not isinstance(outputs, list):
        kind = type(outputs).__name__
        return f"the model returned a {kind} for {count} inputs; predict must return a list, one output each"
    if len(outputs) != count:
        return f"the model returned {len(outputs)} outputs for {count} inputs; predict must return one each"
    return None


def describe(error: BaseException) -> ItemError:
    """An exception as text about one input, cut to a size that a result can carry."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001
        text = "(its message cannot be shown)"
    if isinstance(error, InputRejected):
        kind = INVALID if isinstance(error, InvalidInput) else REJECTED
        return ItemError(text[:MAX_MESSAGE] or "the model refused this input", rejected=True, exc_type=kind)
    name = type(error).__name__
    message = f"{name}: {text}" if text else name
    out_of_memory = isinstance(error, MemoryError) or name == "OutOfMemoryError" or _is_full(error, text)
    return ItemError(
        message[:MAX_MESSAGE],
        traceback=format_traceback(error) if error.__traceback__ else None,
        retryable=isinstance(error, TransientError | ConnectionError | TimeoutError),
        out_of_memory=out_of_memory,
        words=Words.CALL if isinstance(error, UpstreamError) else Words.INPUT,
        public=error.public if isinstance(error, UpstreamError) else "",
        device_fault=not out_of_memory and is_device_fault(error),
    )


def _is_full(error: BaseException, text: str) -> bool:
    """Torch's CPU allocator, and CUDA's libraries, say so in words alone."""
    return isinstance(error, RuntimeError) and _FULL.search(text) is not None


def format_traceback(error: BaseException) -> str:
    """The end of it, where the cause is, when it is very long."""
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= MAX_TRACEBACK else f"…{text[-MAX_TRACEBACK:]}"


def encode_output(output: object, max_bytes: int = 0) -> bytes | ItemError:
    """One output as strict JSON, or why it cannot be. `max_bytes` 0: of any size."""
    if isinstance(output, BaseException):
        return describe(output)
    try:
        encoded = _encoder.encode(output)
        if 0 < max_bytes < len(encoded):
            return ItemError(f"the model's output is {len(encoded)} bytes of JSON; at most {max_bytes} are taken")
        # msgspec writes NaN and the infinities as null; the bytes tell cheaply that there is none.
        if b"null" in encoded and _has_non_finite(msgspec.to_builtins(output, enc_hook=_to_list)):
            return ItemError("the model's output holds NaN or Infinity, which JSON cannot carry")
        if encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH and depth_of(encoded) > MAX_DEPTH:
            return ItemError(f"the model's output is nested more than {MAX_DEPTH} deep, which readers refuse")
    except Exception as error:  # noqa: BLE001  (a model's objects may raise anything)
        why = describe(error)
        # A tensor's values are fetched here, so an error of the call that made them may be met only now.
        text = f"the model's output is not JSON: {why.message}"
        return ItemError(text, device_fault=why.device_fault, words=Words.INPUT)
    return encoded


def depth_of(encoded: bytes) -> int:
    """How deep arrays and objects are nested in a JSON text."""
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", encoded)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _to_list(value: Any) -> Any:
    """For numpy arrays and scalars, torch tensors and whatever else can say itself as lists, at any depth."""
    to_list = getattr(value, "tolist", None)
    if to_list is None or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return to_list()


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
