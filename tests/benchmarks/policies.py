"""Benchmarks the policies on a running system: one stack, the same model once under each policy, measured in turn.

`python -m tests.benchmarks.policies` measures `simulated` (20 ms + 0.5 ms·n) at low load, saturated and under bursts;
with `--minilm` a real model at 80 % of its capacity. Every number is from `manage.py bench`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.benchmarks.bunch_system import ROOT, Bunch

SIMULATED = """
[models.{name}]
source = "workers.models.simulated:Simulated"
options = {{ batch_ms = 20, item_ms = 0.5 }}
policy = "{policy}"
"""
MINILM = """
[models.{name}]
source = "workers.models.minilm:MiniLM"
policy = "{policy}"
"""
BARE_MS = 20.5
SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of load, and the figure of `manage.py bench` that counts for it."""

    name: str
    options: tuple[str, ...]
    shows: str


LOADS = (
    Load("low", ("--rps=5", "--duration=10"), "p50_ms"),
    Load("saturated", ("--concurrency=256", "--duration=5", "--warmup=1"), "rps"),
    # During the warm-up a policy learns about its callers. Bursts come at Poisson times: of two per second, one in ten
    # meets another, which determines the p99.
    Load("bursts", ("--rps=24", "--burst=24", "--duration=15", "--warmup=2"), "p99_ms"),
    Load("two bursts a second", ("--rps=96", "--burst=48", "--duration=8", "--warmup=2"), "p99_ms"),
)


def bench(stack: Bunch, model: str, *options: str) -> dict[str, Any]:
    """`manage.py bench --json`."""
    done = subprocess.run(
        [sys.executable, "manage.py", "bench", "--json", f"--url={stack.url}", f"--model={model}", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def serving(template: str, policies: Sequence[str]) -> Bunch:
    """A started stack; the caller stops it."""
    models = "".join(template.format(name=policy, policy=policy) for policy in policies)
    stack = Bunch()
    stack.open_run()
    try:
        stack.launch_with(f'default_model = "{policies[0]}"\n{models}', {})
        stack.wait_ready()
    except BaseException:
        stack.stop()
        raise
    return stack


def simulated(policies: Sequence[str], rounds: int, names: Sequence[str]) -> None:
    """Print a row for each policy and load, with the rounds side by side."""
    results: dict[tuple[str, str], list[float]] = {}
    loads = [load for load in LOADS if load.name in names]
    stack = serving(SIMULATED, policies)
    try:
        for _ in range(rounds):
            for load in loads:
                for policy in policies:
                    found = bench(stack, policy, *load.options)
                    results.setdefault((load.name, policy), []).append(found[load.shows])
    finally:
        stack.stop()
    for load in loads:
        print(f"\n{load.name}: {load.shows}" + (f" (the bare model: {BARE_MS})" if load.name == "low" else ""))
        for policy in policies:
            values = results[load.name, policy]
            print(f"  {policy:12} median {median(values):9.1f}   rounds {values}")


def minilm(policies: Sequence[str], rounds: int) -> None:
    """Compare the learned line with the measured one, and the policies with an objective at 80 % of the model's
    capacity.
    """
    stack = serving(MINILM, policies)
    try:
        for size in SIZES:
            bench(stack, policies[0], f"--concurrency={size}", "--duration=1.5")
        line = learnt(stack)[f"{policies[0]}/0"]
        measured = measure()
        print("\nbatch of   measured ms   learnt ms")
        for size, took_ms in measured.items():
            print(f"{size:8} {took_ms:13.1f} {line['batch_ms'] + line['item_ms'] * size:11.1f}")
        slo_ms = round(2.5 * measured[SIZES[-1]])
        print(f"\nanswered within {slo_ms} ms at 80 % of the most that 128 callers got just before:")
        for turn in range(rounds):
            # Measured again in each round, with each policy first in turn: other work on the machine reduces the
            # capacity.
            rate = 0.8 * bench(stack, policies[0], "--concurrency=128", "--duration=5", "--warmup=2")["rps"]
            print(f"{rate:.0f} requests/s")
            for policy in (*policies[turn % len(policies) :], *policies[: turn % len(policies)]):
                found = bench(stack, policy, f"--rps={rate:.1f}", "--duration=10", "--warmup=2", f"--slo-ms={slo_ms}")
                share = found["goodput_rps"] / found["rps"]
                print(f"  {policy:12} {share:7.1%}   p50 {found['p50_ms']:.0f}  p99 {found['p99_ms']:.0f} ms")
    finally:
        stack.stop()


def learnt(stack: Bunch) -> dict[str, Any]:
    """The figures that the worker's claim loops have learned, from `inspect stats`."""
    from celery import Celery

    with Celery(broker=stack.redis_url()) as app:
        for stats in (app.control.inspect(timeout=3.0).stats() or {}).values():
            if "bunch" in stats and stats["bunch"].get("learnt"):
                found: dict[str, Any] = stats["bunch"]["learnt"]
                return found
    raise RuntimeError("no worker answered")


def measure() -> dict[int, float]:
    """Run the same texts through the model in this process: milliseconds by batch size, the median of seven."""
    from workers.models.minilm import MiniLM

    model = MiniLM()
    model.load("cpu")
    model.warmup()
    found = {}
    for size in SIZES:
        texts = [f"Request {n} of a load test" for n in range(size)]
        took = []
        for _ in range(7):
            began = time.perf_counter()
            model.finish(model.predict(model.prepare(texts, [{}] * size), []))
            took.append((time.perf_counter() - began) * 1000)
        found[size] = median(took)
    return found


def main() -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", nargs="+", default=["adaptive", "fixed", "idle"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", nargs="+", default=[load.name for load in LOADS], help="by name")
    parser.add_argument("--minilm", action="store_true")
    options = parser.parse_args()
    if options.minilm:
        minilm(options.policies, options.rounds)
    else:
        simulated(options.policies, options.rounds, options.loads)


if __name__ == "__main__":
    main()
