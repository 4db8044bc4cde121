"""Errors of the device are recognised by their words and, where torch is in use, by asking it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from workers.executor.faults.device_faults import device_answers, is_device_fault


class AcceleratorError(RuntimeError):
    """As torch has one."""


def of(library: str, name: str, text: str) -> Exception:
    """An exception of a class that is some library's own."""
    kind = type(name, (Exception,), {"__module__": library})
    error = kind(text)
    assert isinstance(error, Exception)
    return error


def caused(error: BaseException, by: BaseException) -> BaseException:
    error.__cause__ = by
    return error


ASSERT = RuntimeError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA")


@pytest.mark.parametrize(
    "error",
    [
        ASSERT,
        RuntimeError("HIP error: unspecified launch failure"),
        RuntimeError("cudaErrorECCUncorrectable: uncorrectable ECC error encountered"),
        AcceleratorError("an error of the accelerator"),
        of("cupy_backends.cuda.api.runtime", "CUDARuntimeError", "cudaErrorIllegalAddress: an illegal memory access"),
        of("numba.cuda.cudadrv.driver", "CudaAPIError", "[700] results in CUDA_ERROR_ILLEGAL_ADDRESS"),
        of("onnxruntime.capi", "Fail", "CUDA failure 719: unspecified launch failure"),
        caused(ValueError("no embedding"), by=ASSERT),
    ],
)  # fmt: skip
def test_what_the_device_says_is_its_fault(error: BaseException) -> None:
    assert is_device_fault(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: out of memory"),
        AcceleratorError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        # A model that quotes what it was given.
        ValueError("not a number: 'CUDA error: device-side assert triggered'"),
        KeyError("cudaErrorAssert"),
    ],
)
def test_what_others_say_is_not(error: BaseException) -> None:
    assert not is_device_fault(error)


def test_an_error_raised_while_another_is_handled_has_that_as_its_cause_unless_it_hides_it() -> None:
    error = KeyError("cleaning up")
    error.__context__ = ASSERT
    assert is_device_fault(error)
    error.__suppress_context__ = True
    assert not is_device_fault(error)


def test_chains_that_lead_back_to_themselves_end() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert not is_device_fault(one)


class Torch:
    """A stand-in for the module, in a process whose context is whole or poisoned."""

    def __init__(self, *, in_use: bool = True, poison: str = "") -> None:
        self.asked = 0
        self.poison = poison
        self.cuda = SimpleNamespace(is_initialized=lambda: in_use, synchronize=self._synchronize)

    def _synchronize(self) -> None:
        self.asked += 1
        if self.poison:
            raise RuntimeError(self.poison)


def loaded(monkeypatch: pytest.MonkeyPatch, torch: Any) -> Any:
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_a_device_that_answers_has_no_fault_whatever_an_exception_says(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch, Torch())
    assert device_answers() == (True, "")
    assert not is_device_fault(ASSERT)


def test_a_device_that_does_not_answer_has_one_whatever_an_exception_says(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch, Torch(poison="CUDA error: an illegal memory access"))
    assert device_answers() == (False, "RuntimeError: CUDA error: an illegal memory access")
    assert is_device_fault(ValueError("wordless"))


@pytest.mark.parametrize(
    "torch", [None, SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace()), Torch(in_use=False)]
)
def test_without_cuda_in_use_there_is_nobody_to_ask(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    loaded(monkeypatch, torch)
    assert device_answers() is None
    assert is_device_fault(ASSERT)
