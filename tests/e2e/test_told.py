"""Two owners in one batch: what is said of one of them reaches the other by no door."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Answer, Api, connected
from tests.e2e.stack import PATIENT, Stack
from tests.integration.celery_harness import close_client, plain_client
from tests.waiting import PATIENCE_S, wait_until

ALICES, BOBS = "written by alice", "written by bob"
TOKEN = "t0ps3cret-of-the-api"
MODELS = """
[models.pair]
source = "tests.models:Moody"
policy = "fixed"
max_batch_size = 2
max_wait_ms = 4000
max_attempts = 1

[models.api]
source = "{url}"
policy = "fixed"
max_batch_size = 2
max_wait_ms = 4000
max_attempts = 1
options = {{ headers = {{ Authorization = "Bearer {token}" }} }}
"""


class Parrot(BaseHTTPRequestHandler):
    """An API that refuses everything, and says why with all that it was sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        said = f"cannot take {body.decode()} with {dict(self.headers)}".encode()
        self.send_response(503)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def parrot() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Parrot)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/predict"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, parrot: str) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("told"), MODELS.format(url=parrot, token=TOKEN))
    try:
        yield stack.start("--workers=1", "--web-workers=1", "--no-flower", auth="keys", admission="off", **PATIENT)
        stack.stop()
    finally:
        stack.kill()


@pytest.fixture(scope="module")
def api(own: Stack) -> Iterator[Api]:
    with connected(own.port) as api:
        yield api


@pytest.fixture(scope="module")
def owners(own: Stack, api: Api) -> list[dict[str, str]]:
    """Headers of alice and of bob."""
    made = [json.loads(own.manage("keys", "create", "--tier=paid", f"--owner={n}", "--json").stdout) for n in "ab"]
    headers = [{"Authorization": f"Bearer {each['secret']}"} for each in made]
    for each in headers:
        wait_until(lambda each=each: api.get("/v1/models", **each).status == 200, what="the key is known")  # type: ignore[misc]
    return headers


def inputs(model: str) -> list[Any]:
    return [ALICES, BOBS] if model == "api" else [{"busy": ALICES}, {"busy": BOBS}]


def together(calls: list[Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]


def all_told(own: Stack, api: Api, owners: list[dict[str, str]], model: str) -> list[str]:
    """The texts that alice and bob read, whichever way they ask and look."""
    values = inputs(model)

    def waiting(n: int) -> str:
        body = {"model": model, "input": values[n]}
        return api.post("/v1/inference", body, X_Request_Id=f"{model}-{n}", **owners[n]).body.decode()

    def bulk(n: int) -> str:
        return api.post("/v1/inference/bulk", {"model": model, "inputs": [values[n]]}, **owners[n]).body.decode()

    def polled(n: int) -> str:
        body = {"model": model, "input": values[n]}
        task_id = api.post("/v1/inference", body, Prefer="respond-async", **owners[n]).json["task_id"]
        # Once it has ended.
        seen = plain(own, task_id)
        return api.get(f"/v1/result/{task_id}", **owners[n]).body.decode() + seen

    told = ["", ""]
    for door in (waiting, bulk, polled):
        for n, text in enumerate(together([lambda n=n, door=door: door(n) for n in (0, 1)])):  # type: ignore[misc]
            assert "INFERENCE_FAILED" in text, text
            told[n] += text
    for n in (0, 1):
        told[n] += api.get(f"/internal/requests/{model}-{n}", **owners[n]).body.decode()
    return told


def plain(own: Stack, task_id: str) -> str:
    """The same as a Celery client reads it, its traceback too."""
    app = plain_client(own.redis_url)
    result = app.AsyncResult(task_id)
    seen = f"{result.get(timeout=PATIENCE_S, propagate=False)!r} {result.traceback}"
    close_client(app)
    return seen


@pytest.mark.parametrize("model", ["pair", "api"])
def test_neither_reads_what_the_other_wrote(own: Stack, api: Api, owners: list[dict[str, str]], model: str) -> None:
    told = all_told(own, api, owners, model)
    for n, others in ((0, BOBS), (1, ALICES)):
        assert others not in told[n]
        assert TOKEN not in told[n]
        assert "Traceback" not in told[n]
    letters = [json.loads(own.manage("dlq", "list", "--json").stdout)]
    kept = "".join(own.manage("dlq", "show", each["id"]).stdout for each in letters[0] if each["model"] == model)
    assert ALICES in kept, "the operator reads why"
    assert BOBS in kept
    log = "".join(path.read_text() for path in Path(own.state_dir).glob("log/worker*.log"))
    assert "cannot take" in log
    assert TOKEN not in kept + log


def test_one_that_fails_alone_tells_an_owner_no_more_than_the_setting_says(
    own: Stack, api: Api, owners: list[dict[str, str]]
) -> None:
    values = [{"fail": "weights at /srv/secret"}, {"reject": "too long for this model"}]

    def ask(n: int) -> Answer:
        return api.post("/v1/inference", {"model": "pair", "input": values[n]}, **owners[n])

    failed, refused = together([lambda: ask(0), lambda: ask(1)])
    assert (failed.status, failed.error) == (500, "INFERENCE_FAILED")
    assert "weights" not in failed.body.decode()
    assert (refused.status, refused.json["message"]) == (422, "too long for this model")
