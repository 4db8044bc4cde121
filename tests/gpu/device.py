"""The GPUs of this machine, or two stand-ins."""

from __future__ import annotations

from dataclasses import dataclass

from config.process.devices import placement, this_machine
from config.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class Device:
    """The device that the checks run on.

    Args:
        torch: the device's name in torch, `cuda` or `cpu`.
        gpus: names for CUDA_VISIBLE_DEVICES: UUIDs where the driver tells them, or indices.
    """

    torch: str
    gpus: tuple[str, ...]

    @property
    def is_real(self) -> bool:
        return self.torch == "cuda"

    @property
    def entries(self) -> tuple[str, ...]:
        """An entry of `devices` in bunch.toml for each GPU, in order."""
        return tuple(f"cuda:{n}" if each.isdigit() else each for n, each in enumerate(self.gpus))

    def visible(self, entries: tuple[str, ...]) -> dict[str, str]:
        """CUDA_VISIBLE_DEVICES of the executors with these entries, and the GPU that it stands for."""
        model = ModelSettings(name="m", source="a:B", devices=entries)
        found = {}
        for number, entry in enumerate(entries):
            gpu = self.gpus[self.entries.index(entry)] if entry in self.entries else self.gpus[0]
            found[placement(model, None, number, this_machine()).visible or ""] = gpu
        return found

    @property
    def is_divided(self) -> bool:
        """Return whether these are MIG instances."""
        return any(each.startswith("MIG-") for each in self.gpus)


STAND_IN = Device("cpu", ("GPU-a", "GPU-b"))


def missing() -> str:
    """The reason why there is no GPU to check; empty where there is one. Loads no torch."""
    machine = this_machine()
    return "" if machine.auto == "cuda" else machine.why or "no GPU was found"


def this_device() -> Device:
    """The GPUs of this machine. Call `missing` first."""
    return Device("cuda", this_machine().gpus)
