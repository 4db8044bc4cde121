"""Device faults: errors after which every later call of this process to its device fails too.

A device-side assert, an illegal address, a failed launch or an uncorrectable memory error poisons the context of the
process. Where torch is loaded and uses CUDA, the device is asked; otherwise the exception's text decides.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

# As CUDA's runtime and driver name them, and as torch writes them.
_NAMED = re.compile(
    r"cudaError(Assert|IllegalAddress|IllegalInstruction|InvalidAddressSpace|InvalidPc|HardwareStackError"
    r"|MisalignedAddress|LaunchFailure|LaunchTimeout|ECCUncorrectable|ContextIsDestroyed)"
    r"|CUDA_ERROR_(ASSERT|ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|INVALID_ADDRESS_SPACE|INVALID_PC|HARDWARE_STACK_ERROR"
    r"|MISALIGNED_ADDRESS|LAUNCH_FAILED|LAUNCH_TIMEOUT|ECC_UNCORRECTABLE|CONTEXT_IS_DESTROYED)"
    r"|hipError(Assert|IllegalAddress|LaunchFailure|ECCNotCorrectable)"
    r"|device-side assert|illegal memory access|unspecified launch failure|uncorrectable ECC error"
)
_WORDED = re.compile(r"\b(CUDA|HIP) error\b|\bCUDA failure\b")
# Other exceptions may quote their input, and so any text of a caller.
_LIBRARIES = frozenset(
    {"cupy", "cupy_backends", "jax", "jaxlib", "numba", "onnxruntime", "pycuda", "tensorflow", "torch"}
)
# A model may wrap the error in an exception of its own.
_MAX_CHAIN = 8


def is_device_fault(error: BaseException) -> bool:
    """Return whether the device has failed, rather than the model on this input. Out of memory is not a device
    fault.
    """
    answers = device_answers()
    return any(_says_so(each) for each in _chain(error)) if answers is None else not answers[0]


def device_answers() -> tuple[bool, str] | None:
    """Wait until the device has done its work: whether it could, and its error. None: there is no device to ask.

    An asynchronous error shows here, instead of in another call.
    """
    # By its name: only models decide whether to import torch.
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    # While another thread imports it, parts are missing.
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
