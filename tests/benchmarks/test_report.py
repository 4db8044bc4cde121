from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.load import Load, parse
from tests.benchmarks.markdown import markdown
from tests.benchmarks.measure import OpenSample, Sample
from tests.benchmarks.open_loop import Latencies, arrivals, ideal_p50_ms
from tests.benchmarks.report import open_rows, rows, tables
from tests.benchmarks.system import Model


def _sample(system: str, number: int, rps: float, p50_ms: float, errors: int = 0, model: Model = "noop") -> Sample:
    return Sample(system, model, 64, number, Load(rps, p50_ms, 10 * p50_ms, 20 * p50_ms, int(rps), errors, 0))


def test_a_row_is_the_median_of_its_rounds_and_the_sum_of_their_errors():
    (row,) = rows([_sample("mosec", 1, 100, 9), _sample("mosec", 2, 900, 1, errors=2), _sample("mosec", 3, 300, 3)])

    assert (row.rps, row.rps_lowest, row.rps_highest, row.p50_ms, row.errors) == (300, 100, 900, 3, 2)


def test_ratios_above_one_mean_that_bunch_is_ahead():
    ours, theirs = rows([_sample("bunch", 1, 1000, 2), _sample("litserve", 1, 250, 8)])

    assert (ours.rps_ratio, ours.p50_ratio) == (1.0, 1.0)
    assert (theirs.rps_ratio, theirs.p50_ratio) == (4.0, 4.0)


def test_a_rival_that_answered_nothing_has_no_ratio_and_is_still_shown():
    found = rows([_sample("bunch", 1, 1000, 2), _sample("flask_celery", 1, 0, 0)])

    assert found[-1].rps_ratio is None
    assert "flask_celery" in tables(found)


def test_levels_of_different_models_are_not_mixed():
    found = rows([_sample("mosec", 1, 100, 9), _sample("mosec", 1, 20, 50, model="50ms")])

    assert [(row.model, row.rps) for row in found] == [("noop", 100), ("50ms", 20)]


def test_levels_of_different_payloads_are_not_mixed():
    large = replace(_sample("bunch", 1, 50, 2), payload_bytes=2048)
    found = rows([large, _sample("bunch", 1, 100, 1)])

    assert [(row.payload_bytes, row.rps) for row in found] == [(60, 100), (2048, 50)]
    assert "inputs of 2,048 bytes" in tables(found)


def _half(system: str, number: int, rate: float, p50_ms: float, client: str | None = None) -> OpenSample:
    return OpenSample(
        system, "noop", 60, number, Latencies(rate, 100, number, p50_ms, 2 * p50_ms, 3 * p50_ms, 0.1, client)
    )


def test_half_load_is_the_median_of_its_rounds_with_the_failures_of_all_and_the_rounds_to_distrust():
    samples = [_half("bunch", 1, 100, 9), _half("bunch", 2, 900, 1, client="busy"), _half("bunch", 3, 300, 3)]
    samples += [_half("mosec", number, 600, 1) for number in (1, 2, 3)]
    theirs, ours = open_rows(samples)

    assert (ours.offered_rps, ours.p50_ms, ours.p99_ms, ours.failed, ours.client) == (300, 3, 9, 6, 1)
    assert (theirs.system, theirs.offered_ratio) == ("mosec", 0.5)
    assert "open loop at half load" in tables([], [theirs, ours])


def test_readmes_table_has_a_row_for_each_system_and_marks_errors_and_what_is_missing():
    def at(connections: int, system: str, rps: float, errors: int = 0) -> Sample:
        return replace(_sample(system, 1, rps, 2.25, errors), connections=connections)

    found = rows([at(1, "bunch", 9), at(256, "bunch", 5000), at(256, "mosec", 4000, errors=1), at(1000, "mosec", 9000)])

    assert markdown(found, open_rows([_half("bunch", 1, 2500, 4)])).splitlines() == [
        "| no-op model | 1: p50 ms | 256 | 1,000 | half load: requests/s; p50, p99 ms | Bunch is, at 256 |",
        "|---|---|---|---|---|---|",
        "| **Bunch** (durable queue in Redis) | 2.2 | 5,000 | – | 2,500; 4.0, 12* |  |",
        "| mosec (HTTP and queue in Rust, in memory) | – | 4,000* | 9,000 | – | 1.25× |",
        "",
        "\\* With errors or timeouts, or with a load generator that was late itself.",
    ]
    assert "\\*" not in markdown(rows([at(256, "bunch", 5000)]), [])


def test_answers_with_an_error_status_are_not_counted_as_requests_served():
    load = parse(
        'Running 1s test\n\n{"duration_us":2000000,"requests":100,"p50_us":1500,"p99_us":9000,"max_us":9500,'
        '"connect":0,"read":1,"write":0,"status":40,"timeout":3}\n'
    )

    assert (load.rps, load.p50_ms, load.errors, load.timeouts) == (30.0, 1.5, 41, 3)


def test_an_ideal_batcher_answers_lone_requests_in_the_models_own_time():
    assert round(ideal_p50_ms([0.0, 1.0, 2.0], batch_s=0.05, max_batch_size=64), 6) == 50.0


def test_an_ideal_batcher_makes_a_request_wait_for_the_batch_that_is_inside():
    # The first goes alone; those that come meanwhile share the next batch, which ends at 100 ms.
    assert round(ideal_p50_ms([0.0, 0.01, 0.02], batch_s=0.05, max_batch_size=64), 6) == 80.0


def test_an_ideal_batcher_holds_to_the_maximum():
    latencies = ideal_p50_ms([0.0] * 4, batch_s=1.0, max_batch_size=1)

    assert latencies == 2500.0


def test_arrivals_come_at_the_rate_asked_for_and_repeat_with_the_seed():
    times = list(arrivals(rate=1000, duration_s=10, seed=3))

    assert 9_000 < len(times) < 11_000
    assert times == list(arrivals(rate=1000, duration_s=10, seed=3))
    assert times == sorted(times)
