"""The checks: each yields rows of the table, and raises AssertionError where something is not as it must be.

Times are shown and never judged: they depend on the machine.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tasks.fleet.registry_reader import Fleet
from tests.benchmarks import overlap
from tests.gpu.models import FITTING, ROWS
from tests.gpu.rig import FRACTION, SIZES, Rig, places
from tests.waiting import wait_until
from workers.health.nvml import open_nvml

BATCH = 64
CULPRIT = 40
_TOLERANCE = 1e-3
_CALLERS = 64
_SETTLE_S = 0.2
_TEXTS = ["a bunch of celery", "GPUs fail in company", "one bad input", "x " * 100]


class Row(NamedTuple):
    """One figure of the table."""

    figure: str
    value: str


Rows = Iterator[Row]


def make(rig: Rig, name: str) -> Rows:
    """Make a check, if its models could be loaded."""
    check = CHECKS[name]
    for model in check.models:
        for executor in rig.executors(model):
            assert executor.error is None, f"{executor.executor} could not be loaded: {executor.error}"
    yield from check.run(rig)


class Skip(Exception):
    """The check cannot be made here; the text says why."""


class Check(NamedTuple):
    """A check, with the models that it needs."""

    run: Callable[[Rig], Rows]
    models: tuple[str, ...]


def placement(rig: Rig) -> Rows:
    """Each executor sees its own GPU alone, by UUID and by index; the worker opens no context."""
    expected = rig.device.visible(places(rig.device))
    found: dict[str, list[Any]] = {}

    def all_seen() -> bool:
        found.update({each.json["output"][1]: each.json["output"] for each in rig.api.all(range(BATCH), "where")})
        return found.keys() >= expected.keys()

    wait_until(all_seen, what="every executor has answered")
    assert found.keys() == expected.keys(), f"CUDA_VISIBLE_DEVICES is {sorted(found)}, not {sorted(expected)}"
    assert {device for device, *_ in found.values()} == {"cuda"}, found
    yield Row("executors, each with its own CUDA_VISIBLE_DEVICES", ", ".join(sorted(found)))
    if not rig.device.is_real:
        yield Row("the GPU that torch sees", "skipped: needs a GPU")
        return
    for visible, (_, _, count, uuid) in sorted(found.items()):
        assert count == 1, f"the executor with {visible} sees {count} GPUs"
        if uuid and expected[visible].startswith("GPU-"):
            assert expected[visible] == f"GPU-{uuid.removeprefix('GPU-')}", f"{visible} is {uuid} in torch"
        yield Row(f"the GPU that torch sees for {visible}", uuid or "not told")
    for pid in rig.stack.pids("worker"):
        assert "libcuda.so" not in Path(f"/proc/{pid}/maps").read_text(), "the worker has loaded CUDA"
    yield Row("CUDA in the worker itself", "none")


def nvml(rig: Rig) -> Rows:
    """The driver's figures: read directly, and as the stack shows them under load."""
    if rig.device.is_real:
        driver = open_nvml()
        if driver is None:
            raise Skip("nvidia-ml-py is not installed (pip install -r requirements-gpu.txt), or NVML does not answer")
        for each in driver.read(rig.device.gpus):
            assert 0 < each.memory_share < 1, each
            assert each.temperature_c, each
            assert not each.lost, each
            yield Row(f"{each.device}: throttled, ECC errors", f"{each.throttled or 'no'}, {each.uncorrected}")
        driver.close()
    bench = rig.load("minilm", _CALLERS)
    busy: list[float] = []

    def is_over() -> bool:
        # None while the driver has not been read, and for MIG instances.
        with suppress(TypeError):
            busy.append(float(rig.api.get("/internal/health").json["gpu_utilization"]))
        return bench.poll() is not None

    wait_until(is_over, what="the load is over")
    bench.communicate()
    assert bench.returncode == 0, "no request was answered"
    assert rig.device.is_divided or (busy and max(busy) > 0), f"gpu_utilization under load: {busy}"
    yield Row("gpu_utilization under load, at most", f"{max(busy):.0%}" if busy else "not told: MIG")
    shown = rig.api.get("/metrics").body.decode().splitlines()
    for metric in ("memory_used_bytes", "memory_total_bytes", "temperature_celsius"):
        values = [float(line.rpartition(" ")[2]) for line in shown if line.startswith(f"bunch_gpu_{metric}{{")]
        assert values, f"/metrics has no bunch_gpu_{metric}"
        assert min(values) > 0, f"bunch_gpu_{metric}: {values}"
        yield Row(f"bunch_gpu_{metric}", ", ".join(f"{each:,.0f}" for each in values))
    with rig.stack.redis() as redis:
        (row,) = Fleet(redis).workers()
    yield Row("health of the worker", f"{row.health} {'; '.join(row.reasons)}".strip())


