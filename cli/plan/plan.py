"""`plan`: the resources that a load needs, by formulas and by simulation."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import click

from batching.capacity.designs import DESIGNS, Replay, replay
from batching.capacity.plan import Load, Plan, plan
from batching.capacity.processes import bounds, costs_for
from batching.capacity.search import Objective
from batching.capacity.shards import fleet
from batching.simulator import Affine, Shards
from cli.base import config_option, fail, json_option, print_json, print_table
from cli.plan.live_measurement import LiveMeasurement, measure
from cli.plan.service_options import service_options
from cli.plan.simulate import LOCAL, make_maker
from config.policies import POLICIES


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    parts = value.split(",") if value else []
    if not all(part.strip().isdigit() and int(part) for part in parts):
        raise click.BadParameter(f"{value!r}: must be whole numbers above 0, such as 1,4,16")
    return tuple(int(part) for part in parts)


@click.command(name="plan")
@click.option("--rps", type=click.FloatRange(min=0.001), help="Load to plan for (requests per second).")
@click.option(
    "--slo-ms",
    default=500.0,
    show_default=True,
    type=click.FloatRange(min=0.001),
    help="Latency objective (milliseconds).",
)
@click.option(
    "--percentile",
    default=99.0,
    show_default=True,
    type=click.FloatRange(50, 99.99),
    help="Percentile that must meet the objective.",
)
@service_options(batch_ms=None, item_ms=0.0, max_wait_ms=5.0)
@click.option("--policy", default="adaptive", show_default=True, type=click.Choice(POLICIES), help="Batching policy.")
@click.option(
    "--gpu-hour-cost",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Price of a GPU for an hour, in any currency.",
)
@click.option(
    "--gb-cost",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Price of a gigabyte sent to callers.",
)
@click.option(
    "--payload-bytes",
    default=1024,
    show_default=True,
    type=click.IntRange(min=0),
    help="Size of an input, and of an output (bytes).",
)
@click.option(
    "--retention-ms",
    default=60_000,
    show_default=True,
    type=click.IntRange(min=0),
    help="Time that results are kept (milliseconds).",
)
@click.option(
    "--web-rps",
    default=2500.0,
    show_default=True,
    type=click.FloatRange(min=1),
    help="Capacity of one web process (requests per second).",
)
@click.option(
    "--headroom", default=0.7, show_default=True, type=click.FloatRange(0.05, 1), help="Planned utilisation of a GPU."
)
@click.option(
    "--max-gpus", default=2000, show_default=True, type=click.IntRange(min=1), help="Largest fleet to consider."
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(min=0), help="Seed of the simulation.")
@click.option(
    "--from-live", is_flag=True, help="Measure the rate and the batch times that are not given on the running system."
)
@click.option("--model", help="--from-live: model to measure.  [default: the default model]")
@click.option(
    "--watch",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=2),
    help="--from-live: length of the measurement (seconds).",
)
@click.option("--designs", is_flag=True, help="Replay the published designs under every policy instead.")
@click.option(
    "--processes",
    is_flag=True,
    help="Show which process limits fleets of 1 to 8 frontends and workers instead; the model is --batch-ms.",
)
@click.option(
    "--shards",
    callback=_numbers,
    metavar="N,N,…",
    help="Show batches, latency and Redis nodes with a queue over so many shards instead; the model is --batch-ms.",
)
@click.option(
    "--reach",
    callback=_numbers,
    metavar="N,N,…",
    help="--shards: the most shards from which a batch is claimed.  [default: all]",
)
@click.option(
    "--models",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="--shards: equal models, of which each gets its part of --rps.",
)
@click.option(
    "--write",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="--designs, --processes, --shards: write the tables into this page.",
)
@config_option
@json_option
def plan_command(
    as_json: bool, config_file: Path | None, designs: bool, processes: bool, write: Path | None, **options: Any
) -> None:
    """Compute the GPUs, web processes, Redis capacity and cost for a load. Exit 1 when no fleet can serve it."""
    if designs:
        _designs(write, as_json)
        return
    if processes:
        _processes(options, write, as_json)
        return
    if options["shards"]:
        _sharded(options, write, as_json)
        return
    live = measure(config_file, options["model"], options["watch"]) if options["from_live"] else None
    load = _load(options, live)
    found = plan(load)
    if as_json:
        print_json(_json(found, live))
    else:
        _show(found, load, live)
    if not found.feasible:
        fail()


def _load(options: dict[str, Any], live: LiveMeasurement | None) -> Load:
    rps = options["rps"] or (live.rps if live else None)
    batch_s, item_s = (options["batch_ms"] or 0.0) / 1000, options["item_ms"] / 1000
    if options["batch_ms"] is None and live is not None:
        batch_s, item_s = live.times.batch_s, live.times.item_s
    if not rps:
        raise click.UsageError(
            "give the load: --rps N" + (" (the running system receives no requests)" if live else "")
        )
    if not batch_s + item_s:
        raise click.UsageError("give the time of a batch: --batch-ms N, or measure it: --from-live")
    sizes = options["batch_sizes"] or (live.batch_sizes if live else ())
    size = min([live.max_batch_size if live else options["max_batch"], *sizes[-1:]])
    return Load(
        rps=rps,
        objective=Objective(options["slo_ms"] / 1000, options["percentile"] / 100),
        service=Affine(batch_s, item_s, options["jitter"]),
        max_batch_size=size,
        batch_sizes=sizes,
        policy=make_maker(options["policy"], size, options["max_wait_ms"]),
        overheads=LOCAL,
        gpu_hour_cost=options["gpu_hour_cost"],
        gb_cost=options["gb_cost"],
        payload_bytes=options["payload_bytes"],
        retention_s=options["retention_ms"] / 1000,
        web_rps=options["web_rps"],
        headroom=options["headroom"],
        most=options["max_gpus"],
        seed=options["seed"],
    )


def _processes(options: dict[str, Any], write: Path | None, as_json: bool) -> None:
    from cli.plan import processes_page
    from cli.plan.capacity_page import replace_section

    if write is not None:
        replace_section(write, processes_page.MARK, processes_page.page_table())
        click.echo(f"{write}: written")
        return
    batch_s, item_s = (options["batch_ms"] or 0.0) / 1000, options["item_ms"] / 1000
    policy, wait_ms, size = options["policy"], options["max_wait_ms"], options["max_batch"]
    model = processes_page.model_of(batch_s, item_s, size, policy, wait_ms) if batch_s + item_s else None
    found = bounds(costs_for(options["payload_bytes"]), model)
    if as_json:
        print_json([{"frontends": size, "workers": size, **dataclasses.asdict(each)} for size, each in found.items()])
    else:
        click.echo(processes_page.table(found))


def _sharded(options: dict[str, Any], write: Path | None, as_json: bool) -> None:
    from cli.plan import shards_page
    from cli.plan.capacity_page import replace_section

    if write is not None:
        for mark, text in shards_page.sections().items():
            replace_section(write, mark, text)
        click.echo(f"{write}: written")
        return
    if not options["rps"]:
        raise click.UsageError("give the load: --rps N")
    if options["batch_ms"] is None:
        raise click.UsageError("give the time of a batch: --batch-ms N")
    load = shards_page.load_of(
        options["rps"],
        options["models"],
        Affine(options["batch_ms"] / 1000, options["item_ms"] / 1000, options["jitter"]),
        options["max_batch"],
        options["policy"],
        options["max_wait_ms"],
        options["payload_bytes"],
    )
    fleets = [
        fleet(load, Shards(count, reach)) for count in options["shards"] for reach in options["reach"] or (count,)
    ]
    if as_json:
        print_json([shards_page.as_json(each) for each in fleets])
    else:
        click.echo(shards_page.table([shards_page.row(each) for each in fleets]))


def _json(found: Plan, live: LiveMeasurement | None) -> dict[str, Any]:
    answer = {
        "gpus": found.gpus,
        "web_processes": found.web_processes,
        "redis_ops_per_s": round(found.redis.commands_per_s, 1) if found.redis else 0.0,
        "redis_memory_bytes": round(found.redis.memory_bytes) if found.redis else 0,
        "bandwidth_bytes_per_s": round(found.bandwidth.callers) if found.bandwidth else 0,
        "redis_bandwidth_bytes_per_s": round(found.bandwidth.redis) if found.bandwidth else 0,
        "feasible": found.feasible,
        "why": found.why,
        "gpus_raw": found.raw,
        "gpus_by_formula": found.by_formula,
        "gpus_smallest": found.smallest,
        "rps_per_gpu": round(found.rate_of_one, 2),
        "connections": found.connections,
        "cost_per_million": round(found.cost_per_million, 4),
    }
    if found.report is not None:
        percentiles = {name: getattr(found.report, name) for name in ("p50_ms", "p95_ms", "p99_ms")}
        answer |= {name: None if value is None else round(value, 2) for name, value in percentiles.items()}
        answer |= {"mean_batch": round(found.report.mean_batch or 0.0, 2)}
    if live is not None:
        answer["measured"] = {
            "model": live.model,
            "rps": round(live.rps, 2),
            "batch_ms": round(live.times.batch_s * 1000, 3),
            "item_ms": round(live.times.item_s * 1000, 4),
            "how": live.times.how,
        }
    return answer


def _show(found: Plan, load: Load, live: LiveMeasurement | None) -> None:
    if live is not None:
        click.echo(
            f"measured for {live.model}: {live.rps:,.1f} requests/s, {live.times.batch_s * 1000:.2f} ms + "
            f"{live.times.item_s * 1000:.3f} ms per item ({live.times.how})\n"
        )
    if not found.feasible or found.redis is None or found.bandwidth is None or found.report is None:
        click.echo(f"not feasible: {found.why}")
        return
    rows: list[tuple[str, str, str]] = [
        ("GPUs", f"{found.gpus:,}", found.why),
        ("  one GPU", f"{found.rate_of_one:,.0f}/s", "largest batch / (its time + overhead)"),
        (
            "  raw, at 70 % …",
            f"{found.raw:,}, {found.by_formula:,}",
            "rate / rate of one GPU; the same divided by the headroom",
        ),
        ("web processes", f"{found.web_processes:,}", f"rate / {load.web_rps:,.0f} / {load.headroom}"),
        ("connections", f"{found.connections:,}", "rate × latency"),
        ("Redis commands/s", f"{found.redis.commands_per_s:,.0f}", "1 per request and 45 per batch; with MSETEX fewer"),
        ("Redis calls/s", f"{found.redis.round_trips_per_s:,.0f}", "scripts and bells"),
        (
            "  its one thread",
            f"{load.rps * costs_for(load.payload_bytes).redis_us / 1e6:.0%}",
            "rate × time of a request in full batches; at 100 % no further process helps",
        ),
        ("Redis memory", f"{found.redis.memory_bytes / 2**20:,.0f} MiB", "rate × size × retention, plus the queues"),
        ("bandwidth", f"{found.bandwidth.callers / 1e6:,.1f} MB/s", "rate × (payload + headers), each way"),
        (
            "  at Redis",
            f"{found.bandwidth.redis / 1e6:,.1f} MB/s",
            "everything goes in and out; each replica adds as much",
        ),
        ("queueing", f"{found.queueing_wait_s * 1000:,.1f} ms", "wait of a full batch for a GPU (Allen-Cunneen)"),
    ]
    if found.cost_per_million:
        how = "GPUs × price of an hour / requests per hour" + (" + traffic" if load.gb_cost else "")
        rows.append(("a million requests", f"{found.cost_per_million:,.2f}", how))
    print_table(rows, [("", lambda row: row[0]), ("needed", lambda row: row[1]), ("", lambda row: row[2])], empty="")
    report = found.report
    click.echo(
        f"\nin virtual time: p50 {report.p50_ms:.0f}, p95 {report.p95_ms:.0f}, p99 {report.p99_ms:.0f} ms, "
        f"{report.mean_batch:.1f} requests per batch, {report.requests:,} requests"
    )


def _designs(write: Path | None, as_json: bool) -> None:
    replays, took = [], {}
    for design in DESIGNS:
        parts = []
        for name in POLICIES:
            # CPU time, so that other load on the machine does not matter.
            started = time.process_time()
            parts.append(replay(design, [name], make_maker_s, LOCAL))
            took[design.name, name] = time.process_time() - started
        outcomes = {name: outcome for part in parts for name, outcome in part.outcomes.items()}
        replays.append(dataclasses.replace(parts[0], outcomes=outcomes))
    took_s = sum(took.values())
    if as_json:
        print_json([_design_json(each) for each in replays])
    elif write is not None:
        from cli.plan.capacity_page import fill

        fill(write, replays, took)
        click.echo(f"{write}: written; {took_s:.0f} s")
    else:
        print_table(
            [(each, outcome) for each in replays for outcome in each.outcomes.values()],
            [
                ("design", lambda pair: pair[0].design.name),
                ("policy", lambda pair: pair[1].policy),
                ("use %", lambda pair: pair[0].design.use * 100),
                ("p99 ms", lambda pair: pair[1].even.p99_ms),
                ("uneven p99", lambda pair: pair[1].uneven.p99_ms),
                ("holds", lambda pair: "yes" if pair[1].holds_even else "no"),
                ("uneven", lambda pair: "yes" if pair[1].holds_uneven else "no"),
                ("smallest", lambda pair: f"{pair[1].smallest_even or '–'}, {pair[1].smallest_uneven or '–'}"),
            ],
            empty="",
        )
        click.echo(f"\n{took_s:.0f} s")


def make_maker_s(name: str, max_batch_size: int, max_wait_s: float) -> Any:
    return make_maker(name, max_batch_size, max_wait_s * 1000)


def _design_json(replayed: Replay) -> dict[str, Any]:
    design = replayed.design
    return {
        "name": design.name,
        "what": design.what,
        "gpus": design.gpus,
        "gpus_raw": replayed.raw,
        "gpus_by_formula": replayed.at_70,
        "use": round(design.use, 4),
        "policies": {
            name: {
                "p95_ms": outcome.even.p95_ms,
                "p99_ms": outcome.even.p99_ms,
                "uneven_p95_ms": outcome.uneven.p95_ms,
                "uneven_p99_ms": outcome.uneven.p99_ms,
                "holds": outcome.holds_even,
                "holds_uneven": outcome.holds_uneven,
                "smallest": outcome.smallest_even,
                "smallest_uneven": outcome.smallest_uneven,
            }
            for name, outcome in replayed.outcomes.items()
        },
    }
