"""Converts an exception of a model to text that can be sent."""

from __future__ import annotations

import re
import traceback

import msgspec

from batching.request import Failed, Rejected, Words
from workers.executor.faults.device_faults import is_device_fault
from workers.models import InputRejected, InvalidInput, TransientError, UpstreamError

MAX_MESSAGE = 2_000
MAX_TRACEBACK = 16_000
_FULL = re.compile(r"out of memory|can't allocate memory|not enough memory|_ALLOC_FAILED")

# Names of the wire format, not of Python: readers depend on these names, so a model's own class names stay inside the
# message.
REJECTED = "InputRejected"
INVALID = "InvalidInput"


class ItemError(msgspec.Struct, frozen=True):
    """The reason why an input, or a whole batch, has no output. `rejected`: the model refused, nothing broke.

    `words` and `public` as in `batching.request.Failed`.
    """

    message: str
    rejected: bool = False
    exc_type: str = "InferenceFailed"
    traceback: str | None = None
    retryable: bool = False
    out_of_memory: bool = False
    words: Words = Words.OURS
    public: str = ""
    device_fault: bool = False

    def outcome(self) -> Rejected | Failed:
        """The outcome of the input for the worker."""
        if self.rejected:
            return Rejected(self.message, self.exc_type)
        return Failed(
            self.message,
            traceback=self.traceback,
            # Alone in its batch and still too large: at another time there may be memory.
            retryable=self.retryable or self.out_of_memory,
            words=self.words,
            public=self.public,
        )


def describe(error: BaseException) -> ItemError:
    """An exception as text about one input, cut to a size that a result can carry."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - the model's own code
        text = "(its message cannot be shown)"
    if isinstance(error, InputRejected):
        kind = INVALID if isinstance(error, InvalidInput) else REJECTED
        return ItemError(text[:MAX_MESSAGE] or "the model refused this input", rejected=True, exc_type=kind)
    name = type(error).__name__
    message = f"{name}: {text}" if text else name
    out_of_memory = isinstance(error, MemoryError) or name == "OutOfMemoryError" or _is_full(error, text)
    return ItemError(
        message[:MAX_MESSAGE],
        # For an API that did not answer as it should, the text is all ours.
        traceback=format_traceback(error) if error.__traceback__ and not isinstance(error, UpstreamError) else None,
        retryable=isinstance(error, TransientError | ConnectionError | TimeoutError),
        out_of_memory=out_of_memory,
        words=Words.CALL if isinstance(error, UpstreamError) else Words.INPUT,
        public=error.public if isinstance(error, UpstreamError) else "",
        device_fault=not out_of_memory and is_device_fault(error),
    )


def _is_full(error: BaseException, text: str) -> bool:
    """Torch's CPU allocator and CUDA's libraries report it only in the text."""
    return isinstance(error, RuntimeError) and _FULL.search(text) is not None


def format_traceback(error: BaseException) -> str:
    """The traceback; of a very long one the end, where the cause is."""
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= MAX_TRACEBACK else f"…{text[-MAX_TRACEBACK:]}"
