"""`bench`: a load test against a running stack."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from workers.cli.base import fail, json_option, print_json, print_table, settings_for
from workers.cli.load import Load, MakeBody, Run
from workers.cli.mix import Mix, parse_mix, show_tiers
from workers.cli.summary import Summary, histogram, summarise
from workers.supervisor import state
from workers.supervisor.errors import NotRunning

_BAR = 40
_BINS = 12
_REFRESH_S = 0.5


@click.command()
@click.option("--rps", type=click.FloatRange(min=0.1), help="Open loop: Poisson arrivals at this rate.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Closed loop: this many callers.  [default: 64]")
@click.option("--duration", default=10.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds.")
@click.option("--url", help="Where the stack answers.  [default: what `up` runs here]")
@click.option("--model", help="The model to ask.  [default: the server's]")
@click.option("--input", "input_json", help="One JSON input for every request.  [default: texts, each different]")
@click.option(
    "--timeout-ms", default=10_000, show_default=True, type=click.IntRange(min=1), help="Each one's deadline."
)
@click.option("--mix", callback=parse_mix, help="Tiers and their parts, like free=70,paid=25,enterprise=5.")
@json_option
def bench(
    rps: float | None,
    concurrency: int | None,
    duration: float,
    url: str | None,
    model: str | None,
    input_json: str | None,
    timeout_ms: int,
    mix: Mix | None,
    as_json: bool,
) -> None:
    """Load a running stack and measure. Exit 1 when nothing was answered with 200.

    Goodput counts the answers within their deadline; mean batch is requests per batch.
    """
    if rps is not None and concurrency is not None:
        raise click.UsageError("--rps and --concurrency exclude each other: an open or a closed loop")
    target = (url or _running_url()).rstrip("/") + "/v1/inference"
    run = Run()
    headers = mix.headers if mix else lambda number: b""
    load = Load(target, _bodies(model, input_json), timeout_ms / 1000, run, headers)
    if rps is not None:
        loop = load.open(rps, duration_s=duration)
    else:
        loop = load.closed(concurrency or 64, duration_s=duration)
    # Ctrl-C shows what there is.
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_watched(loop, run, timeout_ms / 1000, quiet=as_json))
    summary = summarise(run.answers, run.elapsed_s, timeout_ms / 1000)
    tiers = mix.by_tier(run, timeout_ms / 1000) if mix else {}
    if as_json:
        print_json({**msgspec.to_builtins(summary), "tiers": tiers} if mix else summary)
    else:
        show_tiers(tiers)
        _show(summary, [answer.latency_s for answer in run.answers if answer.status == 200])
    if not summary.codes.get("200"):
        fail()


def _running_url() -> str:
    running = state.read(Path(settings_for(None).state_dir))
    if running is None or running.url is None:
        raise NotRunning("nothing runs here; start it with `manage.py up`, or name it: --url http://…")
    return running.url


def _bodies(model: str | None, input_json: str | None) -> MakeBody:
    named = {} if model is None else {"model": model}
    if input_json is None:
        return lambda number: msgspec.json.encode({**named, "input": f"Request {number} of a load test"})
    try:
        value = json.loads(input_json)
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="--input") from error
    body = msgspec.json.encode({**named, "input": value})
    return lambda _: body


async def _watched(loop: Coroutine[Any, Any, None], run: Run, deadline_s: float, *, quiet: bool) -> None:
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        await loop
        return
    with Live(console=console, transient=True) as live:
        task = asyncio.create_task(loop)
        seen = 0
        while not task.done():
            await asyncio.wait([task], timeout=_REFRESH_S)
            # Only the newest answers are looked at: sorting all of them would disturb what is measured.
            recent = run.answers[seen:]
            seen = len(run.answers)
            now = summarise(recent, _REFRESH_S, deadline_s)
            live.update(Text(f"{seen:,} answers; now {now.rps:,.0f}/s, p50 {now.p50_ms} ms, p99 {now.p99_ms} ms"))
        await task


def _show(summary: Summary, latencies_s: list[float]) -> None:
    print_table(
        [summary],
        [
            ("requests", lambda row: row.requests),
            ("requests/s", lambda row: row.rps),
            ("goodput/s", lambda row: row.goodput_rps),
            ("p50 ms", lambda row: _or_dash(row.p50_ms)),
            ("p95 ms", lambda row: _or_dash(row.p95_ms)),
            ("p99 ms", lambda row: _or_dash(row.p99_ms)),
            ("mean batch", lambda row: _or_dash(row.mean_batch)),
            ("codes", lambda row: ", ".join(f"{code}: {count:,}" for code, count in row.codes.items())),
        ],
        empty="",
    )
    bins = histogram(latencies_s, _BINS)
    most = max((count for *_, count in bins), default=0)
    for low, high, count in bins:
        bar = "█" * round(_BAR * count / most)
        click.echo(f"{low * 1000:9.2f} – {high * 1000:9.2f} ms {count:8,} {bar}")


def _or_dash(value: float | None) -> float | str:
    return "–" if value is None else value
