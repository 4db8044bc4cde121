"""The frontend while Redis is away: it says so at once, in the contract's words, and stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from cli.supervisor.ports import free_port
from config.redis import connect
from config.settings import load_settings
from config.shards import only_home
from webapp.app import create_app, make_services

CONFIG = """
[models.echo]
source = "workers.models.echo:Echo"
"""


@pytest.fixture
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    config = tmp_path_factory.mktemp("config") / "bunch.toml"
    config.write_text(CONFIG)
    settings = load_settings({}, str(config))
    app = create_app(make_services(settings, only_home(connect(f"redis://127.0.0.1:{free_port()}/0"))))
    app.start()
    yield app.test_client()
    app.stop()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/inference", {"input": 1}),
        ("POST", "/v1/predict", {"input_data": 1}),
        ("POST", "/api/inference", {"input": "1"}),
        ("POST", "/v1/inference/bulk", {"inputs": [1, 2]}),
        ("GET", "/v1/result/an-id", None),
        ("GET", "/v1/result/an-id?wait_ms=5000", None),
        ("DELETE", "/v1/result/an-id", None),
        ("GET", "/internal/requests/an-id", None),
        ("GET", "/readyz", None),
        ("GET", "/metrics", None),
    ],
)
def test_it_is_unavailable_and_worth_another_try(
    client: FlaskClient, method: str, path: str, body: dict[str, object] | None
) -> None:
    for prefer in ("", "respond-async"):
        answer = client.open(path, method=method, json=body, headers={"Prefer": prefer, "X-Request-Id": "mine"})
        assert answer.status_code == 503
        assert answer.json is not None
        assert answer.json["error"] == "BACKEND_UNAVAILABLE"
        assert answer.json["request_id"] == answer.headers["X-Request-Id"] == "mine"
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json["retry_after_ms"] >= 1


def test_health_says_so_and_the_process_lives(client: FlaskClient) -> None:
    health = client.get("/internal/health")
    assert health.status_code == 503
    assert health.json is not None
    assert (health.json["status"], health.json["redis"]) == ("unhealthy", "down")
    assert client.get("/healthz").status_code == 200
    assert client.get("/openapi.json").status_code == 200
