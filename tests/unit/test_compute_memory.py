"""A device's memory that runs out in a batch: freed, tried once more, halved, and the size that fits is told."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from batching.request import Failed, Ok
from tests.unit.computing import Model, compute, run
from workers.executor.compute import BatchComputer


def test_out_of_memory_is_halved_and_the_size_that_fits_is_told() -> None:
    sizes: list[int] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        sizes.append(len(inputs))
        if len(inputs) > 20:
            raise MemoryError
        return inputs

    computer = BatchComputer(Model(predict))
    inputs = [b"%d" % index for index in range(64)]
    computed = run(computer, *inputs)
    assert computed.outcomes == [Ok(each) for each in inputs]
    assert computed.safe_size == 16
    sizes.clear()
    again = run(computer, *inputs, safe_size=computed.safe_size)
    assert again.outcomes == computed.outcomes
    assert sizes == [16, 16, 16, 16]
    # Nothing new: whoever has forgotten it meanwhile must not be told again.
    assert again.safe_size is None


class OutOfMemoryError(RuntimeError):
    """Torch's, by its name."""


class FakeCuda:
    """The memory that `torch.cuda` has reserved: `pieces` is given back by `empty_cache`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, initialized: bool = True, broken: bool = False) -> None:
        self.is_initialized = lambda: initialized
        self.broken = broken
        self.emptied = 0
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=self))

    def empty_cache(self) -> None:
        self.emptied += 1
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")


def test_memory_that_was_only_in_pieces_halves_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    sizes: list[int] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        sizes.append(len(inputs))
        if not cuda.emptied:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return inputs

    computed = compute(predict, 1, 2, 3, 4)
    assert computed.outcomes == [Ok(b"1"), Ok(b"2"), Ok(b"3"), Ok(b"4")]
    assert sizes == [4, 4]
    assert computed.safe_size is None, "there is room"
    assert computed.passes == 2, "its time says nothing about the next"


def test_where_freeing_does_not_help_a_batch_is_tried_once_more_and_then_halved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda(monkeypatch)
    sizes: list[int] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        sizes.append(len(inputs))
        if len(inputs) > 2:
            raise OutOfMemoryError
        return inputs

    computed = compute(predict, *range(8))
    assert sizes == [8, 8, 4, 2, 2, 4, 2, 2]
    assert computed.safe_size == 2
    assert cuda.emptied == 1


@pytest.mark.parametrize("state", [{"initialized": False}, {"broken": True}])
def test_without_a_gpu_that_can_free_memory_a_batch_is_halved_at_once(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, bool]
) -> None:
    FakeCuda(monkeypatch, **state)
    sizes: list[int] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        sizes.append(len(inputs))
        if len(inputs) > 1:
            raise OutOfMemoryError
        return inputs

    assert compute(predict, 1, 2).safe_size == 1
    assert sizes == [2, 1, 1]


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to …",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_libraries_that_say_it_in_words_are_out_of_memory_too(text: str) -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if len(inputs) > 1:
            raise RuntimeError(text)
        return inputs

    assert compute(predict, 1, 2).safe_size == 1


def test_an_input_too_large_by_itself_does_not_make_later_batches_smaller() -> None:
    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if 31 in inputs:
            raise MemoryError
        return inputs

    computer = BatchComputer(Model(predict))
    computed = run(computer, *(b"%d" % index for index in range(64)))
    assert [index for index, each in enumerate(computed.outcomes) if isinstance(each, Failed)] == [31]
    assert computed.safe_size is None
    assert run(computer, *[b"1"] * 64).passes == 1
