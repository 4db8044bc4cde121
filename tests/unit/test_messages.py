"""Task messages, read by Celery and read from Celery."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from celery import Celery
from celery.worker.request import Request as CeleryRequest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection
from kombu.transport.virtual import Message
from kombu.utils.json import loads

from batching.fast_header import read_fast_header
from batching.ports import UnreadableMessage
from batching.request import Request
from config.tiers import Tier
from tasks.client.submission import Submission
from tasks.protocol.caller import ANYBODY
from tasks.protocol.messages import read_message
from tasks.protocol.outgoing import MessageWriter, Outgoing
from tests.fakes.messages import celery_message, entry, our_message
from tests.fakes.store import epoch_ms

TTL_MS = 123_000
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def read(message: bytes, tier: Tier = Tier.PAID) -> Request:
    return read_message(entry(message, tier=tier), TTL_MS)


@pytest.fixture
def kombu_message():
    """`kombu_message(raw)`: as a Celery worker's consumer gets it."""
    with Connection("memory://") as connection:
        yield lambda raw: Message(loads(raw), channel=connection.default_channel)


def test_our_message_is_kombus_and_protocol_2(kombu_message) -> None:
    message = kombu_message(our_message("some-id", b'{"text":"\xc3\xa9"}', b'{"k":1}', reply_to="bunch:reply:p"))
    assert message.headers["task"] == "bunch.infer"
    assert message.headers["id"] == "some-id"
    assert message.content_type == "application/json"
    assert message.properties["reply_to"] == "bunch:reply:p"
    assert message.delivery_tag == "some-id"
    args, kwargs, embed = message.payload
    assert args == [{"text": "é"}]
    assert kwargs == {"parameters": {"k": 1}}
    assert embed == {}


def test_our_message_makes_a_celery_request(kombu_message) -> None:
    app = Celery("plain", set_as_current=False)

    @app.task(name="bunch.infer", shared=False)
    def task(value: Any, parameters: Any) -> None: ...

    raw = our_message("some-id", b"[1,2]", deadline_in_ms=30_000)
    request = CeleryRequest(kombu_message(raw), app=app, task=task, hostname="w@h")
    assert (request.id, request.name, request.root_id, request.parent_id) == ("some-id", "bunch.infer", None, None)
    assert request.request_dict["args"] == [[1, 2]]
    assert request.request_dict["kwargs"] == {"parameters": {}}
    assert request.delivery_info["routing_key"] == "bunch.m.paid"
    assert (request.time_limits, request.eta, request.ignore_result) == ((None, None), None, False)
    header = read_fast_header(raw)
    assert header is not None
    assert request.expires.timestamp() * 1000 == pytest.approx(header.deadline_ms, abs=1000)
    assert not request.maybe_expire()


@given(input=json_values, parameters=st.dictionaries(st.text(), json_values, max_size=3))
def test_what_is_written_is_read(input: Any, parameters: dict[str, Any]) -> None:
    raw = our_message("some-id", msgspec.json.encode(input), msgspec.json.encode(parameters))
    request = read(raw)
    assert msgspec.json.decode(request.input) == input
    assert msgspec.json.decode(request.parameters) == parameters
    args, kwargs, _ = json.loads(json.loads(raw)["body"])
    assert (args, kwargs) == ([input], {"parameters": parameters})


