"""`memory_fraction` in an executor's process, with a stand-in for torch."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from config.settings import ModelSettings
from workers.executor.device_memory import limit_device_memory


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
