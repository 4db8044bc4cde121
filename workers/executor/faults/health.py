"""What an executor's process has shown of itself: whether the next batch can be computed here, or a fresh one must.

    batch ──▶ predict ──▶ a device fault                          ──▶ this process is done for
                        │ nothing at all came through, and        ──▶ the same
                        │ neither does what came through before
                        └ anything else                           ──▶ goes on

Errors of a device are asynchronous: one may surface in the call *after* the one that caused it. So a batch of one is
convicted only if the process was seen to work right before it; otherwise its members are suspects, to be computed in a
fresh process. A suspect is followed by a second call there, in which what it has done would surface.

A process that has never computed anything cannot be told from one whose model is broken. There a barren batch of
several, or the second barren one in a row, asks for a fresh process; `workers.executor.faults.recovery` bounds how
often it gets one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from batching.request import Ok
from workers.executor.faults.device_faults import device_answers
from workers.executor.faults.exception_text import ItemError
from workers.executor.ipc import Fault

# To whoever had an output from a process that then turned out to be done for.
LAST_WORDS = {
    "device": "the device failed while it computed this input",
    "barren": "after this input the model could not compute anything",
}

# Input and parameters, as they came.
Sample = tuple[bytes, bytes]


class Harvest:
    """What came of the inputs of one batch that reached the model.

    Args:
        members: their places in `raw`.
        known: by the same places, output or error of each.
        miscounted: the model returned anything but one output each.
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
            # As nearly always, and at once.
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
    """Of one process.

    Args:
        retry: run one input through the model again; the error that the model raised, if it did.
    """

    def __init__(self, retry: Callable[[Sample], ItemError | None]) -> None:
        self._retry = retry
        # Whether it has been seen to work since the last batch; a fresh one counts as that.
        self._proven = True
        self._sample: Sample | None = None
        self._barren = False

    def before(self, *, suspect: bool) -> Fault | None:
        """Why a batch must not be computed here; for suspects alone, who must not be charged with others' faults."""
        if not suspect or self._proven or self._sample is None:
            return None
        error = self._fails_again(self._sample)
        if error is None:
            self._proven = True
            return None
        return Fault(_cause(error), error.message, reached=False)

    def after(self, harvest: Harvest, *, suspect: bool, may_end: bool = True) -> Fault | None:
        """Why this process is done for; None if it goes on. With a settled fault the batch is charged with it."""
        fault = self._fault_of(harvest, suspect=suspect)
        if fault is None or fault.settled or may_end:
            return fault
        # There is no use in a fresh process. In one whose device has failed there is none either.
        return structs.replace(fault, settled=True) if fault.cause == "device" else None

    def _fault_of(self, harvest: Harvest, *, suspect: bool) -> Fault | None:
        guilty = harvest.size == 1 and self._proven
        was_barren, self._barren = self._barren, harvest.is_barren
        if harvest.fault is not None:
            return Fault("device", harvest.fault.message, guilty)
        answers = device_answers()
        if answers is not None and not answers[0]:
            return Fault("device", answers[1], guilty)
        self._sample = harvest.sample or self._sample
        self._proven = answers is not None
        if self._sample is not None and (harvest.is_barren or (suspect and not self._proven)):
            error = self._fails_again(self._sample)
            if error is not None:
                return Fault(_cause(error), error.message, guilty)
            self._proven = True
        elif harvest.is_barren and not guilty and (was_barren or (harvest.size > 1 and not self._proven)):
            return Fault("barren", "no input of the batch succeeded")
        return None

    def _fails_again(self, sample: Sample) -> ItemError | None:
        error = self._retry(sample)
        return None if error is None or error.retryable or error.out_of_memory else error


def _cause(error: ItemError) -> str:
    return "device" if error.device_fault else "barren"


def barren_limit(size: int, error: ItemError) -> int:
    """How many passes in a row may fail before it is the model's fault: the way down to one culprit, twice.

    Of errors that may pass half as many: in an outage each pass takes its whole time-out.
    """
    if size == 1:
        return 1
    most = 2 * max(1, math.ceil(math.log2(size))) + 4
    return most // 2 if error.retryable else most
