"""Direct mode: a real frontend, a real small API, and a Valkey that goes and comes back."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli.supervisor.ports import free_port
from config.errors import SettingsError
from config.settings import load_settings
from tests.configs import uncached
from tests.integration.celery_harness import PATIENCE_S, ROOT
from tests.shards import depth_of, inherited_environment, note_load, redis_environment
from tests.valkey import PrivateValkey
from tests.waiting import wait_until
from workers.models.http import HttpModel

MODELS = """\
default_model = "direct"

[models.direct]
source = "{url}"
version = "7"
direct = true
direct_concurrency = 2
options = {{ headers = {{ Authorization = "Bearer secret" }} }}

[models.queued]
source = "{url}"

[models.nobody]
source = "http://127.0.0.1:{closed}/"
direct = true
"""


class Api:
    """Answers each input with `{"echo": input, "parameters": …}`, unless the input says otherwise:

    `{"hold": true}` waits for `gate`, `{"status": n}` is answered so, `{"answer": text}` with that body.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.authorized: list[str | None] = []
        self.traces: list[str | None] = []
        self.gate = threading.Event()
        self.inside = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/predict"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(api: Api) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - `self` is the handler's, inside
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                api.bodies.append(body)
                api.authorized.append(self.headers["Authorization"])
                api.traces.append(self.headers["traceparent"])
                status, answer = api._answer(json.loads(body))
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    self.close_connection = True

            def log_message(self, *_values: object) -> None:
                """Nothing on the test's screen."""

        return Handler

    def _answer(self, asked: dict[str, Any]) -> tuple[int, bytes]:
        outputs = []
        for input, parameters in zip(asked["inputs"], asked["parameters"], strict=True):
            wish = input if isinstance(input, dict) else {}
            if "hold" in wish:
                self.inside += 1
                self.gate.wait(PATIENCE_S)
                self.inside -= 1
            if "status" in wish:
                return wish["status"], b"as you wish"
            if "answer" in wish:
                return 200, wish["answer"].encode()
            outputs.append({"echo": input, "parameters": parameters})
        return 200, json.dumps({"outputs": outputs}).encode()


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    json: Any