def minilm(rig: Rig) -> Rows:
    """Right answers, then requests per second and latency: one caller, many without batches, many with."""
    from workers.models.minilm import MiniLM

    reference = MiniLM(threads=1)
    reference.load("cpu")
    wanted = [each.value for each in reference.finish(reference.predict(reference.prepare(_TEXTS, [{}] * 4), []))]
    answers = rig.api.all(_TEXTS * 16, "minilm")
    assert {each.status for each in answers} == {200}, answers[0]
    off = max(
        abs(one - other)
        for number, each in enumerate(answers)
        for one, other in zip(each.json["output"], wanted[number % len(wanted)], strict=True)
    )
    assert off < _TOLERANCE, f"embeddings differ by {off} from those of a CPU"
    yield Row("largest difference from the embeddings of a CPU", f"{off:.1e}")
    for name, model, callers in (
        ("one caller", "minilm", 1),
        (f"{_CALLERS} callers, one request at a time", "minilm-single", _CALLERS),
        (f"{_CALLERS} callers, batched", "minilm", _CALLERS),
    ):
        output, _ = rig.load(model, callers).communicate()
        summary = json.loads(output)
        assert summary["codes"].keys() == {"200"}, summary["codes"]
        figures = f"{summary['rps']:,.0f}/s, p50 {summary['p50_ms']} ms, p99 {summary['p99_ms']} ms"
        limit = (summary["client"] or {}).get("limit")
        yield Row(name, f"{figures}, batches of {summary['mean_batch']}{' (limited by the client)' if limit else ''}")


def compiled(rig: Rig) -> Rows:
    """`torch.compile` with `batch_sizes`: a graph for each size when the executor is ready, and none afterwards."""
    counts, took_ms, backend = set(), [], ""
    for size in (*range(1, max(SIZES) + 1), *SIZES):
        began = time.perf_counter()
        answers = rig.api.all([n / 10 for n in range(size)], "compiled")
        took_ms.append((time.perf_counter() - began) * 1000)
        assert {each.status for each in answers} == {200}, answers[0]
        for each in answers:
            _, graphs, backend, problem = each.json["output"]
            assert not problem, f"{backend}: {problem}"
            counts.add(graphs)
    assert counts == {len(SIZES)}, f"{sorted(counts)} graphs for {len(SIZES)} sizes: one was compiled under load"
    (padding,) = (
        float(line.rpartition(" ")[2])
        for line in rig.api.get("/metrics").body.decode().splitlines()
        if line.startswith('bunch_padding_total{model="compiled"}')
    )
    assert padding > 0, "no batch was padded"
    loads = [
        float(line.rpartition(" ")[2])
        for line in rig.api.get("/metrics").body.decode().splitlines()
        if line.startswith('bunch_executor_load_seconds_sum{model="compiled"}')
    ]
    yield Row(f"graphs of {backend} for sizes {', '.join(map(str, SIZES))}", f"{len(SIZES)}, none under load")
    yield Row("load and warm-up of every size", f"{loads[0]:.1f} s" if loads else "not told")
    yield Row("batches of 1 to 16 over HTTP", f"median {statistics.median(took_ms):.1f} ms, max {max(took_ms):.1f} ms")


