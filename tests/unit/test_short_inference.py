"""The short path of `/v1/inference` does what `infer` does, or leaves the request to it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from config.settings import ModelSettings, Settings
from config.shards import Places
from config.tiers import Tier
from tasks.client.client import Client
from tasks.client.pending import Pending
from tasks.client.submission import Submission
from tasks.errors import BunchError, CallerGone, InvalidInput
from tasks.observability.slow_log import SlowRequest
from tasks.protocol.results import Reply
from webapp.api import inference, short_inference
from webapp.api.inference import infer
from webapp.api.short_inference import LEFT_ALONE, Begun, ShortInference, make_short_path
from webapp.app import make_services
from webapp.http.short_path import LoopChannel
from webapp.identity.base import Access
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

REPLY = Reply("task", "SUCCESS", msgspec.Raw(b'"out"'), msgspec.Raw(b'{"queue_ms":2,"tier":"free"}'))
ENVIRON = {
    "REQUEST_METHOD": "POST",
    "PATH_INFO": "/v1/inference",
    "CONTENT_TYPE": "application/json",
    "HTTP_HOST": "127.0.0.1",
    "REMOTE_ADDR": "127.0.0.1",
    "bunch.forwarded": "0",
}


class Noting(Client):
    """A client that notes what is submitted, and answers with `REPLY`."""

    def __init__(self, settings: Settings, places: Places, **more: Any) -> None:
        super().__init__(settings, places.home.redis, **more)
        self.noted: list[Submission] = []

    def submit(self, submission: Submission) -> Pending:
        self.noted.append(submission)
        return Pending("task", time.monotonic() + 1)

    def wait(self, pending: Pending) -> Reply:
        pending.settle(pending.reply or REPLY)
        if isinstance(pending.reply, BunchError):
            raise pending.reply
        return REPLY


class FakeChannel:
    """Notes what its connection is told."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.resumed = 0
        self.closes = False

    def disconnected(self) -> bool:
        return False

    def must_close(self) -> bool:
        return self.closes

    def answer(self, data: bytes) -> None:
        self.answers.append(data)

    def resume(self) -> None:
        self.resumed += 1


class Frontend:
    """One process' services, with models `m`, `other`, and `declared`, which has a schema."""

    def __init__(self, **settings: Any) -> None:
        schema = {"type": "integer"}
        models = {
            name: ModelSettings(name=name, source="a:B", input_schema=schema if name == "declared" else None)
            for name in ("m", "other", "declared", "unheard")
        }
        # Nobody connects to it.
        self.settings = Settings(
            redis_url="redis://127.0.0.1:1", auth="off", models=models, default_model="m", **settings
        )
        self.services: Services = make_services(self.settings, make_client=Noting)
        self.services.readiness._unasked = frozenset({"m", "other", "declared"})
        self.channel = FakeChannel()

    @property
    def noted(self) -> list[Submission]:
        client: Any = self.services.client
        noted: list[Submission] = client.noted
        return noted

    def short(self, **fields: str) -> ShortInference | None:
        return make_short_path(self.services, {**ENVIRON, **fields})

    def begin(self, body: bytes, **fields: str) -> Begun | None:
        short = self.short(**fields)
        channel: Any = self.channel
        return None if short is None else short.take(body, channel)

    def whole(self, body: bytes, **fields: str) -> HttpResponse:
        """The same by `infer`."""
        stream = SimpleNamespace(read=lambda *_: body)
        call = HttpRequest({**ENVIRON, **fields, "wsgi.input": stream})
        call.caller = self.services.identity.identify(call, Access.TENANT)
        return infer(self.services, call)


@pytest.fixture
def frontend() -> Frontend:
    return Frontend()