class Frontend:
    """One web process, over HTTP."""

    def __init__(self, folder: Path, valkey: PrivateValkey, models: str) -> None:
        self.port = free_port()
        (folder / "bunch.toml").write_text(uncached(models))
        self._log = folder / "web.log"
        inherited = inherited_environment()
        self._environment = inherited | {
            "BUNCH_CONFIG": str(folder / "bunch.toml"),
            **redis_environment(valkey.url),
            # As with one server: with a cluster requests would be held meanwhile.
            "BUNCH_FAILOVER_WAIT_MS": "0",
            "BUNCH_HTTP_PORT": str(self.port),
            "BUNCH_WEB_WORKERS": "1",
            "BUNCH_STATE_DIR": str(folder / "var"),
            "BUNCH_GRACEFUL_TIMEOUT_MS": "2000",
            "BUNCH_MAX_OUTPUT_BYTES": "65536",
        }
        self._pool = ThreadPoolExecutor(16)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "--config=config/gunicorn.py", "webapp.app:application"],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_up, "the frontend answers")

    def stop(self) -> None:
        self._pool.shutdown()
        if self._process is not None:
            self._process.terminate()
            try:
                assert self._process.wait(PATIENCE_S) == 0, self._log.read_text()
            finally:
                self._process.kill()

    def post(self, path: str, body: Any, **headers: str) -> Answered:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return Answered(answer.status, dict(answer.headers), json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            with error:
                return Answered(error.code, dict(error.headers), json.loads(error.read()))

    def infer(self, input: Any, model: str = "direct", **body: Any) -> Answered:
        return self.post("/v1/inference", {"input": input, "model": model, **body})

    def soon(self, input: Any, **body: Any) -> Future[Answered]:
        return self._pool.submit(self.infer, input, **body)

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture(scope="module")
def redis_server() -> Iterator[PrivateValkey]:
    server = PrivateValkey()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def upstream() -> Iterator[Api]:
    api = Api()
    api.start()
    yield api
    api.stop()


@pytest.fixture(scope="module")
def frontend(
    tmp_path_factory: pytest.TempPathFactory, redis_server: PrivateValkey, upstream: Api
) -> Iterator[Frontend]:
    models = MODELS.format(url=upstream.url, closed=free_port())
    frontend = Frontend(tmp_path_factory.mktemp("web"), redis_server, models)
    try:
        frontend.start()
        yield frontend
    finally:
        frontend.stop()


@pytest.fixture
def web(frontend: Frontend, redis_server: PrivateValkey) -> Frontend:
    """The frontend, with Redis away."""
    redis_server.kill()
    return frontend


@pytest.fixture
def api(upstream: Api) -> Iterator[Api]:
    upstream.bodies.clear()
    upstream.authorized.clear()
    upstream.gate.clear()
    yield upstream
    upstream.gate.set()
    wait_until(lambda: not upstream.inside, "nobody is inside")


def test_it_is_off_unless_a_model_has_it_on(web: Frontend, api: Api) -> None:
    answer = web.infer("x", "queued")
    assert (answer.status, answer.json["error"]) == (503, "BACKEND_UNAVAILABLE")
    assert int(answer.headers["Retry-After"]) >= 1
    assert api.bodies == []


def test_the_api_is_asked_for_one_input(web: Frontend, api: Api) -> None:
    answer = web.infer({"text": "Grüße"}, parameters={"top": 3})
    assert answer.status == 200
    assert answer.json["output"] == {"echo": {"text": "Grüße"}, "parameters": {"top": 3}}
    about = answer.json["metadata"]
    assert (about["batch_size"], about["attempt"], about["cached"], about["model_version"]) == (1, 1, False, "7")
    assert about["tier"] == "paid"
    assert set(about) == {
        *("latency_ms", "queue_ms", "compute_ms", "batch_size", "batch_id", "tier", "attempt", "cached"),
        *("model_version", "admission_ms", "batch_wait_ms", "transfer_ms", "reply_ms", "reason"),
    }
    assert answer.json["task_id"]
    assert api.authorized == ["Bearer secret"]


def test_it_is_asked_as_a_worker_would_ask(web: Frontend, api: Api) -> None:
    web.infer({"a": [1, "ü"]}, parameters={"p": None})
    worker = HttpModel(api.url)
    worker.load("cpu")
    worker.predict([{"a": [1, "ü"]}], [{"p": None}])
    worker._client.close()
    assert len(api.bodies) == 2
    assert api.bodies[0] == api.bodies[1]


def test_the_other_routes_too(web: Frontend, api: Api) -> None:
    assert web.post("/v1/predict", {"model_id": "direct", "input_data": 1}).json["output"]["echo"] == 1
    assert web.post("/api/inference", {"input": "x"}).json["output"]["echo"] == "x"
    bulk = web.post("/v1/inference/bulk", {"inputs": [1, {"status": 400}, 3]})
    assert [each.get("error") or each["output"]["echo"] for each in bulk.json["results"]] == [1, "INFERENCE_FAILED", 3]


def test_who_does_not_wait_is_refused(web: Frontend, api: Api) -> None:
    answer = web.post("/v1/inference", {"input": 1}, Prefer="respond-async")
    assert (answer.status, answer.json["error"]) == (503, "BACKEND_UNAVAILABLE")
    assert api.bodies == []


def test_beyond_the_bound_the_rest_is_refused_at_once(web: Frontend, api: Api) -> None:
    inside = [web.soon({"hold": n}) for n in range(2)]
    wait_until(lambda: api.inside == 2, "both places are taken")
    refused = web.infer("x")
    assert (refused.status, refused.json["error"]) == (503, "BACKEND_UNAVAILABLE")
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.json["retry_after_ms"] > 0
    assert len(api.bodies) == 2
    api.gate.set()
    assert [each.result().json["output"]["echo"] for each in inside] == [{"hold": 0}, {"hold": 1}]
    assert web.infer("x").status == 200


def test_the_callers_deadline_ends_the_call_and_frees_its_place(web: Frontend, api: Api) -> None:
    late = [web.soon({"hold": n}, timeout_ms=300) for n in range(2)]
    assert [(each.result().status, each.result().json["error"]) for each in late] == [(504, "DEADLINE_EXCEEDED")] * 2
    assert not api.gate.is_set()
    # The gate is still shut: these places are free because their callers' time is over.
    assert [web.infer(n).status for n in range(3)] == [200] * 3


@pytest.mark.parametrize(
    ("input", "status", "code"),
    [
        ({"status": 500}, 503, "MODEL_UNAVAILABLE"),
        ({"status": 429}, 503, "MODEL_UNAVAILABLE"),
        ({"status": 400}, 500, "INFERENCE_FAILED"),
        ({"answer": '{"outputs": [1, 2]}'}, 500, "INFERENCE_FAILED"),
        ({"answer": '{"outputs": []}'}, 500, "INFERENCE_FAILED"),
        ({"answer": '{"outputs": [NaN]}'}, 500, "INFERENCE_FAILED"),
        ({"answer": '{"outputs": {}}'}, 500, "INFERENCE_FAILED"),
        ({"answer": '{"outputs": [' + "[" * 5000 + "]" * 5000 + "]}"}, 500, "INFERENCE_FAILED"),
        ({"answer": "no JSON"}, 500, "INFERENCE_FAILED"),
        ({"answer": f'{{"outputs": ["{"x" * 70_000}"]}}'}, 500, "INFERENCE_FAILED"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_api_may_do_wrong(web: Frontend, api: Api, input: Any, status: int, code: str) -> None:
    answer = web.infer(input)
    assert (answer.status, answer.json["error"]) == (status, code)
    assert len(api.bodies) == 1
    assert ("Retry-After" in answer.headers) == (status == 503)


def test_an_api_that_is_away_as_well(web: Frontend, api: Api) -> None:
    answer = web.infer("x", "nobody")
    assert (answer.status, answer.json["error"]) == (503, "MODEL_UNAVAILABLE")


def test_it_goes_on_with_the_callers_trace(web: Frontend, api: Api) -> None:
    api.traces.clear()
    traceparent = f"00-{7:032x}-{8:016x}-01"
    assert web.post("/v1/inference", {"input": "x", "model": "direct"}, traceparent=traceparent).status == 200
    assert web.infer("x").status == 200
    (told, untold) = api.traces
    assert told is not None
    assert told[3:35] == traceparent[3:35]
    assert untold is None


def test_with_redis_back_requests_are_queued_again(web: Frontend, api: Api, redis_server: PrivateValkey) -> None:
    assert web.infer("x").status == 200
    redis_server.start()
    with redis_server.client() as redis:
        # As if a worker had loaded it once. None is there: a request that is queued is not answered.
        note_load(redis, "direct")
        # Long enough to be sent: who is too late for that is not queued.
        wait_until(lambda: web.infer("y", timeout_ms=1000).status == 504, "requests are queued")
        api.bodies.clear()
        queued = depth_of(redis, "direct")
        # One that does not wait cannot be too late.
        assert web.post("/v1/inference", {"input": "z", "model": "direct"}, Prefer="respond-async").status == 202
        assert depth_of(redis, "direct") == queued + 1
    assert api.bodies == []


def test_it_needs_an_url(tmp_path: Path) -> None:
    config = tmp_path / "bunch.toml"
    config.write_text('[models.echo]\nsource = "workers.models.echo:Echo"\ndirect = true\n')
    with pytest.raises(SettingsError, match=r"\[models.echo\] direct.*http"):
        load_settings({}, str(config))
    config.write_text('[models.echo]\nsource = "http://there/"\ndirect = true\ndirect_concurrency = 0\n')
    with pytest.raises(SettingsError, match="direct_concurrency"):
        load_settings({}, str(config))
