"""The output of perf_analyzer becomes figures, and figures become a table."""

from __future__ import annotations

import pytest

from tests.benchmarks.perf_analyzer import AnalyzerFailedError, Figures, median_of, read_report, table

REPORT = """\
Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,\
Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency
64,1248.98,897,38501,1991,0,41,0,0,40005,57510,63818,90082
"""


def test_a_report_is_read() -> None:
    assert read_report(REPORT.splitlines()) == Figures(1248.98, 40005, 90082, 1991, 41)


def test_a_report_without_a_row_is_a_failure() -> None:
    with pytest.raises(AnalyzerFailedError):
        read_report(REPORT.splitlines()[:1])


def test_the_table_has_medians_by_system() -> None:
    runs = [Figures(each, 1000, 2000, 0, 50) for each in (1.0, 9.0, 2000.0)]
    shown = table({("noop", 64): {"bunch": median_of(runs)}})
    assert shown.splitlines()[-1] == "| noop | 64 | bunch | 9 | 1.0 | 2.0 | 0.0 | 0.1 |"
