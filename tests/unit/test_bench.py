"""The parts of the load tester that only calculate: arrivals, the mix, the judgement of the client, drawing."""

from __future__ import annotations

import random
import socket
from io import StringIO
from itertools import groupby
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli.loadgen.arrivals import Arrivals, Caller, cast
from cli.loadgen.bench import bench, callers_of
from cli.loadgen.client_load import judge
from cli.loadgen.load import NO_ANSWER, Answer, Run
from cli.loadgen.plot import kind_of, plot
from cli.loadgen.progress import Progress, spark
from cli.loadgen.summary import summarise


@given(st.floats(1, 1000), st.integers(1, 20), st.integers(0, 2**32))
def test_arrivals_are_in_order_within_the_run_and_as_many_at_once_as_asked(rps: float, burst: int, seed: int) -> None:
    times = list(Arrivals(rps, burst).times(2.0, random.Random(seed)))

    assert times == sorted(times)
    assert all(0 < at < 2.0 for at in times)
    assert all(len(list(together)) == burst for _, together in groupby(times))


@pytest.mark.parametrize("burst", [1, 50])
def test_a_burst_does_not_change_the_mean_rate(burst: int) -> None:
    assert len(list(Arrivals(1000, burst).times(100, random.Random(1)))) == pytest.approx(100_000, rel=0.1)


def test_callers_are_drawn_by_their_weight() -> None:
    drawn = cast([Caller("paid", weight=3), Caller("free", weight=1)], random.Random(1))
    assert drawn.count(0) / len(drawn) == pytest.approx(0.75, abs=0.03)


def test_without_a_mix_there_is_one_caller_without_a_tier() -> None:
    assert callers_of(None, ()) == [Caller()]
    assert callers_of(None, (), cache=False) == [Caller(headers={"Cache-Control": "no-cache"})]
    assert callers_of(None, ("s3cret=",)) == [Caller(headers={"Authorization": "Bearer s3cret="})]


def test_a_tier_with_a_key_of_its_own_does_not_name_itself() -> None:
    paid, free = callers_of("paid=3,free", ("paid=one",))
    assert (paid.tier, paid.weight, dict(paid.headers)) == ("paid", 3, {"Authorization": "Bearer one"})
    assert (free.tier, free.weight, dict(free.headers)) == ("free", 1, {"X-Tier": "free"})


@pytest.mark.parametrize(("mix", "keys"), [("gold=1", ()), ("paid=0", ()), ("paid=x", ()), ("paid=1", ("free=one",))])
def test_a_mix_that_cannot_be_is_refused(mix: str, keys: tuple[str, ...]) -> None:
    with pytest.raises(click.BadParameter):
        callers_of(mix, keys)


def _bench(*arguments: str) -> tuple[int, str]:
    """Exit status and stderr of a run against a port where nobody listens."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        result = CliRunner().invoke(bench, ["--url", f"http://127.0.0.1:{silent.getsockname()[1]}", *arguments])
    return result.exit_code, result.stderr


def test_a_run_without_a_request_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arrivals, "times", lambda *_: iter(()))
    code, stderr = _bench("--rps=0.5", "--duration=0.1")
    assert code == 1
    assert "no request was sent: at --rps 0.5 arrivals are 2 s apart on average" in stderr
    assert "give a longer --duration or a higher --rps" in stderr


def test_a_run_whose_requests_all_fell_into_the_warm_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arrivals, "times", lambda *_: iter([0.01, 0.02]))
    code, stderr = _bench("--rps=10", "--warmup=30", "--duration=0.1")
    assert code == 1
    assert "all 2 requests were sent in the warm-up of 30 s: give a longer --duration" in stderr


@pytest.mark.parametrize(
    ("cpu", "waited", "late_p99_s", "sockets", "word"),
    [
        (0.95, 0.0, 0.0, 0, "busy"),
        (0.5, 0.45, 0.0, 0, "busy"),
        (0.3, 0.1, 0.05, 0, "late"),
        (0.1, 0.0, 0.0, 3, "no socket"),
    ],
)
def test_a_client_at_its_limit_says_so(cpu: float, waited: float, late_p99_s: float, sockets: int, word: str) -> None:
    limit = judge(cpu, waited, late_p99_s, 0.1, sockets).limit
    assert limit is not None
    assert word in limit


def test_a_client_with_time_to_spare_is_no_limit() -> None:
    assert judge(0.6, 0.1, 0.004, 0.010, 0).limit is None
    # Late by a hundredth of what the server took.
    assert judge(0.6, 0.1, 0.010, 1.0, 0).limit is None


ANSWERS = [
    *(Answer(n, 200, 0.01 * (n % 7 + 1), 0.05 * n, 4, tier="paid", service_s=0.01) for n in range(1, 100)),
    Answer(100, 503, 0.001, 5.0, tier="free"),
    Answer(101, NO_ANSWER, 1.0, 5.0, tier="free"),
]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_run_is_drawn(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"run{suffix}"
    plot(path, ANSWERS, summarise(ANSWERS, 5.0, 0.05, callers=3))
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")


def test_a_run_without_answers_is_drawn_too(tmp_path: Path) -> None:
    plot(tmp_path / "run.svg", [], summarise([], 1.0, 1.0, offered_rps=5))


@pytest.mark.parametrize(
    ("status", "latency_s", "kind"),
    [(200, 0.1, 0), (200, 2.0, 1), (429, 0.1, 2), (503, 0.1, 2), (500, 0.1, 3), (0, 1, 3)],
)
def test_answers_are_told_apart(status: int, latency_s: float, kind: int) -> None:
    assert kind_of(Answer(0, status, latency_s, 1.0), slo_s=1.0) == kind


def shown(board: Progress, run: Run, now_s: float) -> str:
    console = Console(width=100, file=StringIO())
    console.print(board.render(run, now_s))
    return console.file.getvalue()


def test_the_live_picture_looks_at_each_answer_once() -> None:
    run = Run(answers=list(ANSWERS), waiting=12)
    board = Progress(slo_s=0.05, duration_s=10.0)

    first, second = shown(board, run, 5.0), shown(board, run, 5.5)

    assert "20/s" in first
    assert "paid" in first
    assert " 0/s" in second
    assert "200 99   503 1   no answer 1" in second
    assert "12 waiting" in second


def test_a_line_of_bars() -> None:
    assert spark([0, 1, 2, 4]) == "▁▃▅█"
    assert spark([]) == ""
