"""`demo`: runs the whole stack on real input, and measures the gain of batching on this machine.

    200 callers, one sentence each, at once ──▶ minilm ──▶ neighbours, batch sizes
    as many callers, for a while ──▶ minilm-single (max_batch_size = 1)  "one at a time"
                                 ──▶ minilm                              "batched"

Both rows come from the same stack, the same model source and the same number of callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from cli.base import print_table
from cli.loadgen.arrivals import Caller
from cli.loadgen.load import Answer, Load, Run
from cli.loadgen.summary import Summary, mean_batch, summarise
from cli.supervisor import state
from config.secrets.private_files import restrict_umask
from config.settings import Settings, load_settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

SENTENCES = Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").splitlines()
# Generous on purpose: deadlines are not the point here, and both rows have the same ones.
TIMEOUT_MS = 60_000
_BATCHED, _SINGLE = "minilm", "minilm-single"
_MEASURE_S = 3.0
# On a machine that does much else at the moment, one measurement of three seconds may say anything.
_MEASUREMENTS = 3
_TOPIC_SIZE = 10
_SHOWN = (3, 10, 34, 60, 70, 120)
# Chance would give one in twenty.
_MIN_SAME_TOPIC = 0.5
_RECOMPUTED = 8
_MIN_COSINE = 0.999
# The same for both rows: the model leaves one core to the other processes, which is half of a two-core machine.
_CORES = len(os.sched_getaffinity(0))
_CONFIG = f"""\
default_model = "{_BATCHED}"

[server]
queue_timeout_ms = {TIMEOUT_MS}
request_timeout_ms = {TIMEOUT_MS}
admission = "off"

[models.{_BATCHED}]
source = "workers.models.minilm:MiniLM"
options = {{ threads = {_CORES} }}
max_batch_size = 64

