"""Large inputs and outputs through a whole stack, beside the queue, in a Redis of their own."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from tests.e2e.client import Answer, Api, connected
from tests.e2e.stack import PATIENT, Stack
from tests.integration.celery_harness import close_client
from tests.valkey import PrivateValkey
from tests.waiting import PATIENCE_S, wait_until

MODELS = """\
default_model = "echo"

[models.echo]
source = "workers.models.echo:Echo"

[models.described]
source = "tests.byte_models:Described"
input_type = "bytes"

[models.reversed]
source = "tests.byte_models:Reversed"
input_type = "bytes"

[models.kept]
source = "tests.byte_models:Reversed"
input_type = "bytes"
cache = true

[models.cursed]
source = "tests.chaos.models:Cursed"
options = {{ repaired = "{folder}/repaired" }}

[models.counting]
source = "tests.models:Counting"
cache = true
"""
PNG = b"\x89PNG\r\n" + bytes(range(256)) * 2000
TEXT = "ä" * 50_000


@pytest.fixture(scope="module")
def blobs() -> Iterator[PrivateValkey]:
    server = PrivateValkey("--appendonly", "no")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, blobs: PrivateValkey) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("large")
    each = Stack(folder, MODELS.format(folder=folder))
    settings = {"admission": "off", "blob_url": blobs.url, "blob_max_bytes": 1_000_000, "ref_hosts": "127.0.0.1"}
    try:
        yield each.start("--web-workers=1", "--workers=1", "--no-flower", **PATIENT, **settings)
        each.stop()
    finally:
        each.kill()


@pytest.fixture(scope="module")
def api(stack: Stack) -> Iterator[Api]:
    with connected(stack.port) as api:
        yield api


@pytest.fixture
def beside(blobs: PrivateValkey) -> Iterator[Redis]:
    with blobs.client() as redis:
        yield redis


@pytest.fixture
def celery(stack: Stack, blobs: PrivateValkey) -> Iterator[Celery]:
    backend = f"bunch.celery_backend:BunchBackend+{stack.redis_url}"
    app = Celery("program", broker=stack.redis_url, backend=backend, set_as_current=False)
    app.conf.bunch_blob_url = blobs.url
    yield app
    close_client(app)


def nothing_beside(redis: Redis) -> None:
    wait_until(lambda: not list(redis.scan_iter("bunch:blob:*")), what="every payload is gone")


def lies(redis: Redis, task_id: str) -> bool:
    """Return whether the input of that request is there, in any shard; its output has a longer name."""
    found = [each.decode().partition("{")[0] for each in redis.scan_iter(f"bunch:blob:{task_id}*")]
    return f"bunch:blob:{task_id}" in found


def post(api: Api, raw: bytes, model: str, **headers: str) -> Answer:
    return api.call("POST", f"/v1/inference?model={model}", raw=raw, Content_Type="image/png", **headers)


def posted(api: Api) -> Answer:
    return api.call("POST", "/v1/inference", {"input": TEXT}, Prefer="respond-async")


def described(raw: bytes, **parameters: object) -> dict[str, object]:
    return {"type": "bytes", "size": len(raw), "sha256": hashlib.sha256(raw).hexdigest(), "parameters": parameters}


def test_large_inputs_and_outputs_arrive_whole_and_nothing_stays(api: Api, stack: Stack, beside: Redis) -> None:
    assert post(api, PNG, "described").json["output"] == described(PNG, content_type="image/png")
    assert api.call("POST", "/v1/inference", {"input": TEXT}).json["output"] == TEXT
    whole = api.call("POST", "/v1/inference/bulk", {"inputs": [TEXT, "small", TEXT + "x"]}).json
    assert [each["output"] for each in whole["results"]] == [TEXT, "small", TEXT + "x"]
    nothing_beside(beside)
    with stack.redis() as redis:
        assert not list(redis.scan_iter("bunch:blob*"))
    assert 'bunch_blob_bytes{state="live"} 0.0' in api.call("GET", "/metrics").body.decode()


def test_whoever_polls_gets_a_large_output_again_and_again(api: Api, stack: Stack, celery: Celery) -> None:
    receipt = api.call("POST", "/v1/inference", {"input": TEXT}, Prefer="respond-async")
    for _ in range(2):
        assert api.outcome(receipt.json["task_id"])["output"] == TEXT
    assert 'bunch_blob_bytes{state="live"} 0.0' not in api.call("GET", "/metrics").body.decode()
    assert "payloads 0.1 MB of requests and results, 0.0 MB of dead letters" in stack.manage("status").stdout
    # In any Celery program.
    assert celery.AsyncResult(receipt.json["task_id"]).get(timeout=PATIENCE_S) == TEXT


def test_a_large_answer_is_kept_for_an_equal_question(api: Api) -> None:
    question = {"model": "counting", "input": {"text": TEXT}}
    first, second = (api.call("POST", "/v1/inference", question).json for _ in range(2))
    assert first["output"] == second["output"]
    assert (first["metadata"]["cached"], second["metadata"]["cached"]) == (False, True)


def test_a_celery_client_lays_its_input_beside_the_queue(celery: Celery, beside: Redis) -> None:
    blob = f"client-{uuid.uuid4().hex}"
    beside.set(f"bunch:blob:{blob}", PNG, ex=120)
    ref = {"id": blob, "size": len(PNG), "sha256": hashlib.sha256(PNG).hexdigest(), "form": "bytes"}
    sent = celery.send_task("bunch.infer", [{"$blob": ref}], queue="bunch.described.paid")
    assert sent.get(timeout=PATIENCE_S) == described(PNG)
    wait_until(lambda: not beside.exists(f"bunch:blob:{blob}"), what="it is deleted")
    # Its own results stay whole, for a client that knows nothing of this.
    whole = celery.send_task("bunch.infer", [TEXT], queue="bunch.echo.paid")
    assert whole.get(timeout=PATIENCE_S) == TEXT


def test_a_dead_letter_is_run_again_with_its_payload(api: Api, stack: Stack, beside: Redis) -> None:
    given = {"curse": "raise", "text": TEXT}
    document = {"model": "cursed", "input": given}
    receipt = api.call("POST", "/v1/inference", document, Prefer="respond-async")
    task_id = receipt.json["task_id"]
    assert api.outcome(task_id)["status"] == "FAILURE"
    assert lies(beside, task_id)
    (stack.config_file.parent / "repaired").touch()
    stack.manage("dlq", "replay", task_id)
    assert wait_until(lambda: api.outcome(task_id).get("output")) == given
    wait_until(lambda: not lies(beside, task_id), what="the payload is gone")


def test_a_callers_reference_is_refused(api: Api) -> None:
    forged = {"$blob": {"id": "client-0001", "size": 5, "sha256": "0" * 64}}
    answer = api.call("POST", "/v1/inference", {"input": forged})
    assert (answer.status, answer.error) == (400, "INVALID_INPUT")


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """An object store: `/<size>` has so many bytes, anything else is a redirect."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "/10")
                self.end_headers()
                return
            body = PNG[: int(self.path[1:])] if int(self.path[1:]) < len(PNG) else bytes(int(self.path[1:]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing is printed."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def ask(api: Api, url: str, **more: str) -> Answer:
    return api.call("POST", "/v1/inference", {"model": "described", "input": {"$ref": url, **more}})


def test_a_worker_fetches_what_is_referred_to(api: Api, store: str) -> None:
    found = PNG[:200_000]
    assert ask(api, f"{store}/200000").json["output"] == described(found)
    assert ask(api, f"{store}/200000", sha256=hashlib.sha256(found).hexdigest()).json["output"] == described(found)
    whole = {"model": "described", "inputs": [{"$ref": f"{store}/{size}"} for size in (5, 6)] + [{"$base64": "AAAA"}]}
    answers = api.call("POST", "/v1/inference/bulk", whole).json["results"]
    assert [each["output"]["size"] for each in answers] == [5, 6, 3]


def test_each_fault_of_a_reference_has_its_code(api: Api, store: str) -> None:
    told = [
        ask(api, f"{store}/200000", sha256="0" * 64),
        ask(api, f"{store}/moved"),
        ask(api, f"{store}/1000001"),
        ask(api, "https://elsewhere.example.org/"),
        ask(api, f"{store}/5", more="x"),
    ]
    assert [(each.status, each.error) for each in told] == [
        (422, "INPUT_REJECTED"),
        (422, "INPUT_REJECTED"),
        (413, "PAYLOAD_TOO_LARGE"),
        (400, "INVALID_INPUT"),
        (400, "INVALID_INPUT"),
    ]
    # To a model that takes JSON it is JSON.
    assert api.call("POST", "/v1/inference", {"input": {"$ref": "#/a"}}).json["output"] == {"$ref": "#/a"}


def test_while_their_redis_is_away_payloads_that_must_lie_there_are_refused(api: Api, blobs: PrivateValkey) -> None:
    blobs.kill()
    try:
        answer = posted(api)
        assert (answer.status, answer.error) == (503, "BACKEND_UNAVAILABLE")
        assert api.call("POST", "/v1/inference", {"input": "small"}).json["output"] == "small"
        # That of whoever waits is in shared memory.
        assert api.call("POST", "/v1/inference", {"input": TEXT}).json["output"] == TEXT
    finally:
        blobs.start()
    path = wait_until(lambda: posted(api).headers.get("location"))
    assert api.outcome(path.rpartition("/")[2])["output"] == TEXT


TURNED = PNG[::-1]
AS_TEXT = base64.b64encode(TURNED).decode()
ANY_BYTES = "application/octet-stream"


def outputs(redis: Redis, task_id: str) -> list[bytes]:
    """The payloads beside the result of that request, in any shard."""
    return [redis.get(each) or b"" for each in redis.scan_iter(f"bunch:blob:{task_id}.*")]


def forgotten(redis: Redis, task_id: str) -> None:
    wait_until(lambda: not outputs(redis, task_id), what="its output is gone")


def poll(api: Api, task_id: str, query: str = "", **headers: str) -> Answer:
    return api.call("GET", f"/v1/result/{task_id}?wait_ms=10000{query}", **headers)


def test_large_bytes_are_nowhere_base64_on_their_way_to_who_wants_bytes(api: Api, beside: Redis) -> None:
    for accept in (ANY_BYTES, "application/json"):
        answer = post(api, PNG, "reversed", Accept=accept)
        assert (answer.status, answer.headers["content-type"]) == (200, accept)
        assert answer.body == TURNED if accept == ANY_BYTES else answer.json["output"] == AS_TEXT
    # Their type is none of those that are wished for.
    answer = post(api, PNG, "reversed", Accept="image/png")
    assert answer.json["output"] == AS_TEXT
    forgotten(beside, answer.json["task_id"])


def test_a_poller_gets_large_bytes_in_any_form_until_it_forgets_them(api: Api, beside: Redis, celery: Celery) -> None:
    task_id = post(api, PNG, "reversed", Prefer="respond-async").json["task_id"]
    assert poll(api, task_id, Accept=ANY_BYTES).body == TURNED
    assert outputs(beside, task_id) == [TURNED]
    assert poll(api, task_id).json["output"] == AS_TEXT
    assert poll(api, task_id, Accept="image/png").json["output"] == AS_TEXT
    assert f'"output":"{AS_TEXT}"' in poll(api, task_id, Accept="text/event-stream").body.decode()
    assert celery.AsyncResult(task_id).get(timeout=PATIENCE_S) == AS_TEXT
    assert outputs(beside, task_id) == [TURNED]
    assert poll(api, task_id, "&forget=true", Accept=ANY_BYTES).body == TURNED
    forgotten(beside, task_id)
    assert poll(api, task_id).status == 404
    task_id = posted(api).json["task_id"]
    assert poll(api, task_id, "&forget=true").json["output"] == TEXT
    forgotten(beside, task_id)


def test_a_repeated_call_gets_the_same_large_bytes(api: Api, beside: Redis) -> None:
    first = post(api, PNG, "reversed", Accept=ANY_BYTES, Idempotency_Key="picture")
    again = post(api, PNG, "reversed", Accept=ANY_BYTES, Idempotency_Key="picture")
    assert first.body == again.body == TURNED
    task_ids = {json.loads(each.headers["bunch-metadata"])["task_id"] for each in (first, again)}
    assert len(task_ids) == 1
    assert post(api, PNG, "reversed", Idempotency_Key="picture").json["output"] == AS_TEXT
    assert outputs(beside, task_ids.pop()) == [TURNED]


def test_a_kept_picture_is_not_forgotten_with_one_of_its_requests(api: Api, beside: Redis) -> None:
    task_id = post(api, PNG, "kept", Prefer="respond-async").json["task_id"]
    assert poll(api, task_id, "&forget=true", Accept=ANY_BYTES).body == TURNED
    answer = post(api, PNG, "kept", Accept=ANY_BYTES)
    assert (answer.body, json.loads(answer.headers["bunch-metadata"])["cached"]) == (TURNED, True)
    again = post(api, PNG, "kept", Prefer="respond-async").json["task_id"]
    assert poll(api, again, "&forget=true").json["output"] == AS_TEXT
    assert outputs(beside, task_id) == [TURNED]


def test_kserve_gets_large_bytes_as_an_element(api: Api) -> None:
    head = {"name": "input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(PNG) + 4}}
    asked = json.dumps({"inputs": [head], "parameters": {"binary_data_output": True}}).encode()
    body = asked + len(PNG).to_bytes(4, "little") + PNG
    answer = api.call("POST", "/v2/models/reversed/infer", raw=body, Inference_Header_Content_Length=str(len(asked)))
    assert answer.body[-len(PNG) - 4 :] == len(PNG).to_bytes(4, "little") + TURNED


def test_what_is_refused_at_the_door_leaves_nothing(api: Api, beside: Redis) -> None:
    def shared() -> float:
        (found,) = re.findall(r'bunch_blob_bytes{state="shared"} (.*)', api.call("GET", "/metrics").body.decode())
        return float(found)

    # What others have left may go meanwhile.
    blobs, values, shared_bytes = set(beside.scan_iter("bunch:blob:*")), written(beside), shared()
    for way in ({}, {"Prefer": "respond-async"}):
        assert post(api, PNG, "nobody", **way).status == 404
        assert post(api, PNG, "echo", **way).status == 415
        assert post(api, PNG, "reversed", X_Timeout_Ms="0", **way).status == 400
        assert post(api, PNG, "reversed", Content_Encoding="gzip", **way).status == 415
        assert post(api, bytes(1_000_001), "reversed", **way).status == 413
        assert post(api, PNG, "reversed", Idempotency_Key="ä", **way).status == 400
    assert set(beside.scan_iter("bunch:blob:*")) <= blobs
    assert written(beside) == values
    assert shared() <= shared_bytes


def written(redis: Redis) -> int:
    """The number of values that were ever set there."""
    return int(redis.info("commandstats").get("cmdstat_set", {}).get("calls", 0))
