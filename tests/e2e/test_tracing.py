"""Traces of a whole stack, as a collector receives them; and its logs, which name the same traces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import Api, connected
from tests.e2e.stack import PATIENT, Stack
from tests.fakes.otlp import Collector, ReceivedSpan, collector
from tests.waiting import wait_until

MODELS = """\
default_model = "echo"

[models.echo]
source = "workers.models.echo:Echo"

# Four requests are one batch, however far apart they arrive.
[models.quartet]
source = "tests.models:Moody"
policy = "fixed"
max_batch_size = 4
max_wait_ms = 3000
"""
SERVER, CONSUMER, INTERNAL = 2, 5, 1
CALLERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def received() -> Iterator[Collector]:
    with collector() as received:
        yield received


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, received: Collector) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("traced"), MODELS)
    try:
        yield stack.start(
            "--web-workers=1", "--workers=1", "--no-flower",
            otlp_endpoint=received.endpoint, trace_sample_ratio="1", log_format="json",
            admission="off", **PATIENT,
        )  # fmt: skip
        stack.stop()
    finally:
        stack.kill()


@pytest.fixture(scope="module")
def traced(own: Stack) -> Iterator[Api]:
    with connected(own.port) as api:
        yield api


def logged(stack: Stack, role: str) -> list[dict[str, Any]]:
    """Every line that a role and its children have written: all of them JSON."""
    # The last line may still be written.
    whole, _, _ = (stack.state_dir / "log" / f"{role}.log").read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line]


def spans_of(received: Collector, task_id: str) -> list[ReceivedSpan]:
    return [each for each in received.named("bunch.infer") if each.attributes["messaging.message.id"] == task_id]


def test_a_trace_goes_from_the_callers_span_through_the_batch_to_the_answer(traced: Api, received: Collector) -> None:
    answers = traced.all(range(4), "quartet")
    mine = traced.post("/v1/inference", {"input": 1, "model": "quartet"}, traceparent=CALLERS, X_Request_Id="mine")
    documents = [each.json for each in answers]
    (batch_id,) = {each["metadata"]["batch_id"] for each in documents}

    def all_there() -> bool:
        batches = {each.attributes["bunch.batch_id"] for each in received.named("batch")}
        requests = [each for document in documents for each in spans_of(received, document["task_id"])]
        return (
            {batch_id, mine.json["metadata"]["batch_id"]} <= batches
            and len([each for each in received.spans if each.kind == SERVER and each.name == "POST /v1/inference"]) >= 5
            and [any(each.name == "queue" for each in received.children(request)) for request in requests] == [True] * 4
        )

    wait_until(all_there, what="the spans have come")
    assert received.paths == {"/v1/traces"}
    (batch,) = [each for each in received.named("batch") if each.attributes["bunch.batch_id"] == batch_id]
    requests = [each for document in documents for each in spans_of(received, document["task_id"])]
    servers = {(each.trace_id, each.span_id): each for each in received.spans if each.kind == SERVER}

    # Four callers, four traces; the batch is a fifth, linked to each of them.
    assert len({each.trace_id for each in requests}) == 4
    assert batch.parent_id == ""
    assert batch.links == {(each.trace_id, each.parent_id) for each in requests}
    assert batch.links <= servers.keys()
    assert {servers[link].service for link in batch.links} == {"bunch-web"}
    assert (batch.service, batch.kind) == ("bunch-worker", CONSUMER)
    assert (batch.attributes["bunch.batch_size"], batch.attributes["bunch.reason"]) == (4, "full")
    assert (batch.attributes["bunch.attempt"], batch.attributes["bunch.model"]) == (1, "quartet")
    assert "bunch.compute_ms" in batch.attributes
    for request in requests:
        assert request.links == {(batch.trace_id, batch.span_id)}
        assert {each.name for each in received.children(request)} <= {"queue", "compute"}
        assert "queue" in {each.name for each in received.children(request)}
        assert all(each.start_ns <= each.end_ns for each in received.children(request))


def test_the_callers_trace_is_continued(traced: Api, received: Collector) -> None:
    vendors = 'rojo=00f067aa0ba902b7,congo@tenant=t61r"c\\Wkg'
    answer = traced.post("/v1/inference", {"input": 1}, traceparent=CALLERS, tracestate=vendors, X_Request_Id="theirs")
    wait_until(lambda: spans_of(received, answer.json["task_id"]), what="the worker's span has come")
    (request,) = spans_of(received, answer.json["task_id"])
    assert request.trace_id == CALLERS[3:35]
    assert request.attributes["bunch.request_id"] == "theirs"

    def server() -> list[ReceivedSpan]:
        return [
            each for each in received.spans if (each.trace_id, each.span_id) == (request.trace_id, request.parent_id)
        ]

    wait_until(server, what="the frontend's span has come")
    (span,) = server()
    assert span.parent_id == CALLERS[36:52]
    assert (span.attributes["http.response.status_code"], span.attributes["bunch.model"]) == (200, "echo")
    assert not span.failed
    # What its vendors have added goes along, to every span below the caller's.
    assert span.tracestate == request.tracestate == vendors


def test_spans_say_what_the_conventions_ask_for(traced: Api, received: Collector) -> None:
    good = traced.post("/v1/inference", {"input": 1}, X_Tier="free").json["task_id"]
    bad = traced.infer({"fail": "no"}, "quartet")
    assert bad.status == 500
    wait_until(lambda: spans_of(received, good), what="the worker's span has come")
    (request,) = spans_of(received, good)
    assert request.attributes["messaging.operation.name"] == request.attributes["messaging.operation.type"] == "process"
    assert request.attributes["messaging.destination.name"] == "bunch.echo.free"
    assert "error.type" not in request.attributes

    def failed() -> list[ReceivedSpan]:
        return [each for each in received.spans if each.failed and each.attributes.get("bunch.model") == "quartet"]

    wait_until(lambda: {each.kind for each in failed()} == {SERVER, CONSUMER}, what="the failed spans have come")
    by_kind = {each.kind: each for each in failed()}
    assert by_kind[CONSUMER].attributes["error.type"] == "InferenceFailed"
    assert by_kind[SERVER].attributes["error.type"] == "500"
    assert by_kind[SERVER].attributes["url.scheme"] == "http"
    assert {each.attributes["messaging.destination.name"] for each in received.named("batch")} >= {"bunch.echo"}


def test_who_asks_not_to_be_sampled_is_not(traced: Api, received: Collector) -> None:
    other = "00-11111111111111111111111111111111-2222222222222222-00"
    traced.post("/v1/inference", {"input": 1}, traceparent=other)
    last = traced.infer(2)
    wait_until(lambda: spans_of(received, last.json["task_id"]), what="a later request's span has come")
    assert all(each.trace_id != other[3:35] for each in received.spans)


def test_a_failed_request_is_a_failed_span(traced: Api, received: Collector) -> None:
    answer = traced.infer({"fail": "no"}, "quartet")
    assert answer.status == 500
    wait_until(lambda: any(each.failed for each in received.named("bunch.infer")), what="the failed span has come")
    failed = [each for each in received.named("bunch.infer") if each.failed]
    assert all(each.attributes["bunch.model"] == "quartet" for each in failed)


def test_a_failure_is_one_line_that_names_request_batch_and_trace(traced: Api, own: Stack) -> None:
    answer = traced.post(
        "/v1/inference",
        {"input": {"fail": "no"}, "model": "quartet"},
        traceparent=CALLERS, X_Request_Id="the-failed-one", X_Tier="free",
    )  # fmt: skip
    assert answer.status == 500

    def lines(role: str) -> list[dict[str, Any]]:
        return [each for each in logged(own, role) if each.get("request_id") == "the-failed-one"]

    wait_until(lambda: lines("worker1"), what="the worker, which knows the cause, has logged it")
    (line,) = lines("worker1")
    assert line["batch_id"]
    assert line["task_id"]
    assert (line["model"], line["tier"], line["trace_id"]) == ("quartet", "free", CALLERS[3:35])
    # Nobody says it a second time.
    assert not lines("web")


def test_requests_that_go_well_leave_no_line(traced: Api, own: Stack) -> None:
    before = len(logged(own, "web")), len(logged(own, "worker1"))
    assert {each.status for each in traced.all(range(200))} == {200}
    assert (len(logged(own, "web")), len(logged(own, "worker1"))) == before


def test_when_everything_fails_the_log_stays_short(traced: Api, own: Stack) -> None:
    before = len(logged(own, "web")), len(logged(own, "worker1"))
    # The model is left alone after some of them; the others come to their deadline, which is theirs, or are refused.
    answers = traced.all([{"fail": "no"}] * 300, "quartet", timeout_ms=4000)
    assert {each.status for each in answers} - {503, 504} == {500}
    web, worker = (len(logged(own, role)) - lines for role, lines in zip(("web", "worker1"), before, strict=True))
    # Of each kind twenty in ten seconds; it may take a few times ten.
    assert web < 200
    assert 0 < worker < 200