def stages(rig: Rig) -> Rows:
    """`minilm` with overlapping stages, and with all three in one `predict`, in turn."""
    executors = {kind: overlap.start(kind, 0.0, rig.device.torch) for kind in (overlap.InOne, overlap.Overlapping)}
    rates: dict[type[Any], list[float]] = {kind: [] for kind in executors}
    try:
        for executor in executors.values():
            overlap.throughput(executor, BATCH, _SETTLE_S)
        for _ in range(2):
            for kind, executor in executors.items():
                rates[kind].append(overlap.throughput(executor, BATCH, rig.seconds / 2))
    finally:
        for executor in executors.values():
            executor.stop(1.0)
    in_one, overlapping = (max(rates[kind]) for kind in (overlap.InOne, overlap.Overlapping))
    yield Row("in one predict, batches of 64, no HTTP", f"{in_one:,.0f}/s")
    yield Row("in overlapping stages", f"{overlapping:,.0f}/s ({overlapping / in_one - 1:+.0%})")


def memory(rig: Rig) -> Rows:
    """A batch beyond the device's memory, and one beyond `memory_fraction`: all are answered, in smaller calls."""
    for model, limit in (("greedy", "all free memory"), ("greedy-part", f"memory_fraction {FRACTION}")):
        sizes = []
        for _ in range(2):
            began = time.perf_counter()
            answers = rig.api.all(range(BATCH), model)
            took_s = time.perf_counter() - began
            assert {each.status for each in answers} == {200}, next(each for each in answers if each.status != 200)
            sizes.append(max(each.json["output"] for each in answers))
        assert max(sizes) <= FITTING, f"a call of {max(sizes)} fitted into {limit}, which has room for {FITTING:.0f}"
        (row,) = rig.executors(model)
        assert row.safe_size is not None, f"{model} did not run out of memory"
        assert row.restarts == 0, f"{model} was started again"
        value = f"64 of 64, calls of {sizes[-1]}, safe size {row.safe_size}, {took_s:.1f} s"
        yield Row(f"64 requests for 2.6 times {limit}", value)


def device_assert(rig: Rig) -> Rows:
    """A device-side assert in a batch of 64: a new process, one failure, 63 right answers; with and without a spare."""
    for model in ("lookup", "lookup-spare"):
        inputs = list(range(BATCH))
        inputs[CULPRIT] = ROWS + 7
        began = time.perf_counter()
        answers = rig.api.all(inputs, model)
        took_s = time.perf_counter() - began
        wrong = [n for n, each in enumerate(answers) if n != CULPRIT and each.status != 200]
        assert not wrong, f"{len(wrong)} neighbours failed, for example {answers[wrong[0]].json}"
        assert answers[CULPRIT].status == 500, answers[CULPRIT]
        assert answers[CULPRIT].error == "INFERENCE_FAILED", answers[CULPRIT]
        for n, each in enumerate(answers):
            assert n == CULPRIT or each.json["output"] == float(n * n), f"{n}: {each.json}"
        # One for the batch, one for the culprit that was alone in the next: no process can tell earlier.
        wait_until(lambda: sum(rig.replacements(model).values()) >= 2, what="the replacements are counted")  # noqa: B023
        replaced = rig.replacements(model)
        assert replaced.keys() == {"device"}, f"processes were replaced for {replaced}"
        after = rig.api.all(range(BATCH), model)
        assert {each.status for each in after} == {200}, after[0]
        assert rig.replacements(model) == replaced, "a process was replaced once more"
        name = "with a spare" if model.endswith("spare") else "without a spare"
        yield Row(f"63 of 64 right, {name}", f"{took_s:.1f} s, {replaced['device']} processes replaced")
    xids = [line for line in rig.api.get("/metrics").body.decode().splitlines() if line.startswith("bunch_gpu_errors")]
    yield Row("errors that the driver reported", ", ".join(xids) or "none")


# Faults come last: they may disturb the neighbours on the GPU.
CHECKS = {
    "placement": Check(placement, ("where",)),
    "nvml": Check(nvml, ("minilm",)),
    "minilm": Check(minilm, ("minilm", "minilm-single")),
    "compile": Check(compiled, ("compiled",)),
    # Any stack; its executors are its own.
    "overlap": Check(stages, ("minilm",)),
    "memory": Check(memory, ("greedy", "greedy-part")),
    "assert": Check(device_assert, ("lookup", "lookup-spare")),
}
