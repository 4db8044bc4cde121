"""The bodies that `webapp.parsing` takes, and its refusals of the rest."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import Settings
from config.tiers import Tier
from tasks.client.dedup import call_hash
from tasks.client.submission import Submission
from tasks.protocol.caller import ANYBODY, Caller
from tasks.protocol.json_structure import MAX_DEPTH
from webapp.body_budget import LARGE_BYTES, BodyBudget
from webapp.encoded import one_each
from webapp.errors import ApiError
from webapp.parsing import InferenceBody, as_json, bulk_json, input_json, read_body, submission_of, timeout_s
from webapp.request import HttpRequest

_decoder = msgspec.json.Decoder(InferenceBody)

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def read(raw: bytes, content_type: str | None = "application/json", **headers: str) -> InferenceBody:
    environ = {"wsgi.input": io.BytesIO(raw), "CONTENT_LENGTH": str(len(raw)), "CONTENT_TYPE": content_type, **headers}
    return read_body(HttpRequest(environ), _decoder, BodyBudget(lambda _: 0.0))


def refusal(raw: bytes, content_type: str | None = "application/json", **headers: str) -> ApiError:
    with pytest.raises(ApiError) as refused:
        read(raw, content_type, **headers)
    return refused.value


@given(_json, st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]))
def test_any_json_value_is_an_input(value: object, separators: tuple[str, str]) -> None:
    body = read(json.dumps({"input": value, "extra": {"input": 1}}, separators=separators).encode())
    assert body.input == value


@pytest.mark.parametrize(
    ("raw", "twice"),
    [
        (b'{"input": 1, "input": 1}', "input"),
        (b'{"input":1,"model":"a","model":"b"}', "model"),
        (b'{"input":1,"model":null,"model":"b"}', "model"),
        (b'{"input":1,"m\\u006fdel":"a","model":"b"}', "model"),
        (b'{"input":1,"unknown":1,"unknown":1}', "unknown"),
        (b'{"input":[{"a":1,"b":{"c":1,"c":2}}]}', "c"),
    ],
)
def test_a_name_that_is_there_twice_is_refused(raw: bytes, twice: str) -> None:
    error = refusal(raw)
    assert error.code == "INVALID_JSON"
    assert f"{twice!r} twice" in error.message


def test_the_same_name_in_different_objects_is_not_twice() -> None:
    body = read(b'{"input":{"input":{"model":"model: 1, model: 2"},"model":":"},"model":"a"}')
    assert body.model == "a"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded(opening: str, closing: str) -> None:
    def nested(levels: int) -> bytes:
        return f'{{"input":{opening * levels}1{closing * levels}}}'.encode()

    assert read(nested(MAX_DEPTH - 1))
    for levels in (MAX_DEPTH, 900, 45_000):
        error = refusal(nested(levels))
        assert error.code == "INVALID_JSON"
        assert "nested" in error.message


def test_many_brackets_that_do_not_nest_are_no_depth() -> None:
    assert read(f'{{"input":[{",".join(["[[]]"] * MAX_DEPTH)}]}}'.encode())
    assert read(b'{"input":"' + b'[{\\"\\\\' * MAX_DEPTH + b'"}')


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"input":NaN}',
        b'{"input":-Infinity}',
        b'{"input":"\\ud800"}',
        b'{"input":"\xff"}',
        b'{"input":1,"unknown":"\xff"}',
        b'{"input":"\xed\xa0\x80"}',
        b"\xef\xbb\xbf" + b'{"input":1}',
        '{"input":1}'.encode("utf-16"),
        b'{"input":1} {}',
        b"{'input':1}",
    ],
)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    assert refusal(raw).code == "INVALID_JSON"


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"{}", "input"),
        (b'{"input":1e999}', "input"),
        (b'{"input":1,"model":7}', "model"),
        (b'{"input":1,"parameters":[]}', "parameters"),
        (b'{"input":1,"timeout_ms":-1}', "timeout_ms"),
        (b'{"input":1,"timeout_ms":0}', "timeout_ms"),
        (b'{"input":1,"timeout_ms":0.0}', "timeout_ms"),
        (b'{"input":1,"timeout_ms":-0.5}', "timeout_ms"),
        (b'{"input":1,"timeout_ms":1e-400}', "timeout_ms"),
        (b'{"input":1,"timeout_ms":"5"}', "timeout_ms"),
        (b'{"input":1,"timeout_ms":true}', "timeout_ms"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(raw: bytes, field: str) -> None:
    error = refusal(raw)
    assert error.code == "INVALID_INPUT"
    assert field in error.message


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON; charset=UTF-8",
        'application/json;charset="utf-8"',
        "application/json; v=1",
        "application/json; charset=utf8",
        "application/json;CHARSET=UTF_8",
        "application/json; charset = 'Utf 8' ; v=1",
        "application/json; charset=csUTF8",
        "application/json; charset=",
    ],
)
def test_json_by_any_spelling(content_type: str) -> None:
    assert read(b'{"input":1}', content_type).input == 1


@pytest.mark.parametrize(
    "content_type",
    [
        *(None, "", "text/plain", "application/jsonx", "application/json; charset=latin-1"),
        *("text/json, application/json", "application/json; charset=utf-16", "application/json; charset=utf-8-sig"),
        "application/json; charset=utf-8; charset=latin-1",
    ],
)
def test_another_media_type_is_refused(content_type: str | None) -> None:
    assert refusal(b'{"input":1}', content_type).code == "UNSUPPORTED_MEDIA_TYPE"


def test_a_compressed_body_is_refused() -> None:
    assert refusal(b'{"input":1}', HTTP_CONTENT_ENCODING="gzip").code == "UNSUPPORTED_MEDIA_TYPE"
    assert refusal(b'{"input":1}', HTTP_CONTENT_ENCODING="identity, br").code == "UNSUPPORTED_MEDIA_TYPE"
    for plain in ("identity", "Identity", "", " "):
        assert read(b'{"input":1}', HTTP_CONTENT_ENCODING=plain).input == 1


@pytest.mark.parametrize(
    "header", ["0", "0.0", "0e5", "1e-400", "-1", "-0", "soon", "", "1,2", "NaN", "Infinity", "0x10"]
)
def test_a_header_that_leaves_no_time_is_refused_whatever_the_body_says(header: str) -> None:
    for in_body in (None, 50.0):
        with pytest.raises(ApiError) as refused:
            timeout_s(Settings(), HttpRequest({"HTTP_X_TIMEOUT_MS": header}), in_body)
        assert refused.value.code == "INVALID_HEADER"
        assert "X-Timeout-Ms" in refused.value.message


def test_a_deadline_is_the_body_s_then_the_header_s_and_never_beyond_the_server_s() -> None:
    settings = Settings(request_timeout_ms=2000)
    assert timeout_s(settings, HttpRequest({}), None) == 2
    assert timeout_s(settings, HttpRequest({"HTTP_X_TIMEOUT_MS": "0.5"}), None) == 0.0005
    assert timeout_s(settings, HttpRequest({"HTTP_X_TIMEOUT_MS": "1500"}), 30) == 0.03
    assert timeout_s(settings, HttpRequest({"HTTP_X_TIMEOUT_MS": "1e999"}), None) == 2


def test_a_submission_is_what_body_headers_and_caller_ask_for() -> None:
    environ = {
        "HTTP_X_REQUEST_ID": "case-1",
        "HTTP_X_TIMEOUT_MS": "500",
        "HTTP_IDEMPOTENCY_KEY": "order 66",
        "HTTP_CACHE_CONTROL": "max-age=0, no-cache",
        "HTTP_TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "HTTP_TRACESTATE": "vendor=1",
        "bunch.disconnected": bool,
    }
    call = HttpRequest(environ)
    call.caller, call.client_id = Caller("key", "ann", Tier.FREE), "laptop"
    made = submission_of(Settings(), call, "m", b"1", {"k": [1, 2]}, 250, waits=False)
    assert made == Submission(
        "m",
        call.caller,
        b"1",
        timeout_s=0.25,
        parameters=b'{"k":[1,2]}',
        waits=False,
        request_id="case-1",
        client_id="laptop",
        traceparent=environ["HTTP_TRACEPARENT"],
        tracestate="vendor=1",
        idempotency_key="order 66",
        fresh=True,
        hung_up=bool,
    )
    assert made.tier is Tier.FREE


def test_a_submission_without_any_header_stands_for_itself() -> None:
    call = HttpRequest({})
    call.caller = ANYBODY[Tier.PAID]
    limit_s = Settings().request_timeout_s
    assert submission_of(Settings(), call, "m", b"1") == Submission("m", ANYBODY[Tier.PAID], b"1", limit_s)


def test_the_inputs_of_a_bulk_call_share_all_but_the_request_id() -> None:
    whole = Submission("m", ANYBODY[Tier.PAID], b"null", 1.0, parameters=b'{"k":1}', request_id="case-1", fresh=True)
    assert one_each(whole, [b"1", b"2"]) == [
        Submission("m", ANYBODY[Tier.PAID], value, 1.0, parameters=b'{"k":1}', fresh=True) for value in (b"1", b"2")
    ]


def test_the_inputs_of_a_bulk_call_have_a_key_each_and_one_hash_of_them_all() -> None:
    whole = Submission("m", ANYBODY[Tier.PAID], b"null", 1.0, idempotency_key="k")
    first, second = one_each(whole, [b"1", b"1"])
    assert (first.idempotency_key, second.idempotency_key) == ("k\n0", "k\n1")
    assert first.call_hash == second.call_hash == call_hash([b"1", b"1"])


def large(body: bytes) -> tuple[HttpRequest, InferenceBody]:
    """A call with a large body, which was read: `body` and white space behind it."""
    raw = body + b" " * max(0, LARGE_BYTES - len(body))
    environ = {"CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(raw)), "wsgi.input": io.BytesIO(raw)}
    call = HttpRequest(environ)
    return call, read_body(call, msgspec.json.Decoder(InferenceBody), BodyBudget(lambda _: 0.0))


def test_a_large_input_that_would_grow_keeps_the_caller_s_spelling() -> None:
    written = b"[" + b",".join([b"1e15"] * 20_000) + b" ]"
    call, body = large(b'{"\\u0069nput":%b,"parameters":{"like":%b}}' % (written, written))
    assert len(msgspec.json.encode(body.input)) > 3 * len(written)
    assert input_json(call, body.input) == written
    assert input_json(call, body.parameters, "parameters") == b'{"like":%b}' % written
    call.caller = ANYBODY[Tier.FREE]
    assert submission_of(Settings(), call, "m", b"1", body.parameters).parameters == b'{"like":%b}' % written


def test_input_and_parameters_together_are_no_larger_than_their_body() -> None:
    written = b"[%b]" % b",".join([b"1e15"] * 5_000)
    call, body = large(b'{"input":%b,"parameters":{"a":%b}}' % (written, written) + b" " * 60_000)
    assert input_json(call, body.input) == written
    assert input_json(call, body.parameters, "parameters") == b'{"a":%b}' % written


@pytest.mark.parametrize("other", [b"1", b"null", b'"x"', b"[1]", b"{}"])
def test_members_that_this_body_does_not_have_are_ignored_in_a_large_one_too(other: bytes) -> None:
    written = b"[%b]" % b",".join([b"1e15"] * 20_000)
    call, body = large(b'{"input":%b,"inputs":%b,"input_data":%b}' % (written, other, other))
    assert input_json(call, body.input) == written


def test_a_large_input_that_does_not_grow_has_one_spelling() -> None:
    call, body = large(b'{"input":[%b]}' % b" , ".join([b"15"] * 20_000))
    assert input_json(call, body.input) == b"[" + b",".join([b"15"] * 20_000) + b"]"


def test_the_inputs_of_a_large_bulk_call_are_no_larger_than_its_body() -> None:
    inputs = [b"[%b]" % b",".join([b"1e15"] * 5_000) for _ in range(4)]
    call, _ = large(b'{"input":0,"inputs":[%b]}' % b",".join(inputs))
    assert bulk_json(call, [as_json(msgspec.json.decode(each)) for each in inputs]) == inputs
    assert bulk_json(call, [b"1"] * 4) == [b"1"] * 4
