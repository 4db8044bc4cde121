"""`bench`: a load test against a running stack.

--concurrency N   closed loop: N callers, each sends its next request when it is answered
--rps N           open loop: Poisson arrivals, independent of the answers
--rps N --burst B open loop: B requests at once, at the same mean rate
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from cli.base import fail, json_option, print_json, print_table, settings_for
from cli.loadgen.arrivals import Caller
from cli.loadgen.client_load import ClientLoad, judge, raise_file_limit
from cli.loadgen.load import Answer, Load, MakeBody, Run
from cli.loadgen.plot import FORMATS, plot
from cli.loadgen.progress import watch
from cli.loadgen.summary import Summary, histogram, percentile, summarise
from cli.main import printable
from cli.supervisor import state
from cli.supervisor.errors import NotRunning
from config.installation import PROGRAM
from config.tiers import TIERS

_BAR = 40
_BINS = 12
# The longest part of a refusal that is shown, when there were no 200s.
_WORDS = 300
_TIERS = tuple(tier.value for tier in TIERS)


@click.command()
@click.option(
    "--rps", type=click.FloatRange(min=0.1), help="Open loop: mean rate of Poisson arrivals (requests per second)."
)
@click.option(
    "--burst",
    type=click.IntRange(min=1),
    help="Open loop: requests that arrive together, at the same mean rate.  [default: 1]",
)
@click.option("--concurrency", type=click.IntRange(min=1), help="Closed loop: number of callers.  [default: 64]")
@click.option(
    "--duration",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Length of the measurement (seconds).",
)
@click.option(
    "--warmup",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Length of the warm-up, which is not measured (seconds).",
)
@click.option("--url", help="Base URL of the server.  [default: that of the running `up`]")
@click.option("--model", help="Model to call.  [default: the server's default model]")
@click.option(
    "--input", "input_json", help="JSON value that every request sends as its input.  [default: a different text each]"
)
@click.option(
    "--timeout-ms",
    default=10_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Deadline of a request (milliseconds).",
)
@click.option(
    "--slo-ms",
    type=click.IntRange(min=1),
    help="Latency objective; goodput counts the 200s within it (milliseconds).  [default: --timeout-ms]",
)
@click.option("--mix", metavar="TIER=WEIGHT,…", help="Shares of the tiers, for example enterprise=1,paid=3,free=6.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="[TIER=]SECRET",
    help="API key to send, for all tiers or for one tier of the mix. May be repeated.",
)
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a plot of the run (.png or .svg).",
)
@click.option("--cache", is_flag=True, help="Allow cached answers.  [default: every request is computed]")
@json_option
def bench(
    rps: float | None,
    burst: int | None,
    concurrency: int | None,
    duration: float,
    warmup: float,
    url: str | None,
    model: str | None,
    input_json: str | None,
    timeout_ms: int,
    slo_ms: int | None,
    mix: str | None,
    keys: tuple[str, ...],
    plot_file: Path | None,
    cache: bool,
    as_json: bool,
) -> None:
    """Load a running stack and measure throughput and latency. Exit 1 when no request got a 200.

    Percentiles cover the 200s and are corrected for coordinated omission. The mean batch is in requests. A warning
    says when the client, not the server, was the limit; then run more clients, on other machines.
    """
    if rps is not None and concurrency is not None:
        raise click.UsageError("--rps and --concurrency exclude each other: an open or a closed loop")
    if burst is not None and rps is None:
        raise click.UsageError("--burst goes with --rps: only an open loop has arrivals of its own")
    if plot_file is not None and plot_file.suffix not in FORMATS:
        raise click.BadParameter(f"must end in {' or '.join(FORMATS)}", param_hint="--plot")
    callers = callers_of(mix, keys, cache=cache)
    target = (url or _running_url()).rstrip("/") + "/v1/inference"
    raise_file_limit()
    run = Run()
    load = Load(target, _bodies(model, input_json), timeout_ms / 1000, run, callers=callers)
    test = _Test(load, run, (slo_ms or timeout_ms) / 1000, warmup, duration, rps, burst or 1, concurrency or 64)
    # Ctrl-C shows the results so far.
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(test.go(quiet=as_json))
    summary = test.summary()
    if as_json:
        print_json(summary)
    else:
        _show(summary, [answer.latency_s for answer in test.counted() if answer.status == 200])
    if summary.client is not None and summary.client.limit:
        click.secho(f"the client, not the server, limited this run: {summary.client.limit}", fg="yellow", err=True)
    if plot_file is not None:
        plot(plot_file, test.counted(), summary)
        click.echo(f"wrote {plot_file}", err=as_json)
    if not summary.codes.get("200"):
        for status, body in sorted(run.refusals.items()):
            click.echo(f"{status or 'no answer'}: {_words(body) or 'check the server and the URL'}", err=True)
        if not summary.requests:
            click.echo(_why_nothing(len(run.answers), rps, warmup, duration), err=True)
        fail()


@dataclass(slots=True)
class _Test:
    """One run and its figures, without the requests that were sent during the warm-up."""

    load: Load
    run: Run
    slo_s: float
    warmup_s: float
    duration_s: float
    rps: float | None
    burst: int
    callers: int
    shares: tuple[float, float] = (0.0, 0.0)

    async def go(self, *, quiet: bool) -> None:
        # Created here, because it reads the CPU time of its own thread.
        strain = ClientLoad()
        total_s = self.warmup_s + self.duration_s
        if self.rps is not None:
            loop = self.load.open(self.rps, duration_s=total_s, burst=self.burst)
        else:
            loop = self.load.closed(self.callers, duration_s=total_s)
        try:
            await watch(loop, self.run, total_s, self.slo_s, quiet=quiet)
        finally:
            self.shares = strain.shares()

    def counted(self) -> list[Answer]:
        if not self.warmup_s:
            return self.run.answers
        return [each for each in self.run.answers if each.finished_s - each.latency_s >= self.warmup_s]

    def summary(self) -> Summary:
        answers = self.counted()
        late = sorted(max(0.0, each.latency_s - each.service_s) for each in answers)
        services = sorted(each.service_s for each in answers)
        client = judge(*self.shares, percentile(late, 0.99) or 0.0, percentile(services, 0.5), self.run.out_of_sockets)
        return summarise(
            answers,
            self.run.elapsed_s - self.warmup_s,
            self.slo_s,
            offered_rps=self.rps,
            callers=None if self.rps is not None else self.callers,
            client=client,
        )


def callers_of(mix: str | None, keys: tuple[str, ...], *, cache: bool = True) -> list[Caller]:
    """The callers from `enterprise=1,paid=3` and `paid=SECRET` or `SECRET`. Without `cache` every request is computed.

    Raises:
        click.BadParameter: names the wrong option.
    """
    secrets = dict(_secret(each) for each in keys)
    weights = _weights(mix) if mix else {}
    if stray := [tier for tier in secrets if tier and tier not in weights]:
        raise click.BadParameter(f"{stray[0]} is not in --mix", param_hint="--key")
    if not weights:
        return [Caller(headers=_headers("", secrets, cache))]
    return [Caller(tier, _headers(tier, secrets, cache), weight) for tier, weight in weights.items()]


def _headers(tier: str, secrets: Mapping[str, str], cache: bool) -> dict[str, str]:
    """A key fixes its own tier; without one the caller names the tier, which is allowed with auth off."""
    secret = secrets.get(tier) or secrets.get("")
    named = {"X-Tier": tier} if tier and tier not in secrets else {}
    if not cache:
        named["Cache-Control"] = "no-cache"
    return named | ({"Authorization": f"Bearer {secret}"} if secret else {})


def _secret(text: str) -> tuple[str, str]:
    tier, equals, secret = text.partition("=")
    return (tier, secret) if equals and tier in _TIERS else ("", text)


def _weights(mix: str) -> dict[str, float]:
    weights = {}
    for part in mix.split(","):
        tier, _, weight = part.strip().partition("=")
        try:
            weights[tier] = float(weight or "1")
        except ValueError:
            weights[tier] = -1.0
        if tier not in _TIERS or not 0 < weights[tier] < float("inf"):
            raise click.BadParameter(
                f"{part!r} must be like paid=3, with a tier of {', '.join(_TIERS)}", param_hint="--mix"
            )
    return weights


def _running_url() -> str:
    running = state.read(Path(settings_for(None).state_dir))
    if running is None or running.url is None:
        raise NotRunning(
            f"no stack is running here; start one with `{PROGRAM} up`, or give its address: --url http://…"
        )
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


def _show(summary: Summary, latencies_s: list[float]) -> None:
    rows = [("all", summary), *summary.tiers.items()] if len(summary.tiers) > 1 else [("", summary)]
    print_table(
        rows,
        [
            ("", lambda row: row[0]),
            ("requests", lambda row: sum(row[1].codes.values())),
            ("requests/s", lambda row: row[1].rps),
            ("goodput/s", lambda row: row[1].goodput_rps),
            ("p50 ms", lambda row: _or_dash(row[1].p50_ms)),
            ("p95 ms", lambda row: _or_dash(row[1].p95_ms)),
            ("p99 ms", lambda row: _or_dash(row[1].p99_ms)),
            ("p99.9 ms", lambda row: _or_dash(row[1].p99_9_ms)),
            ("codes", lambda row: ", ".join(f"{code}: {count:,}" for code, count in row[1].codes.items())),
        ],
        empty="",
    )
    click.echo(f"mean batch {_or_dash(summary.mean_batch)}; goodput: 200 within {summary.slo_ms:g} ms")
    raw = summary.uncorrected
    if raw is not None and raw.p99_ms is not None and raw.p99_ms != summary.p99_ms:
        click.echo(f"p99 before the correction for coordinated omission: {raw.p99_ms} ms")
    bins = histogram(latencies_s, _BINS)
    most = max((count for *_, count in bins), default=0)
    for low, high, count in bins:
        bar = "█" * round(_BAR * count / most)
        click.echo(f"{low * 1000:9.2f} – {high * 1000:9.2f} ms {count:8,} {bar}")


def _why_nothing(sent: int, rps: float | None, warmup_s: float, duration_s: float) -> str:
    """Say why no request was counted. Each request has an answer, or a failure, by the end of a run."""
    if sent:
        return f"all {sent:,} requests were sent in the warm-up of {warmup_s:g} s: give a longer --duration"
    if rps is None:
        return "no request was sent: the run was interrupted before the first"
    return (
        f"no request was sent: at --rps {rps:g} arrivals are {1 / rps:g} s apart on average, and none fell into "
        f"{warmup_s + duration_s:g} s: give a longer --duration or a higher --rps"
    )


def _or_dash(value: float | None) -> float | str:
    return "–" if value is None else value


def _words(body: bytes) -> str:
    """The message of a refusal."""
    return printable(body.decode(errors="replace").strip()[:_WORDS])
