"""A plain HTTP client for the tests: JSON in, JSON out, one connection per call."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.waiting import wait_until

_PATIENCE_S = 240.0
_ABSENT = object()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The contract's code of an error; it also checks the form that all errors have."""
        document = self.json
        assert document.keys() - {"retry_after_ms"} == {"error", "message", "request_id"}, document
        assert document["message"]
        assert document["request_id"] == self.headers["x-request-id"]
        assert self.headers["content-type"] == "application/json"
        return str(document["error"])


class Api:
    """Calls to one frontend. Every answer must carry a request id."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._pool = ThreadPoolExecutor(max_workers=64)

    def close(self) -> None:
        self._pool.shutdown()

    def call(
        self, method: str, path: str, document: object = _ABSENT, *, raw: bytes | None = None, **headers: str
    ) -> Answer:
        """Send one request. `headers` are named with `_` for `-`; `raw` is a body that is sent as it is."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if document is not _ABSENT:
            raw = json.dumps(document).encode()
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)) as connection:
            connection.request(method, path, raw, sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, found, response.read())
        assert "x-request-id" in answer.headers, (method, path)
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, raw=None, **headers)

    def post(self, path: str, document: object, **headers: str) -> Answer:
        return self.call("POST", path, document, raw=None, **headers)

    def infer(self, input: object, model: str | None = None, **fields: Any) -> Answer:
        """`POST /v1/inference`."""
        return self.post("/v1/inference", {"input": input, **({"model": model} if model else {}), **fields})

    def soon(self, input: object, model: str | None = None, **fields: Any) -> Future[Answer]:
        """`infer` without waiting for the answer."""
        return self._pool.submit(self.infer, input, model, **fields)

    def aside(self, path: str, document: object, **headers: str) -> Future[Answer]:
        """A POST without waiting for its answer."""
        return self._pool.submit(self.post, path, document, **headers)

    def all(self, inputs: Sequence[object], model: str | None = None, **fields: Any) -> list[Answer]:
        """Send all of them at the same time."""
        return [each.result() for each in [self.soon(each, model, **fields) for each in inputs]]

    def later(self, input: object, model: str | None = None, **fields: Any) -> str:
        """Queue it and return its task id."""
        body = {"input": input, **({"model": model} if model else {}), **fields}
        answer = self.post("/v1/inference", body, Prefer="respond-async")
        assert answer.status == 202, answer
        return str(answer.json["task_id"])

    def result(self, task_id: str, wait_ms: int = 0) -> dict[str, Any]:
        """`GET /v1/result/{task_id}`."""
        answer = self.get(f"/v1/result/{task_id}" + (f"?wait_ms={wait_ms}" if wait_ms else ""))
        assert answer.status == 200, answer
        document: dict[str, Any] = answer.json
        return document

    def outcome(self, task_id: str) -> dict[str, Any]:
        """The result of a request that has ended, however long that takes."""

        def ended() -> dict[str, Any]:
            answer = self.get(f"/v1/result/{task_id}?wait_ms=5000")
            # As while nobody can confirm a result after a failover.
            if answer.status == 503:
                return {}
            assert answer.status == 200, answer
            document: dict[str, Any] = answer.json
            return {} if document["status"] in {"PENDING", "STARTED"} else document

        return wait_until(ended, f"{task_id} has ended")


@contextlib.contextmanager
def connected(port: int) -> Iterator[Api]:
    api = Api(port)
    try:
        yield api
    finally:
        api.close()
