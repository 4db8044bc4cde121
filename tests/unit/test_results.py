"""Results, read by Celery's own backend and by the frontend."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from hypothesis import given
from hypothesis import strategies as st

from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import OWN_METADATA, Cancelled, Expired, Failed, Ok, Outcome, Rejected, Request
from config.tiers import Tier
from tasks import errors
from tasks.protocol.answers import checked, error_of
from tasks.protocol.results import (
    FINISHED,
    CeleryCodec,
    DeadLetter,
    Details,
    Reply,
    decode_details,
    decode_error,
    decode_replies,
    decode_reply,
    model_metadata,
)
from tests.fakes.messages import entry, our_message

CODEC = CeleryCodec(default_ttl_ms=1000)
INFO = BatchInfo("batch-7", "m", "2", 3, Reason.FULL, claimed_ms=5_250, compute_s=0.0125)
REQUEST = Request(
    "some-id", Tier.FREE, 2, b"1", b"{}", attempt=2, enqueued_ms=5_000, result_ttl_ms=777, reply_to="bunch:reply:p"
)
OUTCOMES: dict[str, Outcome] = {
    "ok": Ok(b'{"text":"\xc3\xa9"}'),
    "rejected": Rejected("too long: “é”"),
    "invalid": Rejected("no text", exc_type="InvalidInput"),
    "failed": Failed("it broke: \x00é\u2028", traceback="Traceback…\n  é"),
    "expired": Expired(),
    "cancelled": Cancelled(),
}


def encoded(outcome: Outcome, request: Request = REQUEST) -> bytes:
    return CODEC.encode(request, outcome, INFO).result


def celery_result(raw: bytes, task_id: str = "some-id") -> AsyncResult:
    """As a plain Celery client sees it."""
    app = Celery("plain", backend="cache+memory://", set_as_current=False)
    app.backend.set(app.backend.get_key_for_task(task_id), raw)
    return AsyncResult(task_id, app=app)


def test_celery_gets_the_output() -> None:
    result = celery_result(encoded(OUTCOMES["ok"]))
    assert result.status == "SUCCESS"
    assert result.get(timeout=1) == {"text": "é"}
    assert result.traceback is None
    assert result.children == []
    assert result.date_done.year >= 2025


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("rejected", errors.InputRejected, "too long: “é”"),
        ("invalid", errors.InvalidInput, "no text"),
        ("failed", errors.InferenceFailed, "it broke: \x00é\u2028"),
        ("expired", errors.DeadlineExceeded, Expired().message),
    ],
)
def test_celery_raises_the_error(name: str, error: type[Exception], message: str) -> None:
    result = celery_result(encoded(OUTCOMES[name]))
    assert result.status == "FAILURE"
    with pytest.raises(error) as caught:
        result.get(timeout=1)
    assert str(caught.value) == message


def test_celery_knows_a_cancelled_task_as_revoked() -> None:
    result = celery_result(encoded(OUTCOMES["cancelled"]))
    assert result.status == "REVOKED"
    with pytest.raises(TaskRevokedError):
        result.get(timeout=1)


def test_celery_shows_the_models_traceback() -> None:
    assert celery_result(encoded(OUTCOMES["failed"])).traceback == "Traceback…\n  é"


def test_a_client_that_has_none_of_our_classes_gets_an_exception_all_the_same() -> None:
    program = (
        "import sys; from celery import Celery; from celery.result import AsyncResult\n"
        "app = Celery('plain', backend='cache+memory://'); raw = sys.stdin.buffer.read()\n"
        "app.backend.set(app.backend.get_key_for_task('some-id'), raw)\n"
        "error = AsyncResult('some-id', app=app).get(timeout=1, propagate=False)\n"
        "print(type(error).__name__, error); assert 'tasks' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=encoded(Rejected("too long")), capture_output=True, timeout=240, check=True, cwd="/",
    )  # fmt: skip
    assert done.stdout.decode().strip() == "InputRejected too long"


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_frontend_reads_status_and_metadata(name: str) -> None:
    reply = decode_reply(encoded(OUTCOMES[name]))
    assert reply.task_id == "some-id"
    assert reply.status in FINISHED
    details = decode_details(reply.bunch)
    assert (details.queue_ms, details.compute_ms, details.batch_size) == (250, 12.5, 3)
    assert (details.batch_id, details.tier, details.attempt, details.model_version) == ("batch-7", "free", 2, "2")
    assert not details.cached


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (OUTCOMES["rejected"], errors.InputRejected),
        (OUTCOMES["invalid"], errors.InvalidInput),
        (OUTCOMES["failed"], errors.InferenceFailed),
        (OUTCOMES["expired"], errors.DeadlineExceeded),
        (OUTCOMES["cancelled"], errors.TaskCancelled),
        (Failed("x", exc_type="KeyError"), errors.InferenceFailed),
        (Failed("x", code="BACKEND_UNAVAILABLE"), errors.BackendUnavailable),
        (Failed("x", code="SOMETHING_NEW"), errors.InferenceFailed),
    ],
)
def test_errors_are_mapped_by_code_never_by_class(outcome: Outcome, error: type[errors.BunchError]) -> None:
    with pytest.raises(error) as caught:
        checked(decode_reply(encoded(outcome)))
    assert type(caught.value) is error
    assert caught.value.message


def test_a_reply_without_code_from_another_worker_is_an_inference_failure() -> None:
    raw = b'{"status":"FAILURE","result":{"exc_type":"ValueError","exc_message":["a",1]},"task_id":"x","children":[]}'
    error = error_of(decode_reply(raw))
    assert type(error) is errors.InferenceFailed
    assert str(error) == "a 1"


def test_no_reply_is_a_deadline_and_an_error_is_itself() -> None:
    with pytest.raises(errors.DeadlineExceeded):
        checked(None)
    with pytest.raises(errors.ServiceOverloaded):
        checked(errors.ServiceOverloaded("full"))
    reply = Reply("x", "SUCCESS")
    assert checked(reply) is reply


def test_an_output_passes_through_untouched() -> None:
    output = b'{"b": 1,  "a": [1.50, "\\u00e9"]}'
    assert bytes(decode_reply(encoded(Ok(output))).result) == output


def test_settled_says_where_and_for_how_long() -> None:
    settled = CODEC.encode(REQUEST, Ok(b"1"), INFO)
    assert (settled.position, settled.task_id, settled.ttl_ms) == (2, "some-id", 777)
    assert settled.reply_to == "bunch:reply:p"
    assert settled.dead_letter == b""


@pytest.mark.parametrize("reply_to", ["", "0aadc5b6-aca8-3e02-9891-c9ee1809865f", "bunch:replyx"])
def test_only_frontends_are_replied_to(reply_to: str) -> None:
    """Every Celery client names a reply address; nobody listens there."""
    request = Request("some-id", Tier.PAID, 1, b"1", b"{}", reply_to=reply_to)
    assert CODEC.encode(request, Ok(b"1"), INFO).reply_to == ""


def test_a_request_of_unknown_age_has_not_waited() -> None:
    request = Request("some-id", Tier.PAID, 1, b"1", b"{}")
    assert decode_details(decode_reply(encoded(Ok(b"1"), request)).bunch).queue_ms == 0


def test_a_traceback_is_cut_at_its_beginning() -> None:
    text = "x" * 100_000 + "ValueError: the cause"
    traceback = decode_reply(encoded(Failed("x", traceback=text))).traceback
    assert traceback is not None
    assert traceback.endswith("the cause")
    assert len(traceback) < 20_000


@given(
    st.builds(Rejected, st.text())
    | st.builds(Failed, st.text(), traceback=st.none() | st.text())
    | st.builds(Ok, st.text().map(msgspec.json.encode)),
    st.text(min_size=1),
)
def test_whatever_the_texts_are_the_reply_is_json(outcome: Outcome, task_id: str) -> None:
    request = Request(task_id, Tier.PAID, 1, b"1", b"{}")
    raw = encoded(outcome, request)
    (reply,) = decode_replies(b"[" + raw + b"]")
    assert reply.task_id == task_id
    if not isinstance(outcome, Ok):
        assert decode_error(reply.result).text == outcome.message


def test_dead_letters_tell_what_an_operator_must_know() -> None:
    failure = Failed("it broke", traceback="Traceback…")
    letter = msgspec.json.decode(CODEC.dead_letter(REQUEST, failure, INFO), type=DeadLetter)
    assert (letter.id, letter.model, letter.tier, letter.batch_id) == ("some-id", "m", "free", "batch-7")
    assert (letter.reason, letter.traceback, letter.attempts) == ("it broke", "Traceback…", 2)
    assert letter.failed_at > 1.7e9
    # Given up before the model saw it again.
    before: Any = msgspec.json.decode(CODEC.dead_letter(REQUEST, failure, msgspec.structs.replace(INFO, compute_s=0.0)))
    assert before["attempts"] == 1


@pytest.mark.parametrize(("counted", "compute_s", "told"), [(3, 0.01, 3), (3, 0.0, 2), (1, 0.0, 1)])
def test_a_failure_tells_of_the_attempts_that_were_made(counted: int, compute_s: float, told: int) -> None:
    request = msgspec.structs.replace(REQUEST, attempt=counted)
    settled = CODEC.encode(request, Failed("it broke"), msgspec.structs.replace(INFO, compute_s=compute_s))
    assert decode_details(decode_reply(settled.result).bunch).attempt == told


def test_the_codec_reads_what_frontends_write() -> None:
    request = CODEC.decode(entry(our_message("some-id", b"[1]", result_ttl_ms=5)))
    assert (request.id, request.input, request.result_ttl_ms) == ("some-id", b"[1]", 5)


def test_metadata_of_the_model_stands_beside_ours_and_under_no_name_of_ours() -> None:
    reply = decode_reply(encoded(Ok(b"1", b'"tokens_used":3,"content_type":"image/png"')))
    about = msgspec.json.decode(reply.bunch)
    assert (about["tokens_used"], about["content_type"]) == (3, "image/png")
    assert about.keys() - {"tokens_used", "content_type"} <= OWN_METADATA
    assert set(Details.__struct_fields__) <= OWN_METADATA
    assert decode_details(reply.bunch).batch_id == "batch-7"
    assert msgspec.json.decode(model_metadata(reply.bunch)) == {"tokens_used": 3, "content_type": "image/png"}


def test_a_result_to_which_the_model_adds_nothing_has_no_metadata_of_its_own() -> None:
    plain = decode_reply(encoded(Ok(b"1"))).bunch
    shared = msgspec.Raw(bytes(plain)[:-1] + b',"collapsed":true}')
    odd = msgspec.Raw(bytes(plain).replace(b'"model_version":', b'"model_version":"\\"}", "model_version":'))
    for bunch in (plain, shared, odd, msgspec.Raw(b"{}"), msgspec.Raw()):
        assert model_metadata(bunch) == b""
    assert model_metadata(msgspec.Raw(bytes(shared)[:-1] + b',"note":"}"}')) == b'{"note":"}"}'
