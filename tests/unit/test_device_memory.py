"""`memory_fraction` and pinned memory in an executor's process, with a stand-in for torch."""

from __future__ import annotations

import mmap
import os
import sys
from types import SimpleNamespace

import pytest

from config.settings import ModelSettings
from workers.executor.device_memory import limit_device_memory, pin, unpin
from workers.executor.segments import Opened, Place
from workers.executor.shared_bytes import MappedSegments


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    told: list[tuple[float, int]] = []
    cuda = SimpleNamespace(
        is_available=lambda: True, set_per_process_memory_fraction=lambda part, device: told.append((part, device))
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return told


def model(device: str = "cuda", fraction: float | None = 0.4) -> ModelSettings:
    return ModelSettings(name="m", source="a:B", device=device, memory_fraction=fraction)


def test_torch_is_told_its_share_of_the_device(told: list[tuple[float, int]]) -> None:
    limit_device_memory(model())
    limit_device_memory(model("cuda:2"))
    limit_device_memory(model(fraction=None))
    assert told == [(0.4, 0), (0.4, 2)]


def test_without_cuda_or_without_torch_nothing_is_asked(
    told: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.modules["torch"].cuda.is_available = lambda: False  # type: ignore[attr-defined]
    limit_device_memory(model())
    monkeypatch.delitem(sys.modules, "torch")
    limit_device_memory(model())
    assert told == []


class Runtime:
    """CUDA's calls, with the addresses that are pinned. `error`: what the next ones return."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.pinned: dict[int, tuple[int, int]] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        if not self.error:
            self.pinned[address] = (size, flags)
        return self.error

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.pinned[address]
        return 0


def loaded(monkeypatch: pytest.MonkeyPatch, runtime: Runtime, *, initialized: bool = True) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: initialized, cudart=lambda: runtime)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_shared_memory_is_pinned_once_and_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    loaded(monkeypatch, runtime)
    with mmap.mmap(-1, 8192) as mapping:
        assert pin(mapping)
        assert list(runtime.pinned.values()) == [(8192, 1)]
        unpin(mapping)
        assert runtime.pinned == {}


def test_what_cannot_be_pinned_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with mmap.mmap(-1, 4096) as mapping:
        assert not pin(mapping)
        loaded(monkeypatch, Runtime(), initialized=False)
        assert not pin(mapping)
        loaded(monkeypatch, Runtime(error=2))
        assert not pin(mapping)
        monkeypatch.setitem(
            sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True, cudart=None))
        )
        assert not pin(mapping)


def test_a_segment_is_pinned_when_it_comes_and_unpinned_when_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    loaded(monkeypatch, runtime)
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 1 << 20)
    segments = MappedSegments()
    (value,) = segments.take([Place(0, 1, 4096, 10)], [Opened(1, 1 << 20, kept=True)], [descriptor])
    assert len(value) == 10
    assert [size for size, _ in runtime.pinned.values()] == [1 << 20]
    del value
    segments.forget([1])
    assert not runtime.pinned
