"""A message that cannot be run is refused under the id that it names; what kombu and Celery would run is run."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batching.ports import UnreadableMessage
from batching.request import Request
from tasks.protocol.messages import read_canvas, read_message
from tests.fakes.messages import celery_message, entry

ID = "6f0d-the-id"
EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
NEXT = {"task": "other.task", "args": [], "kwargs": {}, "options": {}}


def read(message: bytes) -> Request:
    return read_message(entry(message), 1000)


def answered_as(message: bytes) -> str:
    """The id of the result that the message's caller gets, whatever it says."""
    try:
        return read(message).id
    except UnreadableMessage as error:
        return error.task_id


def protocol1(**changes: Any) -> dict[str, Any]:
    return {"task": "bunch.infer", "id": ID, "args": ["x"], "kwargs": {}, **changes}


def envelope(body: Any, **parts: Any) -> bytes:
    text = body if isinstance(body, str) else json.dumps(body)
    message = {"body": text, "content_type": "application/json", "properties": {"body_encoding": "utf-8"}, **parts}
    message["content-type"] = message.pop("content_type")
    return json.dumps({key: value for key, value in message.items() if value is not MISSING}).encode()


MISSING = "missing"


@pytest.mark.parametrize("headers", [MISSING, None, {}, [], {"origin": "php"}], ids=str)
@pytest.mark.parametrize("properties", [MISSING, None, [], {"body_encoding": "utf-8"}, {"delivery_mode": 2}], ids=str)
def test_what_has_no_headers_is_protocol_1(headers: Any, properties: Any) -> None:
    body = protocol1(kwargs={"parameters": {"k": 1}}, callbacks=[NEXT])
    message = envelope(body, headers=headers, properties=properties)
    request = read(message)
    assert (request.id, request.input, request.parameters) == (ID, b'"x"', b'{"k": 1}')
    context = read_canvas(request.canvas)
    assert (context["id"], context["args"], context["callbacks"]) == (ID, ["x"], [NEXT])


def test_a_protocol_1_body_below_protocol_2_headers() -> None:
    """As `celery.worker.strategy.hybrid_to_proto2` reads it: what the headers say goes first."""
    headers = {"task": "bunch.infer", "id": ID, "eta": None, "expires": "2030-01-01T00:00:00"}
    request = read(envelope({"args": [1], "id": "other", "eta": 7, "errbacks": [NEXT]}, headers=headers))
    assert (request.id, request.input, request.eta_ms, request.deadline_ms) == (ID, b"1", 7000, 1893456000000)
    assert read_canvas(request.canvas)["id"] == ID


@pytest.mark.parametrize("task_id", [5, -1, 2**60])
def test_an_id_may_be_a_number(task_id: int) -> None:
    assert read(celery_message(["x"], task_id=task_id)).id == str(task_id)


@pytest.mark.parametrize(
    ("message", "task_id"),
    [
        (envelope([["x"], {}, EMBED], headers={"task": "bunch.infer", "id": "h"}, content_type=None), "h"),
        (envelope([["x"], {"y": 1}, EMBED], headers={"task": "bunch.infer", "id": "h"}), "h"),
        (envelope(protocol1(kwargs=None), headers={"id": "h"}), ID),
        (envelope(protocol1(args={}), headers={"task": "bunch.infer", "id": "h"}), "h"),
        (envelope(protocol1(id=None, args=[]), properties={"correlation_id": "c"}), "c"),
        (envelope("- a: yaml", headers={"task": "x", "id": ""}, properties={"correlation_id": "c"}), "c"),
        (envelope(protocol1(task="x", id=7)), "7"),
        (envelope([], headers=["task", "id"], properties={"correlation_id": "c"}), "c"),
        (celery_message(["x"], {"y": 1}, task_id="h", protocol=1), "h"),
        (celery_message([float("nan")], task_id="h"), "h"),
        (celery_message(["\ud800"], {"x": 1}, task_id="h", protocol=1), "h"),
        (celery_message(["x"], task_id="h", protocol=1, serializer="yaml"), "h"),
        (celery_message(["x"], task_id="h", serializer="pickle"), "h"),
        (envelope("k5OhW4A=", content_type="application/x-msgpack", properties={"correlation_id": "c"}), "c"),
        (b'{"headers":{"id":"\xff\xfe","task":"bunch.infer"},"body":""}', "\ufffd\ufffd"),
        (json.dumps({"headers": {"id": "a\ud800b"}, "body": ""}).encode(), "a?b"),
    ],
)  # fmt: skip
def test_a_refusal_goes_to_the_id_that_is_named(message: bytes, task_id: str) -> None:
    # Only the first of these could be run.
    assert answered_as(message).replace("\ufffd", "?") == task_id.replace("\ufffd", "?")


def test_whoever_waits_behind_a_refused_task_is_told_of() -> None:
    for option in ("callbacks", "errbacks", "chain", "chord"):
        message = envelope(
            [["x"], {"unknown": 1}, {**EMBED, option: NEXT if option == "chord" else [NEXT]}],
            headers={"task": "bunch.infer", "id": ID},
        )
        with pytest.raises(UnreadableMessage) as caught:
            read(message)
        assert caught.value.canvas == message
        assert read_canvas(message)[option]
    with pytest.raises(UnreadableMessage) as caught:
        read(envelope([["x"], {"unknown": 1}, EMBED], headers={"task": "bunch.infer", "id": ID}))
    assert caught.value.canvas == b""


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
Breakage = Callable[[dict[str, Any]], None]


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A task of either protocol, broken in up to four places; its id is left in at least one."""
    protocol = draw(st.sampled_from([1, 2]))
    message = json.loads(celery_message(["x"], task_id=ID, protocol=protocol))
    body = json.loads(base64.b64decode(message["body"]))
    headers, properties = message["headers"], message["properties"]
    named_in_body = protocol == 1
    for _ in range(draw(st.integers(0, 4))):
        where = draw(st.sampled_from(["header", "property", "body", "envelope"]))
        if where == "header" and headers:
            name = draw(st.sampled_from(sorted(set(headers) - {"id"})))
            headers[name] = draw(JUNK)
        elif where == "property":
            name = draw(st.sampled_from(sorted(set(properties) - {"correlation_id", "body_encoding"})))
            properties[name] = draw(JUNK)
        elif where == "body" and named_in_body:
            body[draw(st.sampled_from(sorted(set(body) - {"id"})))] = draw(JUNK)
        elif where == "body":
            body[draw(st.integers(0, 2))] = draw(JUNK)
        else:
            message[draw(st.sampled_from(["content-type", "content-encoding", "more"]))] = draw(JUNK)
    lost = draw(st.sampled_from(["none", "headers", "properties", "correlation_id"]))
    if lost == "headers":
        # Protocol 2 has its id there, and once more beside it.
        message["headers"] = draw(st.sampled_from([None, [], {}]))
    elif lost == "properties":
        message["properties"] = draw(st.sampled_from([None, [], {}]))
    elif lost == "correlation_id":
        del properties["correlation_id"]
    text = json.dumps(body)
    message["body"] = base64.b64encode(text.encode()).decode()
    if draw(st.booleans()):
        message["body"], properties["body_encoding"] = text, "utf-8"
    raw = json.dumps(message).encode()
    return raw[: len(raw) - draw(st.sampled_from([0, 0, 0, 1, 2]))]


@given(broken())
@example(b'{"properties": {"correlation_id": "%s"}, "headers": {"task": "bunch.infer"' % ID.encode())
def test_however_it_is_broken_its_caller_is_answered(message: bytes) -> None:
    assert answered_as(message) == ID