[models.{_SINGLE}]
source = "workers.models.minilm:MiniLM"
options = {{ threads = {_CORES} }}
max_batch_size = 1
"""


class DemoFailed(Exception):
    """The answers are missing or wrong."""


class _Body(msgspec.Struct):
    output: list[float]


@click.command()
def demo() -> None:
    """Start the stack, send 200 sentences as 200 concurrent requests, show the answers, and stop.

    Exit 1 when an answer is missing or wrong, or when no requests were batched.
    """
    from cli.supervisor.disk import required_room
    from cli.supervisor.run import Work, run
    from cli.supervisor.screen import Screen
    from cli.supervisor.stack import Options, Stack

    restrict_umask()
    screen = Screen(sys.stdout)
    with (
        required_room(Path(load_settings().state_dir)),
        _temporary_settings() as settings,
        state.UpLock(Path(settings.state_dir)),
    ):
        stack = Stack(settings, Options(give_up_on_errors=True))
        run(stack, screen, lambda: screen.line(f"ready at {stack.url}"), Work(lambda: _show_off(stack.url)))
    screen.line("stopped; the demo succeeded")


@contextlib.contextmanager
def _temporary_settings() -> Iterator[Settings]:
    folder = Path(load_settings().state_dir) / f"demo-{os.getpid()}"
    folder.mkdir(mode=0o700, parents=True)
    try:
        config_file = folder / "bunch.toml"
        config_file.write_text(_CONFIG, encoding="utf-8")
        settings = load_settings(config_file=str(config_file))
        yield msgspec.structs.replace(settings, state_dir=str(folder), http_port=0, flower_port=0, redis_url="")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _show_off(base_url: str) -> None:
    url = f"{base_url}/v1/inference"
    answers = _ask(url, _BATCHED, SENTENCES)
    vectors = _vectors(answers)
    click.echo(
        f"\n{len(answers)} sentences sent as {len(answers)} simultaneous requests; {vectors.shape[1]} numbers each."
    )
    _show_neighbours(vectors)
    _show_batches(answers)
    _check_against_alone(url, vectors)

    for left in reversed(range(_MEASUREMENTS)):
        single = _measure(url, _SINGLE)
        batched = _measure(url, _BATCHED)
        _show_comparison(single, batched)
        if batched.rps > single.rps or not left:
            break
        click.echo("\n  Another program may have taken the processor meanwhile: measured again.")
    if (batched.mean_batch or 0) <= 1:
        raise DemoFailed("nothing was batched: each batch held one request")
    if batched.rps <= single.rps:
        raise DemoFailed("batching made it slower")


def _ask(url: str, model: str, sentences: list[str], duration_s: float | None = None) -> list[Answer]:
    """Send each sentence from a caller of its own, at once: a single time, or repeatedly for `duration_s`. Answers are
    in the order of the sentences.
    """
    load_run = Run(keep_bodies=True)
    bodies = [msgspec.json.encode({"model": model, "input": sentence}) for sentence in sentences]
    # Batching is measured, so no sentence is answered from the cache.
    callers = (Caller(headers={"Cache-Control": "no-cache"}),)
    load = Load(url, lambda number: bodies[number % len(bodies)], TIMEOUT_MS / 1000, load_run, callers)
    if duration_s is None:
        asyncio.run(load.closed(len(sentences), total=len(sentences)))
    else:
        asyncio.run(load.closed(len(sentences), duration_s=duration_s))
    bad = Counter(answer.status for answer in load_run.answers if answer.status != 200)
    if bad:
        raise DemoFailed(f"{model} did not answer everything: {dict(bad)}")
    return sorted(load_run.answers, key=lambda answer: answer.number)


def _vectors(answers: list[Answer]) -> Vectors:
    """One normalised row per answer, so that a product of two rows is their cosine."""
    import numpy as np

    rows = np.array([msgspec.json.decode(answer.body, type=_Body).output for answer in answers], dtype=np.float32)
    unit: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _show_neighbours(vectors: Vectors) -> None:
    import numpy as np

    click.echo("The nearest sentences, according to the model:\n")
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -1.0)
    for number in _SHOWN:
        click.echo(f"  {SENTENCES[number]}")
        for other in np.argsort(-likeness[number])[:2]:
            click.echo(f"    {likeness[number, other]:.2f}  {SENTENCES[other]}")
    same = sum(number // _TOPIC_SIZE == other // _TOPIC_SIZE for number, other in enumerate(likeness.argmax(axis=1)))
    click.echo(f"\n  The nearest is on the same topic for {same} of {len(SENTENCES)}.")
    if same < _MIN_SAME_TOPIC * len(SENTENCES):
        raise DemoFailed("the nearest sentences make no sense: these are not the embeddings of the sentences")


def _show_batches(answers: list[Answer]) -> None:
    sizes = Counter({answer.batch_id: answer.batch_size for answer in answers}.values())
    click.echo("\nThe batches:\n")
    for size, count in sorted(sizes.items()):
        click.echo(f"  {size:3} requests  {'■' * count} {count}")
    click.echo(f"\n  mean batch size {mean_batch(answers)}")


def _check_against_alone(url: str, vectors: Vectors) -> None:
    """Check that each answer belongs to its sentence: the same sentence computed alone gives the same numbers."""
    chosen = range(0, len(SENTENCES), len(SENTENCES) // _RECOMPUTED)
    alone = _vectors(_ask(url, _SINGLE, [SENTENCES[number] for number in chosen]))
    for number, again in zip(chosen, alone, strict=True):
        cosine = float(vectors[number] @ again)
        if cosine < _MIN_COSINE:
            raise DemoFailed(f"{SENTENCES[number]!r} got the answer of another sentence: cosine {cosine:.3f}")
    click.echo(f"  {len(alone)} of them gave the same numbers when computed alone\n")


def _measure(url: str, model: str) -> Summary:
    answers = _ask(url, model, SENTENCES, _MEASURE_S)
    return summarise(answers, max(answer.finished_s for answer in answers), TIMEOUT_MS / 1000)


def _show_comparison(single: Summary, batched: Summary) -> None:
    click.echo(f"{len(SENTENCES)} callers, {_MEASURE_S:.0f} s each:\n")
    print_table(
        [("one at a time", single), ("batched", batched)],
        [
            ("", lambda row: row[0]),
            ("requests", lambda row: row[1].requests),
            ("requests/s", lambda row: row[1].rps),
            ("p50 ms", lambda row: row[1].p50_ms),
            ("p95 ms", lambda row: row[1].p95_ms),
            ("p99 ms", lambda row: row[1].p99_ms),
            ("mean batch", lambda row: row[1].mean_batch),
        ],
        empty="",
    )
    click.echo(f"\nbatched: {batched.rps / single.rps:.1f} times the requests/s")
