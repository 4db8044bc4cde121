"""Rules that stand in Lua and in Python: generated cases show that both agree."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from batching.policy import (
    AGED_SHARE,
    DEFAULT_SHARES,
    Admission,
    Form,
    Gcra,
    Pressure,
    Shed,
    allocate,
    fair_pick,
)
from batching.script_args import CLAIM
from tasks.script_args import SUBMIT

agree = settings(
    max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
_PARTS = {path.stem: path for path in (*SUBMIT.files, *CLAIM.files)}


def run(redis: Redis, part: str, code: str, value: Any) -> Any:
    """Call a function of a part on the server; numbers come back as they are, in JSON."""
    parts = ("pressure", "later") if part == "later" else (part,)
    text = "".join(_PARTS[each].read_text(encoding="utf-8") for each in parts)
    body = f"{text}\nlocal v = cjson.decode(ARGV[1])\nlocal function run() {code} end\nreturn cjson.encode({{run()}})"
    return json.loads(redis.eval(body, 0, json.dumps(value)))


@agree
@given(
    rpm=st.integers(1, 1_000_000),
    burst=st.integers(1, 1000),
    gaps=st.lists(st.integers(0, 10**7) | st.integers(-(10**10), 0), min_size=1, max_size=60),
)
def test_gcra(redis: Redis, rpm: int, burst: int, gaps: list[int]) -> None:
    gcra = Gcra.per_minute(rpm, burst)
    now, tat = 1_790_000_000_000_000, 0.0
    expected, times = [], []
    for gap in gaps:
        now += gap
        times.append(now - 1_790_000_000_000_000)
        take = gcra.take(tat, now)
        expected.append([take.allowed, gcra.remaining(tat, now)])
        tat = take.tat_us
    code = """
        local tat, out = 0, {}
        for i = 1, #v.times do
          local now = 1790000000000000 + v.times[i]
          local left = gcra_remaining(tat, now, v.interval, v.burst)
          local due = gcra_take(tat, now, v.interval, v.burst)
          out[i] = {due ~= nil, left}
          tat = due or tat
        end
        return out, string.format('%.17g', tat)"""
    got, end = run(redis, "gcra", code, {"times": times, "interval": gcra.interval_us, "burst": burst})
    assert got == expected
    assert float(end) == tat


depths = st.tuples(*[st.integers(0, 3000)] * 3)


@agree
@given(
    depths=depths,
    arrivals=st.tuples(*[st.integers(0, 3000)] * 3),
    rate=st.integers(0, 3000),
    form=st.sampled_from(Form),
    thresholds=st.tuples(st.none(), st.none() | st.integers(1, 3000), st.integers(1, 1000)),
    rank=st.integers(0, 2),
    queue_limit_ms=st.integers(1, 5000),
)
def test_pressure(
    redis: Redis,
    depths: tuple[int, ...],
    arrivals: tuple[int, ...],
    rate: int,
    form: Form,
    thresholds: tuple[int | None, ...],
    rank: int,
    queue_limit_ms: int,
) -> None:
    unit = 1000 if form is Form.DRAIN else 1
    limits = tuple(math.inf if each is None else each / unit for each in thresholds)
    rule = Admission(form, limits)
    pressure = Pressure(depths, arrivals, rate, first_s=0.02, full_s=0.05, full=64)
    code = """
        local p = {depths = v.depths, arrivals = v.arrivals, rate = v.rate, waiting = v.waiting,
                   first_ms = 20, full_ms = 50, full = 64}
        local rule = {form = v.form, headroom = 0.7, shares = v.shares, ageing_ms = 500, aged_share = v.aged}
        local wait = 0
        if p.rate > 0 then wait = wait_ms(p, rule, v.rank, drain_factors(p, rule, v.rank)) end
        local room = room_of(p, rule, v.rank, v.threshold, v.limit)
        return string.format('%.17g', wait), string.format('%.17g', room), batch_ms(p)"""
    threshold = thresholds[rank]
    value = {
        "depths": depths, "arrivals": arrivals, "rate": rate, "waiting": sum(depths), "form": form.value,
        "shares": DEFAULT_SHARES, "aged": AGED_SHARE, "rank": rank + 1,
        "threshold": -1 if threshold is None else threshold, "limit": queue_limit_ms,
    }  # fmt: skip
    wait, room, batch = run(redis, "pressure", code, value)
    close = {"rel_tol": 1e-9, "abs_tol": 1e-9}
    assert math.isclose(float(wait), rule.wait_s(pressure, rank) * 1000, **close)
    assert math.isclose(float(room), rule.room(pressure, rank, queue_limit_ms / 1000), **close)
    assert math.isclose(batch, 20 + 30 * min(1, sum(depths) / 64), **close)


@agree
@given(
    depths=depths,
    arrivals=st.tuples(*[st.integers(0, 3000)] * 3),
    steady=st.tuples(*[st.integers(0, 500)] * 3),
    rate=st.integers(1, 3000),
    rank=st.integers(0, 2),
    why=st.sampled_from([Shed.PRESSURE, Shed.SHARE, Shed.QUEUE_FULL, Shed.DEADLINE]),
    own=st.integers(0, 500),
    limit=st.integers(1, 1000),
    deadline_ms=st.integers(1, 10_000),
    queue_limit_ms=st.integers(1, 5000),
)
def test_when_to_come_again(
    redis: Redis,
    depths: tuple[int, ...],
    arrivals: tuple[int, ...],
    steady: tuple[int, ...],
    rate: int,
    rank: int,
    why: Shed,
    own: int,
    limit: int,
    deadline_ms: int,
    queue_limit_ms: int,
) -> None:
    rule = Admission()
    pressure = Pressure(depths, arrivals, rate, first_s=0.02, full_s=0.05, full=64, steady=steady)
    code = """
        local p = {depths = v.depths, arrivals = v.arrivals, steady = v.steady, rate = v.rate, waiting = v.waiting,
                   first_ms = 20, full_ms = 50, full = 64}
        local rule = {form = 'drain', headroom = 0.7, shares = v.shares, ageing_ms = 500, aged_share = v.aged}
        local room = room_of(p, rule, v.rank, v.threshold, v.limit_ms)
        local t = timetable()
        local ms
        if v.why == 'pressure' then ms = t.pressure(p, v.rank, room)
        elseif v.why == 'share' then ms = t.share(p, v.rank, room, v.own)
        elseif v.why == 'queue_full' then ms = t.full(p, rule, v.rank, v.limit)
        else ms = t.hopeless(p, rule, v.rank, v.deadline_ms, v.limit_ms) end
        return string.format('%.17g', ms)"""
    threshold = rule.thresholds[rank]
    value = {
        "depths": depths, "arrivals": arrivals, "steady": steady, "rate": rate, "waiting": sum(depths),
        "shares": DEFAULT_SHARES, "aged": AGED_SHARE, "rank": rank + 1, "why": why.value, "own": own, "limit": limit,
        "threshold": -1 if threshold == math.inf else threshold * 1000,
        "deadline_ms": deadline_ms, "limit_ms": queue_limit_ms,
    }  # fmt: skip
    (ms,) = run(redis, "later", code, value)
    expected = rule.retry_s(
        pressure, rank, why, own=own, limit=limit, deadline_s=deadline_ms / 1000, queue_limit_s=queue_limit_ms / 1000
    )
    assert math.isclose(float(ms), expected * 1000, rel_tol=1e-9, abs_tol=1e-9)


@agree
@given(keys=st.lists(st.sampled_from("abcde"), min_size=1, max_size=100), places=st.integers(1, 64))
def test_fair(redis: Redis, keys: list[str], places: int) -> None:
    (picked,) = run(redis, "fair", "return fair_pick(v.keys, v.places)", {"keys": keys, "places": places})
    assert [position for position, each in enumerate(picked) if each] == fair_pick(keys, places)


@agree
@given(
    depths=depths,
    size=st.integers(1, 64),
    credits=st.tuples(*[st.integers(0, 64_000).map(lambda each: each / 1000)] * 3),
    aged=st.booleans(),
)
def test_tiers(redis: Redis, depths: tuple[int, ...], size: int, credits: tuple[float, ...], aged: bool) -> None:
    shares = (0.0, 0.35, 0.35) if aged else DEFAULT_SHARES
    value = {"depths": depths, "size": size, "credits": credits, "shares": shares}
    takes, saved = run(redis, "tiers", "return allocate(v.depths, v.size, v.credits, v.shares)", value)
    expected = allocate(depths, size, credits, shares) if sum(depths) else None
    if expected is None:
        return
    assert tuple(takes) == expected.takes
    assert all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(saved, expected.credits, strict=True))
