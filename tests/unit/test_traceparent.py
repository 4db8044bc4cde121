"""W3C trace context in headers and messages."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.fast_header import HEAD
from config.tiers import Tier
from tasks.client.submission import Submission
from tasks.protocol import traceparent
from tasks.protocol.caller import ANYBODY
from tasks.protocol.messages import read_message
from tasks.protocol.outgoing import MessageWriter, Outgoing
from tests.fakes.messages import celery_message, entry
from webapp.request import HttpRequest

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_traceparent_is_read() -> None:
    assert traceparent.valid(TRACEPARENT) == TRACEPARENT
    assert traceparent.trace_id(TRACEPARENT) == "0af7651916cd43dd8448eb211c80319c"
    assert traceparent.is_sampled(TRACEPARENT)
    assert not traceparent.is_sampled(TRACEPARENT[:-1] + "0")
    assert not traceparent.is_sampled("")


def test_a_later_version_is_read_as_far_as_ours_goes() -> None:
    assert traceparent.valid("cc" + TRACEPARENT[2:] + "-what-comes-then") == TRACEPARENT


@pytest.mark.parametrize(
    "header",
    [
        None, "", "00", TRACEPARENT.upper(), TRACEPARENT + "-x", "ff" + TRACEPARENT[2:], TRACEPARENT + "\n",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    ],
)  # fmt: skip
def test_what_is_none_is_ignored(header: str | None) -> None:
    assert traceparent.valid(header) == ""


@given(st.text())
def test_nothing_that_would_need_escaping_gets_through(header: str) -> None:
    assert json.loads(f'"{traceparent.valid(header)}"') in {"", header[:55]}


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1))
def test_ours_is_valid_and_sampled(trace_id: int, span_id: int) -> None:
    made = traceparent.make(trace_id, span_id)
    assert traceparent.valid(made) == made
    assert traceparent.is_sampled(made)


def message(**fields: str) -> bytes:
    submission = Submission("m", ANYBODY[Tier.PAID], b"1", 1.0, **fields)  # type: ignore[arg-type]
    out = Outgoing("some-id", submission, "bunch.m.paid", 1000, 1000, 1000)
    return HEAD + b"0000000001000;0000000001000;0000000000001;00;0;" + MessageWriter("bunch:reply:x").rest(out, 1.0)


def test_a_message_carries_the_trace_and_the_callers_own_name() -> None:
    request = read_message(entry(message(traceparent=TRACEPARENT, request_id="mine")), 1000)
    assert (request.traceparent, request.request_id) == (TRACEPARENT, "mine")


def test_a_message_without_them_is_as_it_was() -> None:
    plain = message()
    assert b"traceparent" not in plain
    assert b"request_id" not in plain
    request = read_message(entry(plain), 1000)
    assert (request.traceparent, request.request_id) == ("", "")


@pytest.mark.parametrize(
    "state",
    [
        "a=1",
        "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
        "0tenant@vendor=1 2",
        'k="quoted\\"',
        "a=1 , b=2",
        f"k={'v' * 256}",
    ],
)
def test_what_vendors_added_goes_along(state: str) -> None:
    assert traceparent.valid_state(state) == state
    request = read_message(entry(message(traceparent=TRACEPARENT, tracestate=state)), 1000)
    assert (request.traceparent, request.tracestate) == (TRACEPARENT, state)


@pytest.mark.parametrize(
    "state",
    [
        *(
            None,
            "",
            "a",
            "=1",
            "a=",
            "A=1",
            "a=é",
            "a=1\r\nX: y",
            "a=b=c",
            "a@@b=1",
            "a@1=2",
            f"k={'v' * 257}",
            f"{'k' * 257}=v",
        ),
        *(",".join(f"k{n}=v" for n in range(33)), ",".join(f"k{n}={'v' * 100}" for n in range(6))),
    ],
)
def test_what_is_no_tracestate_is_dropped_and_the_trace_is_not(state: str | None) -> None:
    assert traceparent.valid_state(state) == ""
    given = {"traceparent": TRACEPARENT, "tracestate": state}
    request = read_message(entry(celery_message([1], headers=given)), 1000)
    assert (request.traceparent, request.tracestate) == (TRACEPARENT, "")


@pytest.mark.parametrize("environ", [{}, {"HTTP_TRACEPARENT": "nonsense"}])
def test_a_tracestate_without_a_trace_belongs_to_nothing(environ: dict[str, str]) -> None:
    assert HttpRequest({**environ, "HTTP_TRACESTATE": "a=1"}).tracestate == ""
    assert HttpRequest({"HTTP_TRACEPARENT": TRACEPARENT, "HTTP_TRACESTATE": "a=1"}).tracestate == "a=1"


@pytest.mark.parametrize("header", ["nonsense", 7, {"a": 1}, None])
def test_a_celery_clients_header_is_read_or_ignored(header: object) -> None:
    assert read_message(entry(celery_message([1], headers={"traceparent": header})), 1000).traceparent == ""
    given = read_message(entry(celery_message([1], headers={"traceparent": TRACEPARENT})), 1000)
    assert given.traceparent == TRACEPARENT
