"""Log lines: what they say of an event, and how many there can be."""

from __future__ import annotations

import json
import logging
import logging.config
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisGone

from config.logging import (
    BoundedLog,
    JsonFormatter,
    KnownOutage,
    LogBudget,
    TextFormatter,
    current_format,
    log_to_stderr,
)


def record(message: str = "it broke", level: int = logging.WARNING, **extra: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "a.logger", "levelno": level, "levelname": "WARNING", "msg": message, **extra}
    )


def test_text_names_the_event_first_and_then_the_rest() -> None:
    line = TextFormatter().format(record(odd="two words", tier="paid", request_id="r-1", trace_id="", why=None))
    assert line.endswith("a.logger: it broke · request_id=r-1 tier=paid odd='two words'")


def test_text_without_fields_is_a_plain_line() -> None:
    assert TextFormatter().format(record()).endswith("a.logger: it broke")


def test_what_callers_write_cannot_begin_a_line() -> None:
    assert "\n" not in TextFormatter().format(record(request_id="r\n2026-01-01 ERROR forged"))


def test_what_an_exception_quotes_cannot_begin_a_line_either() -> None:
    forged = "2026-01-01 ERROR forged"
    ends = ("\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r\n")
    try:
        raise ValueError(f"no number: {'x'.join(end + forged for end in ends)}\x1b[2J\ud800")
    except ValueError as error:
        for text in (
            TextFormatter().format(record(f"failed: {error}")),
            TextFormatter().format(record(exc_info=sys.exc_info())),
        ):
            assert "forged" in text
            assert not any(line.startswith(forged) for line in text.splitlines())
            assert "\x1b" not in text
            text.encode()


def test_a_line_is_bounded_and_keeps_its_end() -> None:
    long = "x" * 1_000_000
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record(f"failed: {long} of all", detail=long))
        assert len(line) < 60_000
        assert " of all" in line


def test_json_has_the_same_fields_on_one_line() -> None:
    line = JsonFormatter().format(record(request_id="r-1", model="m", trace_id=""))
    fields = json.loads(line)
    assert (fields["request_id"], fields["model"], fields["message"]) == ("r-1", "m", "it broke")
    assert "trace_id" not in fields
    assert "\n" not in line


def test_a_few_of_a_kind_are_let_through_and_the_rest_is_told_later() -> None:
    budget = LogBudget(of_a_kind=2, together=100, window_s=10)
    assert [budget.admit("broke", 0.0) for _ in range(5)] == [0, 0, None, None, None]
    assert budget.admit("another kind", 1.0) == 0
    # Once, and then no more.
    assert [budget.admit("broke", 10.0), budget.admit("broke", 10.0)] == [3, 0]


def test_kinds_that_are_made_up_for_each_event_are_bounded_together() -> None:
    budget = LogBudget(of_a_kind=2, together=5, window_s=10)
    admitted = [budget.admit(f"request {n}", 0.0) for n in range(10_000)]
    assert sum(each is not None for each in admitted) == 5
    assert len(budget._kinds) <= LogBudget._MAX_KINDS + 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3)), max_size=300))
def test_every_event_is_told_or_counted(events: list[tuple[str, float]]) -> None:
    budget = LogBudget(of_a_kind=3, together=5, window_s=10)
    now, told = 0.0, 0
    for kind, passed in events:
        now += passed
        held_back = budget.admit(kind, now)
        told += 0 if held_back is None else 1 + held_back
    # Long after, each kind tells what it still held back.
    for place, kind in enumerate("abc"):
        held_back = budget.admit(kind, now + 100 * (place + 1))
        assert held_back is not None
        told += held_back
    assert told == len(events)


def test_the_filter_says_how_many_it_held_back_and_leaves_debug_alone() -> None:
    now = [0.0]
    bounded = BoundedLog(LogBudget(of_a_kind=1, window_s=10), clock=lambda: now[0])
    assert [bounded.filter(record()) for _ in range(3)] == [True, False, False]
    assert all(bounded.filter(record(level=logging.DEBUG)) for _ in range(3))
    now[0] = 11
    late = record()
    assert bounded.filter(late)
    assert "held_back=2" in TextFormatter().format(late)


def test_exceptions_as_messages_are_one_kind() -> None:
    bounded = BoundedLog(LogBudget(of_a_kind=1), clock=lambda: 0.0)
    assert [bounded.filter(record(ValueError(n))) for n in range(3)] == [True, False, False]  # type: ignore[arg-type]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_child_logs_as_its_parent_does(log_format: str) -> None:
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    try:
        logging.config.dictConfig(log_to_stderr("WARNING", log_format))
        assert current_format() == log_format
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]


def test_json_takes_a_lone_surrogate_of_a_model() -> None:
    line = JsonFormatter().format(record("half \ud83d of it", model="m\udc80", size=3))
    assert json.loads(line) | {"message": "half \\ud83d of it", "model": "m\\udc80", "size": 3} == json.loads(line)
    line.encode()


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "refused"), TimeoutError("timed out"), RedisGone("gone")]
)
def test_a_library_that_lost_its_server_says_so_in_one_line(error: Exception) -> None:
    lost = record("Connection to broker lost", name="celery.worker.consumer", exc_info=(type(error), error, None))
    assert KnownOutage().filter(lost)
    assert TextFormatter().format(lost).endswith(f"Connection to broker lost ({type(error).__name__}: {error})")


@pytest.mark.parametrize(
    ("name", "error"), [("celery.worker", KeyError("what is no outage")), ("webapp.app", ConnectionResetError("ours"))]
)
def test_anything_else_keeps_its_traceback(name: str, error: Exception) -> None:
    failed = record("it broke", name=name, exc_info=(type(error), error, None))
    assert KnownOutage().filter(failed)
    assert failed.exc_info is not None
