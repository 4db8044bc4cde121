"""Metrics of many processes, summed up in Redis and exposed by any of them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from redis.exceptions import RedisError

from cli.supervisor.ports import free_port
from config.keys import Shard
from config.redis import Line, connect
from tasks.observability import metrics
from tasks.observability.metrics import MetricsFlusher, SharedMetrics
from tests.valkey import PrivateValkey

ROOT = Path(__file__).parents[2]
KEYS = Shard()

# A process that counts, as a frontend or a worker does, and flushes more often than it counts.
PROCESS = """
import sys
from config.redis import Line, connect
from tasks.observability import metrics
flusher = metrics.MetricsFlusher(connect(sys.argv[1]))
requests = metrics.REQUESTS.labels("m", "paid", sys.argv[2], "bunch")
seconds = metrics.REQUEST_SECONDS.labels("m", "paid")
requests.inc(3)
for value in (0.02, 0.02, 7.0):
    seconds.observe(value)
flusher.flush()
flusher.flush()
requests.inc(2)
seconds.observe(100.0)
flusher.flush()
flusher.flush()
"""


def count_in_a_process(valkey: PrivateValkey, code: str) -> None:
    subprocess.run([sys.executable, "-c", PROCESS, valkey.url, code], cwd=ROOT, check=True, timeout=240)


def exposed(redis: Redis) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    registry.register(SharedMetrics(redis))
    samples = [
        sample
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    ]
    found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(found) == len(samples), "a sample was exposed twice"
    return found


def paid(**more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"model": "m", "tier": "paid", **more}.items()))


def test_processes_add_up_and_nothing_counts_twice(valkey: PrivateValkey, redis: Redis) -> None:
    count_in_a_process(valkey, "OK")
    count_in_a_process(valkey, "OK")
    count_in_a_process(valkey, "SERVICE_OVERLOADED")
    samples = exposed(redis)
    assert samples["bunch_requests_total", paid(code="OK", door="bunch")] == 10
    assert samples["bunch_requests_total", paid(code="SERVICE_OVERLOADED", door="bunch")] == 5
    assert samples["bunch_request_seconds_count", paid()] == 12
    assert samples["bunch_request_seconds_sum", paid()] == pytest.approx(3 * 107.04)


def test_a_histogram_is_whole(valkey: PrivateValkey, redis: Redis) -> None:
    """All its buckets, cumulative, the empty ones too: `histogram_quantile` interpolates between neighbours."""
    count_in_a_process(valkey, "OK")
    buckets = [
        (float(dict(labels)["le"]), value)
        for (name, labels), value in exposed(redis).items()
        if name == "bunch_request_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert [value for _, value in buckets] == [0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 4]
    assert buckets[-1][0] == float("inf")


def test_the_names_of_the_contract_are_known(redis: Redis) -> None:
    registry = CollectorRegistry()
    registry.register(SharedMetrics(redis))
    text = generate_latest(registry).decode()
    for name in (
        "requests_total", "request_seconds", "queue_seconds", "batch_size", "batch_fill_seconds", "batches_total",
        "compute_seconds", "executor_busy_seconds_total", "retries_total", "dead_lettered_total", "redelivered_total",
        "cancelled_before_compute_total", "expired_total", "shed_total", "collapsed_total", "cache_hits_total",
        "slo_requests_total", "slo_missed_total",
    ):  # fmt: skip
        assert f"# TYPE bunch_{name} " in text, name


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """The only metric of this process."""
    registry = CollectorRegistry(auto_describe=False)
    monkeypatch.setattr(metrics, "REGISTRY", registry)
    return Counter("bunch_tries_total", "Tries.", ["model"], registry=registry)


def test_labels_may_hold_anything(redis: Redis, counter: Counter) -> None:
    odd = 'é "quoted"\nnew line \\ back'
    counter.labels(odd).inc()
    MetricsFlusher(redis).flush()
    assert exposed(redis) == {("bunch_tries_total", (("model", odd),)): 1.0}


def test_what_could_not_be_sent_goes_with_the_next_flush(redis: Redis, counter: Counter) -> None:
    flusher = MetricsFlusher(connect(f"redis://127.0.0.1:{free_port()}/0"))
    counter.labels("m").inc(2)
    with pytest.raises(RedisError):
        flusher.flush()
    flusher._line = Line(redis)
    counter.labels("m").inc(1)
    flusher.flush()
    assert exposed(redis) == {("bunch_tries_total", (("model", "m"),)): 3.0}


def test_the_rate_is_of_whole_seconds_that_are_over(redis: Redis) -> None:
    now = int(time.time())
    for second, answered in ((now - 3, 20), (now - 2, 30), (now + 60, 1000), (now - 60, 1000)):
        redis.set(KEYS.rate(second), answered)
    assert SharedMetrics(redis).requests_per_second(over_s=20) == 2.5


def test_answers_are_counted_into_the_rate(valkey: PrivateValkey, redis: Redis) -> None:
    count_in_a_process(valkey, "OK")
    keys = [KEYS.rate(int(time.time()) - ago) for ago in range(60)]
    assert sum(float(each) for each in redis.mget(keys) if each) == 5
    assert all(redis.ttl(key) > 0 for key in keys if redis.exists(key))


class LostReply(Line):
    """The script runs, and its answer gets lost: once."""

    lost = False

    def script(self, script: Any, keys: Any, args: Any) -> Any:
        answer = super().script(script, keys, args)
        if not self.lost:
            self.lost = True
            raise RedisError("the connection broke before the reply")
        return answer


def test_a_flush_whose_reply_is_lost_counts_once(redis: Redis, counter: Counter) -> None:
    flusher = MetricsFlusher(redis)
    flusher._line = LostReply(redis)
    counter.labels("m").inc(2)
    with pytest.raises(RedisError):
        flusher.flush()
    counter.labels("m").inc(5)
    flusher.flush()
    assert exposed(redis) == {("bunch_tries_total", (("model", "m"),)): 7.0}
