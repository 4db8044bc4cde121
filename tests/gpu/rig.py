"""A stack with the models of the checks: a real Redis, frontend and worker, with executors on the device."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from batching.executor import ExecutorState
from tasks.fleet.registry_reader import ExecutorRow, Fleet
from tests.e2e.client import Api, connected
from tests.e2e.stack import Stack
from tests.gpu.device import Device
from tests.waiting import wait_until

FAKE_DRIVER = Path(__file__).parents[1] / "fakes" / "driver"
SIZES = (1, 4, 16)
FRACTION = 0.05
# A fresh process loads torch, opens a context and compiles.
_LOADING_MS = 240_000
_ANSWER_MS = 120_000
_SECTIONS = {
    "where": 'source = "tests.gpu.models:Where"\ndevices = {places}\nmax_batch_size = 1\n'
    'options = {{ device = "{torch}" }}',
    "lookup": 'source = "tests.gpu.models:Lookup"\n{on}{alike}options = {{ device = "{torch}" }}',
    "lookup-spare": 'source = "tests.gpu.models:Lookup"\n{on}{alike}spare = true\noptions = {{ device = "{torch}" }}',
    "greedy": 'source = "tests.gpu.models:Greedy"\n{on}{alike}options = {{ device = "{torch}" }}',
    "greedy-part": 'source = "tests.gpu.models:Greedy"\n{on}{alike}memory_fraction = {fraction}\n'
    'options = {{ device = "{torch}", fraction = {fraction} }}',
    "compiled": 'source = "tests.gpu.models:Compiled"\n{on}batch_sizes = {sizes}\nwarmup_input = 1\n'
    'options = {{ device = "{torch}" }}',
    "minilm": 'source = "workers.models.minilm:MiniLM"\n{minilm}',
    "minilm-single": 'source = "workers.models.minilm:MiniLM"\n{minilm}max_batch_size = 1\n',
}
MODELS = tuple(_SECTIONS)


def config(device: Device, models: Collection[str]) -> str:
    """The `bunch.toml` of these models on the device."""
    first = f"devices = {json.dumps(device.entries[:1])}\n"
    values = {
        "torch": device.torch,
        "places": json.dumps(places(device)),
        "on": first,
        # One full batch, however slowly its requests come.
        "alike": 'policy = "fixed"\nmax_batch_size = 64\nmax_wait_ms = 1500\n',
        "minilm": first if device.is_real else 'device = "cpu"\n',
        "sizes": json.dumps(SIZES),
        "fraction": FRACTION,
    }
    tables = (f"[models.{name}]\n{text.format(**values)}" for name, text in _SECTIONS.items() if name in models)
    common = f"start_timeout_ms = {_LOADING_MS}\ntimeout_ms = 60000\n"
    return "\n".join(f"{table.rstrip()}\n{common}" for table in tables)


def places(device: Device) -> tuple[str, ...]:
    """Every GPU, and the first one by its index as well: both names must lead to the same one."""
    return tuple(dict.fromkeys((*device.entries, *(("cuda:0",) if device.is_real else ()))))


@dataclass(frozen=True, slots=True)
class Rig:
    """A running stack. `seconds` is the length of a measurement."""

    device: Device
    stack: Stack
    api: Api
    seconds: float

    def executors(self, model: str) -> list[ExecutorRow]:
        """A model's executors, as their worker reports them."""
        with self.stack.redis() as redis:
            return [each for row in Fleet(redis).workers() for each in row.models if each.model == model]

    def has_tried(self, model: str) -> bool:
        """Return whether all executors of the model are ready, or could not load it."""
        states = {each.state for each in self.executors(model)}
        return bool(states) and states <= {ExecutorState.READY.value, ExecutorState.FAILED.value}

    def replacements(self, model: str) -> dict[str, int]:
        """The number of processes that were replaced so far, by reason."""
        pattern = rf'^bunch_executor_replacements_total\{{model="{model}",reason="(\w+)"\}} (\S+)$'
        rows = re.findall(pattern, self.api.get("/metrics").body.decode(), re.MULTILINE)
        return {reason: int(float(count)) for reason, count in rows if float(count)}

    def load(self, model: str, callers: int) -> subprocess.Popen[bytes]:
        """Begin a measurement of `manage.py bench` with so many callers."""
        options = f"--model={model} --concurrency={callers} --duration={self.seconds} --warmup=1 --json".split()
        return self.stack.spawn("bench", f"--url={self.stack.url}", *options, stdout=subprocess.PIPE)


@contextmanager
def running(device: Device, models: Collection[str], seconds: float) -> Iterator[Rig]:
    """A stack with these models, all of them ready."""
    with tempfile.TemporaryDirectory(prefix="bunch-gpu-") as name:
        folder = Path(name)
        environment = {} if device.is_real else _with_fake_driver(folder, device)
        stack = Stack(folder, config(device, models), environment=environment)
        patient = {"admission": "off", "queue_timeout_ms": _ANSWER_MS, "request_timeout_ms": _ANSWER_MS}
        web_workers = max(1, min(4, (os.cpu_count() or 1) // 4))
        try:
            stack.start(f"--web-workers={web_workers}", "--workers=1", "--no-flower", **patient)
            with connected(stack.port) as api:
                try:
                    rig = Rig(device, stack, api, seconds)
                    for model in models:
                        wait_until(partial(rig.has_tried, model), what=f"{model} is loaded")
                    yield rig
                except BaseException:
                    # Its end answers the calls that are under way, for which `connected` would wait.
                    stack.kill()
                    raise
            stack.stop()
        except BaseException:
            # The folder is gone in a moment.
            print(stack.last_logs())
            raise
        finally:
            stack.kill()


def _with_fake_driver(folder: Path, device: Device) -> dict[str, str]:
    gpus = folder / "gpus.json"
    gpus.write_text(json.dumps({each: {"busy": 25, "memory": [10, 100]} for each in device.gpus}))
    path = os.pathsep.join(filter(None, (str(FAKE_DRIVER), os.environ.get("PYTHONPATH"))))
    return {"NVML_FAKE": str(gpus), "PYTHONPATH": path}