PLAIN = b'{"input": "a"}'
BODIES = [
    PLAIN,
    b'{"input":"a","model":"other"}',
    b'\n{ "model" : "m" ,\t"input":"" } ',
    b'{"input":{"a":[1,2.50,null]},"model":"m"}',
    '{"input":"grün \\u00fc \\n"}'.encode(),
    b'{"input":7,"parameters":{}}',
    b'{"input":7,"parameters":{"a":1}}',
    b'{"input":7,"timeout_ms":5}',
    b'{"input":7,"client_id":"c"}',
    b'{"input":7,"callback_url":"https://hooks.example/"}',
    b'{"input":7,"model":null}',
    b'{"input":7,"model":"unknown"}',
    b'{"input":7,"model":"declared"}',
    b'{"input":7,"model":"unheard"}',
    b'{"input":7,"input":8}',
    b'{"input":"a","model":"m","model":"other"}',
    b'{"input":{"a":1,"a":2}}',
    b'{"inputs":7}',
    b'{"input":7',
    b'{"input":"\xff"}',
    b"",
    b"[]",
]
FIELDS = [
    {},
    {"HTTP_X_TIER": "enterprise"},
    {"HTTP_X_TIER": "gold"},
    {"HTTP_X_TIMEOUT_MS": "50"},
    {"HTTP_X_TIMEOUT_MS": "soon"},
    {"HTTP_HOST": "evil.example"},
    {"bunch.forwarded": "1"},
    {"CONTENT_TYPE": "text/plain"},
    {"CONTENT_TYPE": "application/json; charset=utf-8"},
    {"HTTP_CONTENT_ENCODING": "gzip"},
    {"HTTP_CONTENT_ENCODING": "identity"},
    {"HTTP_ACCEPT": "*/*"},
    {"HTTP_ACCEPT": "application/x-npy"},
    {"PATH_INFO": "/v1/predict"},
    {"REQUEST_METHOD": "GET"},
    *({name: "1"} for name in sorted(LEFT_ALONE)),
]


@pytest.mark.parametrize("fields", FIELDS, ids=range(len(FIELDS)))
def test_what_it_takes_is_submitted_as_infer_does(frontend: Frontend, fields: dict[str, str]) -> None:
    for body in BODIES:
        frontend.noted.clear()
        if frontend.begin(body, **fields) is None:
            assert not frontend.noted
            continue
        frontend.whole(body, **fields)
        short, whole = frontend.noted
        assert msgspec.structs.replace(short, hung_up=None) == msgspec.structs.replace(whole, hung_up=None)


@pytest.mark.parametrize(
    ("body", "fields"),
    [(body, {}) for body in BODIES[:6]] + [(PLAIN, fields) for fields in (FIELDS[1], FIELDS[3], FIELDS[8])],
    ids=range(9),
)
def test_it_takes_the_plain_cases(frontend: Frontend, body: bytes, fields: dict[str, str]) -> None:
    taken = frontend.begin(body, **fields)
    # Parameters are not for it, not even empty ones.
    assert (taken is None) == (b"parameters" in body)


def test_an_answer_that_is_no_json_is_for_infer(frontend: Frontend) -> None:
    assert frontend.begin(PLAIN, HTTP_ACCEPT="*/*") is not None
    assert frontend.begin(PLAIN, HTTP_ACCEPT="image/png") is None


