"""One batch through one model: decode, predict, and exactly one outcome per input, whatever the model does.

    inputs ──decode──▶ refuse? ──▶ predict ──▶ one output each ──encode──▶ JSON bytes
              │          │           │             │                │
              rejected   rejected    batch error   batch error      that item's error
                                     (raised)      (contract)       (or it *is* an exception)

Runs in the executor's child process. Nothing here holds on to an exception: its frames would hold the batch's
tensors.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from workers.frames import ItemError
from workers.models import InputRejected, InvalidInput, Model

MAX_MESSAGE = 2_000
MAX_TRACEBACK = 16_000

# Of the wire, not of Python: readers decide by these names, so a model's own class names stay inside the
# message.
REJECTED = "InputRejected"
INVALID = "InvalidInput"

Outcomes: TypeAlias = list[bytes | ItemError | None]


class Computed(msgspec.Struct, frozen=True):
    """Entries are None where `error`, the whole batch's, applies; `raised` as in `workers.frames.Ran`."""

    compute_s: float
    outcomes: Outcomes
    error: ItemError | None = None
    raised: bool = False


class BatchComputer:
    """Runs a loaded model over batches of JSON.

    Args:
        refuse: what to say to an input that must not reach the model, or None.
    """

    def __init__(self, model: Model, refuse: Callable[[Any], InputRejected | None] | None = None) -> None:
        self._model = model
        self._refuse = refuse

    def run(self, inputs: Sequence[bytes], parameters: Sequence[bytes]) -> Computed:
        """Shapes: n inputs and n parameters in, n entries out."""
        outcomes: Outcomes = [None] * len(inputs)
        # Decoded anew for every batch: what a model does to its inputs stays in that batch.
        values: list[Any] = []
        options: list[dict[str, Any]] = []
        members: list[int] = []
        for index, (raw, raw_parameters) in enumerate(zip(inputs, parameters, strict=True)):
            try:
                value, option = self._decode(raw, raw_parameters)
            except InputRejected as refusal:
                outcomes[index] = describe(refusal)
            else:
                values.append(value)
                options.append(option)
                members.append(index)
        if not members:
            return Computed(0.0, outcomes)
        began = time.perf_counter()
        try:
            outputs = self._model.predict(values, options)
        except BaseException as error:  # noqa: BLE001
            # SystemExit and asyncio.CancelledError too: a library that ends "the program" must not end the
            # executor.
            return Computed(time.perf_counter() - began, outcomes, describe(error), raised=True)
        compute_s = time.perf_counter() - began
        broken = contract_broken(outputs, len(members))
        if broken:
            return Computed(compute_s, outcomes, ItemError(broken))
        for index, output in zip(members, outputs, strict=True):
            outcomes[index] = encode_output(output)
        return Computed(compute_s, outcomes)

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
    """An exception as text, cut to a size that a result can carry."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001
        text = "(its message cannot be shown)"
    if isinstance(error, InputRejected):
        kind = INVALID if isinstance(error, InvalidInput) else REJECTED
        return ItemError(text[:MAX_MESSAGE] or "the model refused this input", rejected=True, exc_type=kind)
    name = type(error).__name__
    message = f"{name}: {text}" if text else name
    return ItemError(message[:MAX_MESSAGE], traceback=format_traceback(error) if error.__traceback__ else None)


def format_traceback(error: BaseException) -> str:
    """The end of it, where the cause is, when it is very long."""
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= MAX_TRACEBACK else f"…{text[-MAX_TRACEBACK:]}"


def encode_output(output: object) -> bytes | ItemError:
    """One output as strict JSON, or why it cannot be."""
    if isinstance(output, BaseException):
        return describe(output)
    try:
        encoded = _encoder.encode(output)
        # msgspec writes NaN and the infinities as null; the bytes tell cheaply that there is none.
        if b"null" in encoded and _has_non_finite(msgspec.to_builtins(output, enc_hook=_to_list)):
            return ItemError("the model's output holds NaN or Infinity, which JSON cannot carry")
    except Exception as error:  # noqa: BLE001  (a model's objects may raise anything)
        return ItemError(f"the model's output is not JSON: {describe(error).message}")
    return encoded


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