def test_the_stamp_tells_times_and_attempts() -> None:
    before = epoch_ms()
    request = read(
        our_message("some-id", b"1", deadline_in_ms=5_000, result_ttl_ms=7_000, attempt=2, lost=1), Tier.FREE
    )
    assert before <= request.enqueued_ms <= epoch_ms()
    assert request.deadline_ms == request.enqueued_ms + 5_000
    assert (request.attempt, request.lost, request.result_ttl_ms) == (3, 1, 7_000)
    assert (request.id, request.tier, request.position) == ("some-id", Tier.FREE, 1)
    assert request.reply_to == "bunch:reply:here"


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("body_encoding", ["base64", "utf-8"])
@pytest.mark.parametrize(
    ("args", "kwargs", "input", "parameters"),
    [
        (["é\n"], {}, "é\n", {}),
        ([{"a": [1, None]}], {"parameters": {"k": 2}}, {"a": [1, None]}, {"k": 2}),
        ([], {"input": 5, "parameters": None}, 5, {}),
        ([None], {}, None, {}),
        ([1, {"k": 2}], {}, 1, {"k": 2}),
    ],
)
def test_any_celery_client_is_understood(
    protocol: int, body_encoding: str, args: list[Any], kwargs: dict[str, Any], input: Any, parameters: dict[str, Any]
) -> None:
    raw = celery_message(args, kwargs, body_encoding=body_encoding, protocol=protocol, task_id="plain-id")
    request = read(raw)
    assert msgspec.json.decode(request.input) == input
    assert msgspec.json.decode(request.parameters) == parameters
    assert request.id == "plain-id"
    assert (request.attempt, request.lost, request.enqueued_ms, request.deadline_ms) == (1, 0, 0, 0)


@pytest.mark.parametrize("compression", ["gzip", "bzip2"])
def test_compressed_messages_are_understood(compression: str) -> None:
    assert read(celery_message(["x"], compression=compression)).input == b'"x"'


def test_results_are_kept_as_long_as_we_say_and_only_for_those_who_want_them() -> None:
    message = json.loads(celery_message([1]))
    for ignored, ttl_ms in ((True, 0), (False, TTL_MS), (None, TTL_MS)):
        message["headers"]["ignore_result"] = ignored
        assert read(json.dumps(message).encode()).result_ttl_ms == ttl_ms


@pytest.mark.parametrize("protocol", [1, 2])
def test_expiry_and_eta_of_a_celery_client(protocol: int) -> None:
    now = datetime.now(UTC)
    request = read(
        celery_message([1], protocol=protocol, expires=now + timedelta(seconds=60), eta=now + timedelta(seconds=30))
    )
    assert request.deadline_ms == pytest.approx((now.timestamp() + 60) * 1000, abs=1000)
    assert request.eta_ms == pytest.approx((now.timestamp() + 30) * 1000, abs=1000)


@pytest.mark.parametrize(
    ("expires", "deadline_ms"),
    [("1970-01-01T00:00:10", 10_000), ("1970-01-01T02:00:10+02:00", 10_000), (10.5, 10_500), (None, 0), ("", 0)],
)
def test_forms_of_expires(expires: object, deadline_ms: int) -> None:
    message = json.loads(celery_message([1]))
    message["headers"]["expires"] = expires
    assert read(json.dumps(message).encode()).deadline_ms == deadline_ms


@pytest.mark.parametrize("option", ["link", "link_error", "chord"])
def test_a_canvas_is_kept_whole(option: str) -> None:
    app = Celery("plain", set_as_current=False)
    signature = app.signature("other.task")
    raw = celery_message([1], **{option: signature})
    assert read(raw).canvas == raw
    assert read(celery_message([1])).canvas == b""


def test_attempts_of_a_celery_client_are_in_a_header() -> None:
    message = json.loads(celery_message([1]))
    message["headers"] = {"bunch_attempt": 2, **message["headers"]}
    request = read(json.dumps(message).encode())
    assert (request.attempt, request.lost) == (3, 2)


def changed(**changes: Any) -> bytes:
    """A plain message with some parts replaced; a name with a double underscore is inside that part."""
    message = json.loads(celery_message([1], task_id="plain-id"))
    for name, value in changes.items():
        part, _, inner = name.partition("__")
        key = part.replace("_", "-") if part == "content_type" else part
        if inner:
            message[key][inner] = value
        else:
            message[key] = value
    return json.dumps(message).encode()