def test_every_field_that_infer_reads_is_known_here(frontend: Frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()

    class Noted(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return super().get(name, default)

    monkeypatch.setattr(HttpRequest, "__init__", _noting(HttpRequest.__init__, Noted))
    frontend.whole(PLAIN)
    about_the_caller = {"HTTP_HOST", "HTTP_X_TIER", "HTTP_AUTHORIZATION", "REMOTE_ADDR"}
    checked_once = {"CONTENT_TYPE", "HTTP_ACCEPT", "HTTP_CONTENT_ENCODING", "HTTP_X_TIMEOUT_MS"}
    assert {name for name in read if name.startswith(("HTTP_", "CONTENT_TYPE"))} <= (
        LEFT_ALONE | about_the_caller | checked_once
    )
    assert {"HTTP_IDEMPOTENCY_KEY", "HTTP_X_REQUEST_ID", "HTTP_TRACEPARENT"} <= read


def _noting(init: Any, kind: Any) -> Any:
    return lambda self, environ: init(self, kind(environ))


@pytest.mark.parametrize("settings", [{"cors_origins": "https://a.example"}], ids=["origins"])
def test_where_every_answer_has_more_there_is_no_short_path(settings: dict[str, Any]) -> None:
    assert Frontend(**settings).short() is None


def test_with_spans_there_is_none(frontend: Frontend) -> None:
    tracer: Any = object()
    frontend.services.tracer = tracer
    assert frontend.short() is None


def test_a_caller_who_is_not_recognised_at_once_is_left_to_infer(frontend: Frontend) -> None:
    identity: Any = SimpleNamespace(recognised=lambda _: None)
    frontend.services.identity = identity
    assert frontend.begin(PLAIN) is None


@pytest.mark.parametrize("native", [True, False])
def test_the_answer_is_that_of_infer(frontend: Frontend, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (inference, short_inference):
        monkeypatch.setattr(module, "perf_counter", lambda: 5.0)
    if not native:
        monkeypatch.setattr(inference, "_answer", None)
    begun = frontend.begin(PLAIN)
    assert begun is not None
    begun.pending.settle(REPLY)
    head, _, body = frontend.channel.answers[0].partition(b"\r\n\r\n")
    whole = frontend.whole(PLAIN, HTTP_X_REQUEST_ID="task")
    assert body == whole.body
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert lines.items() >= dict(whole.header_list()).items()
    assert not frontend.channel.resumed


def test_each_answer_is_counted_once(frontend: Frontend) -> None:
    begun = frontend.begin(PLAIN)
    assert begun is not None
    begun.pending.settle(REPLY)
    tally = frontend.services.tallies._tallies["m", Tier.PAID, "OK", "bunch"]
    assert sum(tally.buckets) == 1


def test_each_slow_request_of_a_connection_is_remembered_under_its_own_id(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[SlowRequest] = []
    monkeypatch.setattr(frontend.services.slow, "note", noted.append)
    monkeypatch.setattr(short_inference, "perf_counter", iter((0.0, 1000.0) * 2).__next__)
    short, channel = frontend.short(), frontend.channel
    assert short is not None
    for task_id in ("first", "second"):
        begun = short.take(PLAIN, channel)  # type: ignore[arg-type]
        assert begun is not None
        begun.pending.task_id = task_id
        begun.pending.settle(REPLY)
    assert [(each.request_id, each.task_id) for each in noted] == [("first", "first"), ("second", "second")]


@pytest.mark.parametrize(
    "outcome",
    [
        None,
        CallerGone("gone"),
        InvalidInput("no"),
        Reply("task", "FAILURE"),
        Reply("task", "REVOKED"),
    ],
    ids=["time", "gone", "refused", "failed", "revoked"],
)
def test_any_other_end_is_left_to_the_greenlet_and_counted_there(frontend: Frontend, outcome: object) -> None:
    begun = frontend.begin(PLAIN)
    assert begun is not None
    begun.pending.settle(outcome)
    assert (frontend.channel.answers, frontend.channel.resumed) == ([], 1)
    assert not frontend.services.tallies._tallies


def test_the_greenlet_ends_the_request_that_was_submitted(frontend: Frontend) -> None:
    begun = frontend.begin(PLAIN)
    assert begun is not None
    begun.pending.settle(InvalidInput("not this one"))
    more: Any = {"bunch.begun": begun}
    with pytest.raises(InvalidInput, match="not this one"):
        frontend.whole(PLAIN, **more)
    assert len(frontend.noted) == 1


def test_its_end_is_that_of_the_model_that_had_it_though_the_name_leads_elsewhere_by_now(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = frontend.begin(PLAIN)
    assert begun is not None
    begun.pending.settle(InvalidInput("no"))
    monkeypatch.setattr(frontend.services.versions, "route", lambda *_: "other")
    more: Any = {"bunch.begun": begun}
    with pytest.raises(InvalidInput):
        frontend.whole(PLAIN, **more)
    assert {model for model, *_ in frontend.services.tallies._tallies} == {"m"}


def test_while_the_server_stops_the_greenlet_closes_the_connection(frontend: Frontend) -> None:
    begun = frontend.begin(PLAIN)
    assert begun is not None
    frontend.channel.closes = True
    begun.pending.settle(REPLY)
    assert frontend.channel.resumed == 1


def test_an_answer_that_cannot_be_made_is_left_to_the_greenlet(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun = frontend.begin(PLAIN)
    assert begun is not None
    monkeypatch.setattr(short_inference, "rendered", lambda *_: 1 / 0)
    begun.pending.settle(REPLY)
    assert frontend.channel.resumed == 1
    assert "ZeroDivisionError" in caplog.text


def test_one_whose_connection_has_ended_is_forgotten(frontend: Frontend) -> None:
    begun = frontend.begin(PLAIN)
    assert begun is not None
    begun.abandon()
    begun.pending.settle(REPLY)
    assert (frontend.channel.answers, frontend.channel.resumed) == ([], 0)


@pytest.mark.parametrize("outcome", [REPLY, None], ids=["answered", "late"])
def test_what_is_kept_to_send_a_request_again_is_dropped_with_its_end(frontend: Frontend, outcome: object) -> None:
    begun = frontend.begin(PLAIN)
    assert begun is not None
    router = frontend.services.client.router
    router.keep(begun.pending, object(), 100)
    begun.pending.settle(outcome)
    assert router.kept_bytes == 0


def test_the_fake_channel_is_like_the_real_one() -> None:
    for name in ("disconnected", "must_close", "answer", "resume"):
        assert callable(getattr(LoopChannel, name))
