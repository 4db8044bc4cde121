"""Decides whether an executor's process can compute the next batch, or must be replaced.

    batch ──▶ predict ──▶ a device fault                          ──▶ this process is done for
                        │ nothing at all came through, and        ──▶ the same
                        │ neither does what came through before
                        └ anything else                           ──▶ goes on

Errors of a device are asynchronous: one may show in the call *after* the one that caused it. So a batch of one is
convicted only if the process was seen to work right before it; otherwise its members are suspects, to be computed in a
new process. A suspect is followed by a second call there, in which its error would show.

A process that has never computed anything looks like one with a broken model. There a barren batch of several, or the
second barren one in a row, asks for a new process; `workers.executor.faults.recovery` limits how often it gets one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from batching.request import Ok
from workers.executor.faults.device_faults import device_answers
from workers.executor.faults.exception_text import ItemError
from workers.executor.ipc import Fault
from workers.executor.shared_bytes import SharedBytes

# The error of inputs that had an output, from a process that then turned out to be poisoned.
LAST_WORDS = {
    "device": "the device failed while it computed this input",
    "barren": "after this input the model could not compute anything",
}

# Input and parameters, as they arrived, and true if the input is bytes rather than JSON; the input as bytes or
# `SharedBytes`.
Sample = tuple[Any, bytes, bool]


class Harvest:
    """The results of the inputs of one batch that reached the model.

    Args:
        members: their indices in `raw`.
        known: the output or error of each, by the same indices.
        miscounted: the model did not return one output each.
    """

    def __init__(
        self,
        members: Sequence[int],
        raw: Sequence[Sample],
        known: Mapping[int, Ok | ItemError],
        *,
        miscounted: bool = False,
    ) -> None:
        self.size = len(members)
        self.sample: Sample | None = raw[members[0]]
        self.fault: ItemError | None = None
        self.is_barren = False
        outcomes = [known[each] for each in members]
        if set(map(type, outcomes)) == {Ok}:
            # Nearly always true, so checked first.
            return
        self.sample = next((raw[each] for each in members if isinstance(known[each], Ok)), None)
        errors = [each for each in outcomes if isinstance(each, ItemError)]
        self.fault = next((each for each in errors if each.device_fault), None)
        # Failures of memory or a network, and of the model's own contract, say nothing about this process.
        self.is_barren = (
            self.sample is None
            and not miscounted
            and not any(each.rejected or each.retryable or each.out_of_memory for each in errors)
        )


class Health:
    """The health of one process.

    Args:
        retry: runs one input through the model again; returns the model's error, if any.
    """

    def __init__(self, retry: Callable[[Sample], ItemError | None]) -> None:
        self._retry = retry
        # Whether it has been seen to work since the last batch; a new process counts as working.
        self._proven = True
        self._sample: Sample | None = None
        self._barren = False

    def before(self, *, suspect: bool) -> Fault | None:
        """The reason why a batch must not be computed here; only for suspects, which must not be blamed for other
        faults.
        """
        if not suspect or self._proven or self._sample is None:
            return None
        error = self._fails_again(self._sample)
        if error is None:
            self._proven = True
            return None
        return Fault(_cause(error), error.message, reached=False)

    def went_well(self, harvest: Harvest) -> bool:
        """Return whether the batch raises no question about this process, so that `after` need not be asked.

        The device is not asked: it computes the next batch already, and has given the outputs of this one.
        """
        if harvest.fault is not None or harvest.is_barren:
            return False
        self._barren, self._proven = False, False
        self._keep(harvest.sample)
        return True

    def after(self, harvest: Harvest, *, suspect: bool, may_end: bool = True, alone: bool = True) -> Fault | None:
        """The reason why this process must be replaced; None if it goes on. A settled fault is the batch's own.

        `alone`: no other batch was in the process meanwhile, which may have caused it.
        """
        fault = self._fault_of(harvest, suspect=suspect, alone=alone)
        if fault is None or fault.settled or may_end:
            return fault
        # A new process does not help. Where the device has failed, nothing helps.
        return structs.replace(fault, settled=True) if fault.cause == "device" else None

    def _fault_of(self, harvest: Harvest, *, suspect: bool, alone: bool) -> Fault | None:
        guilty = harvest.size == 1 and self._proven and alone
        was_barren, self._barren = self._barren, harvest.is_barren
        if harvest.fault is not None:
            return Fault("device", harvest.fault.message, guilty)
        answers = device_answers()
        if answers is not None and not answers[0]:
            return Fault("device", answers[1], guilty)
        self._keep(harvest.sample)
        self._proven = answers is not None
        if self._sample is not None and (harvest.is_barren or (suspect and not self._proven)):
            error = self._fails_again(self._sample)
            if error is not None:
                return Fault(_cause(error), error.message, guilty)
            self._proven = True
        elif harvest.is_barren and not guilty and (was_barren or (harvest.size > 1 and not self._proven)):
            return Fault("barren", "no input of the batch succeeded")
        return None

    def _keep(self, sample: Sample | None) -> None:
        if sample is None:
            return
        if isinstance(sample[0], SharedBytes):
            if self._sample is not None:
                # As good as this one, and it need not be copied out of the memory that the worker writes to.
                return
            sample = (bytes(sample[0]), *sample[1:])
        self._sample = sample

    def _fails_again(self, sample: Sample) -> ItemError | None:
        error = self._retry(sample)
        return None if error is None or error.retryable or error.out_of_memory else error


def _cause(error: ItemError) -> str:
    return "device" if error.device_fault else "barren"


def barren_limit(size: int, error: ItemError) -> int:
    """The number of passes in a row that may fail before the model is at fault: the way down to one culprit, twice.

    Half as many for transient errors: in an outage each pass takes its whole timeout.
    """
    if size == 1:
        return 1
    most = 2 * max(1, math.ceil(math.log2(size))) + 4
    return most // 2 if error.retryable else most