def body(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


@pytest.mark.parametrize(
    ("message", "told", "task_id"),
    [
        (b"", "not a task message", ""),
        (b"\x00\xff", "not a task message", ""),
        (b"{}", "not a task message", ""),
        (b"[]", "not a task message", ""),
        (changed()[:-20], "not a task message", "plain-id"),
        (changed(headers=None), "", "plain-id"),
        (changed(properties=[]), "", "plain-id"),
        (changed(body=5), "not a task message", "plain-id"),
        (changed(headers__id=""), "id", "plain-id"),
        (changed(headers__task="other.task"), "other.task", "plain-id"),
        (changed(content_type="application/x-python-serialize"), "only JSON", "plain-id"),
        (changed(headers__compression="lzma3000"), "lzma3000", "plain-id"),
        (changed(headers__compression="application/x-gzip"), "decompress", "plain-id"),
        (changed(body="%%%"), "", "plain-id"),
        (changed(body=body([])), "", "plain-id"),
        (changed(body=body([[1], {}])), "", "plain-id"),
        (changed(body=body([[], {}, EMBED])), "one input", "plain-id"),
        (changed(body=body([[1, {}, 3], {}, EMBED])), "one input", "plain-id"),
        (changed(body=body([[1], {"input": 2}, EMBED])), "one input", "plain-id"),
        (changed(body=body([[1, {}], {"parameters": {}}, EMBED])), "one input", "plain-id"),
        (changed(body=body([[1], {"colour": 2}, EMBED])), "colour", "plain-id"),
        (changed(body=body([{"x": 1}, {}, EMBED])), "", "plain-id"),
        (changed(headers__expires="tomorrow"), "tomorrow", "plain-id"),
        (changed(headers__eta="tomorrow"), "tomorrow", "plain-id"),
        (changed(properties__body_encoding="utf-8"), "", "plain-id"),
        (changed(body=base64.b64encode(b"[[" + b"[" * 5000 + b"]" * 5000 + b"],{},{}]").decode()), "", "plain-id"),
        (b'{"headers":{"x":' + b"[" * 5000 + b"]" * 5000 + b'},"body":"","properties":{}}', "not a task message", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_a_task_is_unreadable(message: bytes, told: str, task_id: str) -> None:
    with pytest.raises(UnreadableMessage, match=f"(?s).*{told}") as caught:
        read(message)
    assert caught.value.task_id == task_id


@given(
    st.binary(max_size=60)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries(
        {
            "headers": st.fixed_dictionaries(
                {"task": st.just("bunch.infer"), "id": st.text()},
                optional={"eta": json_values, "expires": json_values, "bunch_attempt": json_values},
            ),
            "properties": st.fixed_dictionaries({}, optional={"reply_to": json_values, "body_encoding": json_values}),
            "body": st.just('[[1],{},{"chord":null}]') | json_values,
        }
    ).map(lambda value: json.dumps(value).encode())
)
def test_nothing_else_is_ever_raised(message: bytes) -> None:
    try:
        request = read(message)
    except UnreadableMessage:
        return
    assert request.id


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.dictionaries(st.text('ab"\\\n'), st.text()))
def test_the_bytes_of_a_request_in_the_queue_are_known_before_it_is_there(
    inputs: list[str], options: dict[str, str]
) -> None:
    def written(submission: Submission) -> int:
        out = Outgoing("id", submission, "bunch.m.paid", 1000, 1000, 5000)
        return len(MessageWriter("bunch:reply:x").rest(out, 0.0))

    plain = Submission("m", ANYBODY[Tier.PAID], b"1", 1.0)
    spelled = json.dumps(inputs, ensure_ascii=False, indent="\t").encode() + b"\r"
    this = msgspec.structs.replace(plain, input=spelled, parameters=msgspec.json.encode(options))
    assert this.queued_bytes - plain.queued_bytes == written(this) - written(plain)
