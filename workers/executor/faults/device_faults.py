"""Device faults: errors after which every later call of this process to its device fails too.

A device-side assert, an illegal address, a failed launch or an uncorrectable memory error poisons the context of the
process. The device itself is asked where torch is loaded and uses CUDA; elsewhere an exception's words tell.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

# As CUDA's runtime and driver name them, and as torch words them.
_NAMED = re.compile(
    r"cudaError(Assert|IllegalAddress|IllegalInstruction|InvalidAddressSpace|InvalidPc|HardwareStackError"
    r"|MisalignedAddress|LaunchFailure|LaunchTimeout|ECCUncorrectable|ContextIsDestroyed)"
    r"|CUDA_ERROR_(ASSERT|ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|INVALID_ADDRESS_SPACE|INVALID_PC|HARDWARE_STACK_ERROR"
    r"|MISALIGNED_ADDRESS|LAUNCH_FAILED|LAUNCH_TIMEOUT|ECC_UNCORRECTABLE|CONTEXT_IS_DESTROYED)"
    r"|hipError(Assert|IllegalAddress|LaunchFailure|ECCNotCorrectable)"
    r"|device-side assert|illegal memory access|unspecified launch failure|uncorrectable ECC error"
)
_WORDED = re.compile(r"\b(CUDA|HIP) error\b|\bCUDA failure\b")
# Anybody else's exception may quote its input, and with it whatever a caller has written.
_LIBRARIES = frozenset(
    {"cupy", "cupy_backends", "jax", "jaxlib", "numba", "onnxruntime", "pycuda", "tensorflow", "torch"}
)
# A model may wrap what it met in an exception of its own.
_MAX_CHAIN = 8


def is_device_fault(error: BaseException) -> bool:
    """Whether the device has failed, and not the model over this input. Out of memory is no such fault."""
    answers = device_answers()
    return any(_says_so(each) for each in _chain(error)) if answers is None else not answers[0]


def device_answers() -> tuple[bool, str] | None:
    """Wait until the device has done all that it was given: whether it could, or what it said. None: nothing to ask.

    An asynchronous error surfaces here, instead of in somebody else's call.
    """
    # By its name: whether a model uses torch is the model's business, and only models import it.
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    # Half imported by another thread, it has not everything yet.
    if not getattr(cuda, "is_initialized", lambda: False)():
        return None
    try:
        cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - whatever it is, the device did not answer
        return False, f"{type(error).__name__}: {error}"
    return True, ""


def _says_so(error: BaseException) -> bool:
    kind = type(error)
    try:
        text = str(error)
    except Exception:  # noqa: BLE001
        return False
    if "out of memory" in text:
        return False
    if kind.__name__ == "AcceleratorError":
        return True
    if isinstance(error, RuntimeError):
        return _WORDED.search(text) is not None or _NAMED.search(text) is not None
    return kind.__module__.partition(".")[0] in _LIBRARIES and _NAMED.search(text) is not None


def _chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if each is None:
            return
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
