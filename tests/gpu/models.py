"""The models of the checks. They run in executors, and are all that calls CUDA.

`device` of a constructor is `cpu` in a rehearsal: then faults of a device are raised by hand, with torch's own classes.
"""

from __future__ import annotations

import math
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

ROWS = 1000
WIDTH = 64
# So many inputs fit into the memory that a `Greedy` may have.
FITTING = 24.5
_ASSERTED = "CUDA error: device-side assert triggered"
_FULL = "CUDA out of memory. Tried to allocate more than a rehearsal allows"


class Where:
    """Tells where it runs: `[argument of load, CUDA_VISIBLE_DEVICES, number of GPUs in torch, UUID of the first]`."""

    def __init__(self, device: str) -> None:
        self._is_real = device == "cuda"

    def load(self, device: str) -> None:
        self._about: list[Any] = [device, os.environ.get("CUDA_VISIBLE_DEVICES"), None, ""]
        if self._is_real:
            import torch

            # A context, as any model has one.
            torch.zeros(1, device=device)
            # Without `GPU-`; older versions of torch lack it.
            uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
            self._about[2:] = [torch.cuda.device_count(), uuid]

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return [self._about] * len(inputs)


class Lookup:
    """The row of a table for each index, squared. An index beyond `ROWS` is a device-side assert: it is found by the
    kernel, not by the host, and from then on every call of this process to the device fails.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._is_poisoned = False

    def load(self, device: str) -> None:
        import torch

        self._torch = torch
        self._table = torch.arange(ROWS, dtype=torch.float32, device=self._device)

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if self._device == "cpu":
            self._rehearse(inputs)
        indices = self._torch.tensor(inputs, device=self._device)
        # The copy to the host is what waits for the kernel.
        rows: list[Any] = (self._table[indices] ** 2).cpu().tolist()
        return rows

    def _rehearse(self, inputs: list[Any]) -> None:
        self._is_poisoned = self._is_poisoned or max(inputs) >= ROWS
        if self._is_poisoned:
            raise self._torch.AcceleratorError(_ASSERTED)


class Greedy:
    """Takes a piece of the device's memory for each input of a call; `FITTING` of them fit. An output is the size of
    its call.

    Args:
        fraction: the piece is part of that share of all memory, instead of all that is free.
    """

    def __init__(self, device: str, fraction: float = 0.0) -> None:
        self._device = device
        self._fraction = fraction

    def load(self, device: str) -> None:
        import torch

        self._torch = torch
        self._piece = 1.0 if self._device == "cpu" else 0.0

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        if not self._piece:
            # Not in `load`: the neighbours were still loading then.
            free, total = self._torch.cuda.mem_get_info()
            self._piece = (total * self._fraction or free) / FITTING
        size = math.floor(len(inputs) * self._piece)
        if self._device != "cpu":
            block = self._torch.empty(size, dtype=self._torch.uint8, device=self._device)
            del block
            # The next call asks the driver again, and neighbours on the GPU have their memory back.
            self._torch.cuda.empty_cache()
        elif size > FITTING:
            raise self._torch.OutOfMemoryError(_FULL)
        return [len(inputs)] * len(inputs)


class Compiled:
    """A network that `torch.compile` records anew for each size of a batch. An output is `[value, the number of
    graphs that were compiled so far, the compiler, what went wrong]`.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._graphs = 0
        self._problem = ""

    def load(self, device: str) -> None:
        import torch
        from torch._dynamo import lookup_backend

        self._torch = torch
        self._backend = compiler(self._device)
        compile_graph = lookup_backend(self._backend)

        def counted(graph: Any, inputs: Any) -> Any:
            self._graphs += 1
            return compile_graph(graph, inputs)

        torch.manual_seed(0)
        layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, 1)]
        self._eager = torch.nn.Sequential(*layers).to(self._device).eval()
        # One graph for each size: by default the second one would make it dynamic.
        self._compiled = torch.compile(self._eager, backend=counted, dynamic=False)

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        with self._torch.inference_mode():
            rows = self._torch.tensor(inputs, dtype=self._torch.float32, device=self._device)[:, None].expand(-1, WIDTH)
            rows = rows.contiguous()
            expected = self._eager(rows)
            try:
                found = self._compiled(rows)
                if not self._torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
                    self._problem = "the compiled network computes something else"
            except Exception as error:  # noqa: BLE001 - told by the check: without this model the whole stack would not start
                self._problem, found = f"{type(error).__name__}: {error}", expected
            told = [self._graphs, self._backend, self._problem]
            return [[value, *told] for value in found[:, 0].cpu().tolist()]


def compiler(device: str) -> str:
    """The backend of `torch.compile` that works here: inductor needs a C compiler and Python's headers."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if headers.exists() and any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "inductor"
    return "cudagraphs" if device == "cuda" else "aot_eager"
