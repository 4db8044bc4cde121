"""`tune --auto`: finds a model's policy, batch size and queue delay by simulation, and keeps them if they prove better
live.

batch log ── arrivals ──┐
workers ── a + b·n ───┴▶ search ──▶ tune ──▶ watch ──▶ keep, or take back
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import click
from redis import Redis

from batching.capacity.ab_verdict import ENOUGH, Verdict, Watched, judge
from batching.capacity.search import Objective
from batching.capacity.tuner import Candidate, Found, Question, sizes_up_to, tune
from batching.simulator import Affine, Recorded, Scenario, read_trace
from cli.plan.simulate import LOCAL, gate_of
from config.settings import ModelSettings, Settings
from config.tiers import TIERS
from tasks.fleet.broadcast import tell
from tasks.fleet.desired_state import DesiredState, changes_to, with_desired
from tasks.fleet.registry_reader import Fleet
from tasks.observability.batch_log import BatchLog
from tasks.observability.batch_log_reader import BatchLogPeriod, arrivals, read, refused_at_the_door, window
from tasks.observability.batch_times import NoBatches, fit, read_totals
from tasks.observability.metrics import SharedMetrics

# Time until a worker's batch log and all metrics are in Redis.
_WRITTEN_S = 1.3
# A line through fewer batches is not trusted yet.
_SURE = 5.0
_SAME_SIZE = 0.05
# Time between a change and the measurement: requests under the old setting have left, and a policy has learned.
_SETTLES_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options of the command line."""

    objective: Objective
    record_s: float
    window_s: float
    most: int | None
    trace: Path | None
    seed: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Service:
    """The batch times and their source. `varied`: batches of different sizes have been seen."""

    line: Affine
    executors: int
    varied: bool
    source: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result. `state` is kept, taken back, left (to somebody else's change), unchanged or dry run."""

    state: str
    why: str
    found: Found
    service: Service
    recorded: Recorded
    source: str
    changes: dict[str, Any]
    before: Watched | None = None
    after: Watched | None = None

    @property
    def good(self) -> bool:
        """Return whether the current settings meet the objective, as far as is known."""
        if self.state == "kept":
            return True
        return self.state in {"unchanged", "dry run"} and self.found.best.holds


class Clock(Protocol):
    """The clock of the batch log, and sleeping."""

    def now_ms(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class RedisClock:
    """The Redis server's clock, which the workers use for the batch log."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def now_ms(self) -> float:
        seconds, micros = self._redis.time()
        return float(seconds * 1000 + micros / 1000)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Tuner:
    """Tunes one model of the running system."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        model: str,
        wanted: Wanted,
        say: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._redis = redis
        self._file: ModelSettings = settings.models[model]
        self._wanted = wanted
        self._say = say
        self._clock = clock or RedisClock(redis)
        self._batch_log = BatchLog(redis)
        self._controls = DesiredState(redis)
        self._metrics = SharedMetrics(redis)

    def run(self) -> Outcome:
        """Search, try and decide. Raises click.ClickException when the system gives too little data."""
        wanted, dry = self._wanted, self._wanted.dry_run
        before: Watched | None = None
        past: list[BatchLogPeriod] = []
        until_ms = self._clock.now_ms()
        if not dry:
            self._say(f"measuring {self._file.name} for {wanted.window_s:g} s")
            before, past, until_ms = self._watch()
        elif wanted.trace is None:
            past = read(self._batch_log, self._file.name, until_ms - wanted.record_s * 1000)
        recorded, source = self._arrivals(past, until_ms)
        service = self._service()
        tuned = self._tuned()
        now = _candidate(with_desired(self._file, self._controls.read((self._file.name,))[self._file.name]))
        found = tune(self._question(recorded, service, now))
        changes = changes_to(self._file, tuned, settings_of(found.best.candidate))
        if found.best.candidate == now:
            changes = {}

        def outcome(state: str, why: str, after: Watched | None = None) -> Outcome:
            return Outcome(state, why, found, service, recorded, source, changes, before, after)

        if not changes or before is None:
            return outcome("unchanged" if not changes else "dry run", found.why)
        self._say(f"trying {found.best.candidate}: {found.why}")
        after, verdict = self._try(tuned, changes, before)
        if verdict is None:
            return outcome(
                "left", "somebody else has changed its settings meanwhile, so they were left as they are", after
            )
        return outcome("kept" if verdict.keep else "taken back", f"{found.why}; {verdict.why}", after)

    def _try(
        self, tuned: Mapping[str, Any], changes: Mapping[str, Any], before: Watched
    ) -> tuple[Watched | None, Verdict | None]:
        """Apply the change, measure, and revert it unless it is kept, whatever happens. No verdict: somebody else has
        changed the settings meanwhile.
        """
        self._change(changes)
        ours, keep = self._tuned(), False
        try:
            self._clock.sleep(max(_SETTLES_S, 2 * (before.at_ms(0.99) or 0.0) / 1000))
            after, _, _ = self._watch()
            if self._tuned() != ours:
                return after, None
            verdict = judge(before, after, self._wanted.objective)
            keep = verdict.keep
            return after, verdict
        finally:
            if not keep and self._tuned() == ours:
                self._change({key: tuned.get(key, "") for key in {**ours, **tuned}})

    def _change(self, changes: Mapping[str, Any]) -> None:
        self._controls.tune(self._file, changes)
        tell(self._settings, self._redis, "tune", {"model": self._file.name, "changes": dict(changes)})

    def _tuned(self) -> dict[str, Any]:
        return self._controls.read((self._file.name,))[self._file.name].tuned

    def _watch(self) -> tuple[Watched, list[BatchLogPeriod], float]:
        """Measure the system for one window. Returns the figures, the batch log, and the end of the window in ms."""
        name = self._file.name
        since_ms, refused = self._clock.now_ms(), refused_at_the_door(self._metrics, name)
        self._clock.sleep(self._wanted.window_s)
        until_ms = self._clock.now_ms()
        self._clock.sleep(_WRITTEN_S)
        refused = refused_at_the_door(self._metrics, name) - refused
        past = read(self._batch_log, name, until_ms - 1000 * max(self._wanted.record_s, self._wanted.window_s))
        return window(past, since_ms, until_ms, self._wanted.objective.slo_s, refused), past, until_ms

    def _arrivals(self, past: list[BatchLogPeriod], until_ms: float) -> tuple[Recorded, str]:
        if self._wanted.trace is not None:
            return read_trace(self._wanted.trace), str(self._wanted.trace)
        at_s, ranks = arrivals(past, until_ms - self._wanted.record_s * 1000, until_ms)
        if len(at_s) < ENOUGH:
            hint = " (BUNCH_EXPLAIN is off, so nothing is recorded)" if self._settings.explain == "off" else ""
            raise click.ClickException(
                f"only {len(at_s)} requests for {self._file.name} in the last {self._wanted.record_s:g} s, "
                f"but {ENOUGH} are needed{hint}: send it some load, or give recorded arrivals: --trace FILE"
            )
        return Recorded(at_s, ranks), "the batch log"

    def _service(self) -> Service:
        """The batch times that the workers' claim loops have learned; before that, those from the sums in Redis."""
        name = self._file.name
        fleet = Fleet(self._redis, lease_ttl_s=self._settings.lease_ttl_s)
        ready = sum(each.model == name and each.state == "ready" for row in fleet.healthy() for each in row.models)
        if not ready:
            raise click.ClickException(f"no executor of {name} is ready, so its batch times are not known")
        replies = tell(self._settings, self._redis, "bunch_stats", {}).values()
        lines = [
            line
            for reply in replies
            for executor, line in reply.get("learnt", {}).items()
            if executor.rpartition("/")[0] == name and line["batches"] >= _SURE
        ]
        if lines:
            mean = {key: fmean(line[key] for line in lines) for key in ("batch_ms", "item_ms", "spread_ms", "size")}
            usual_ms = mean["batch_ms"] + mean["item_ms"] * mean["size"]
            jitter = min(1.0, 2 * mean["spread_ms"] / usual_ms) if usual_ms else 0.0
            varied = any(line["size_spread"] > _SAME_SIZE * line["size"] for line in lines)
            batches = sum(line["batches"] for line in lines)
            source = f"learnt by {len(lines)} of {ready} executors from their last {batches:.0f} batches"
            return Service(Affine(mean["batch_ms"] / 1000, mean["item_ms"] / 1000, jitter), ready, varied, source)
        try:
            times = fit([read_totals(self._metrics, name)])
        except NoBatches as error:
            raise click.ClickException(str(error)) from error
        return Service(Affine(times.batch_s, times.item_s), ready, False, times.how)

    def _question(self, recorded: Recorded, service: Service, now: Candidate) -> Question:
        limit_s = self._settings.request_timeout_s
        most = self._wanted.most or self._file.max_batch_size
        scenario = Scenario(
            arrivals=recorded,
            service=service.line,
            policy=now.make,
            batch_sizes=self._file.batch_sizes,
            duration_s=max(recorded.at_s) + 1e-3,
            executors=service.executors,
            deadlines_s=((limit_s, limit_s),) * len(TIERS),
            queue_timeout_s=self._settings.queue_timeout_s,
            slo_s=self._wanted.objective.slo_s,
            overheads=LOCAL,
            gate=gate_of(self._settings),
        )
        return Question(
            scenario=scenario,
            objective=self._wanted.objective,
            current=now,
            # Batches of a single size do not tell what another size would take.
            sizes=sizes_up_to(most, self._file.batch_sizes) if service.varied else (now.max_batch_size,),
            options={self._file.policy: _numbers(self._file.policy_options)},
            seed=self._wanted.seed,
        )


def _candidate(model: ModelSettings) -> Candidate:
    options = tuple(sorted(_numbers(model.policy_options).items()))
    return Candidate(model.policy, model.max_batch_size, model.max_wait_ms, options)


def _numbers(options: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in options.items()}


def settings_of(candidate: Candidate) -> dict[str, Any]:
    """The settings of a candidate, as `manage.py tune` has them."""
    wait = {} if candidate.max_wait_ms is None else {"max_wait_ms": candidate.max_wait_ms}
    return {"policy": candidate.policy, "max_batch_size": candidate.max_batch_size, **wait, **dict(candidate.options)}
