"""The pages of other sites that may call, and what a browser is told of it."""

from __future__ import annotations

from typing import Any

import pytest
from werkzeug.test import TestResponse

from config.errors import SettingsError
from config.settings import Settings, load_settings
from webapp.app import create_app, make_services

HERE, ELSEWHERE = "https://app.example", "https://else.example"


def ask(method: str, path: str, origin: str | None, origins: str = HERE, **headers: str) -> TestResponse:
    """The answers of a frontend whose Redis is away: none of this asks for it."""
    settings = Settings(auth="keys", cors_origins=origins, redis_url="redis://127.0.0.1:1/0")
    sent: dict[str, Any] = {**headers, **({"Origin": origin} if origin else {})}
    return create_app(make_services(settings)).test_client().open(path, method=method, headers=sent)


def test_a_page_that_is_named_is_told_what_it_may_send() -> None:
    answer = ask("OPTIONS", "/v1/inference", HERE, **{"Access-Control-Request-Method": "POST"})
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == HERE
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert {"Authorization", "Content-Type", "Idempotency-Key", "X-Timeout-Ms"} <= {
        *answer.headers["Access-Control-Allow-Headers"].split(", ")
    }
    assert answer.headers["Vary"] == "Origin"
    # A credential is what it sends by itself: no cookie of anybody's goes along.
    assert "Access-Control-Allow-Credentials" not in answer.headers


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/inference"), ("GET", "/v1/result/x"), ("GET", "/nothing")])
def test_it_can_read_answers_and_refusals(method: str, path: str) -> None:
    answer = ask(method, path, HERE)
    assert answer.status_code in {401, 404}
    assert answer.headers["Access-Control-Allow-Origin"] == HERE
    assert {"Retry-After", "Location", "X-Request-Id"} <= {*answer.headers["Access-Control-Expose-Headers"].split(", ")}


def test_openai_s_client_for_browsers_may_send_what_it_sends() -> None:
    answer = ask("OPTIONS", "/v1/embeddings", HERE)
    allowed = answer.headers["Access-Control-Allow-Headers"].lower().split(", ")
    # As the package for JavaScript and the one for Python name them.
    parts = ("arch", "lang", "os", "package-version", "retry-count", "runtime", "runtime-version", "timeout")
    assert {"openai-organization", "openai-project", *(f"x-stainless-{each}" for each in parts)} <= {*allowed}
    read = answer.headers["Access-Control-Expose-Headers"].split(", ")
    assert {"retry-after-ms", "x-should-retry"} <= {*read}


def test_binary_tensors_go_both_ways() -> None:
    answer = ask("OPTIONS", "/v2/models/minilm/infer", HERE)
    for field in ("Access-Control-Allow-Headers", "Access-Control-Expose-Headers"):
        assert "Inference-Header-Content-Length" in answer.headers[field].split(", ")


@pytest.mark.parametrize("origin", [ELSEWHERE, "https://app.example.else.example", "null", "http://app.example", None])
@pytest.mark.parametrize("method", ["OPTIONS", "POST"])
def test_others_are_told_nothing(method: str, origin: str | None) -> None:
    answer = ask(method, "/v1/inference", origin)
    assert not [name for name in dict(answer.headers) if name.startswith("Access-Control")]
    assert answer.headers["Vary"] == "Origin"


@pytest.mark.parametrize("path", ["/metrics", "/internal/health", "/internal/requests/x", "/ops", "/ops/actions/pause"])
def test_what_is_the_operators_is_for_no_other_page(path: str) -> None:
    for origins in (HERE, "*"):
        answer = ask("OPTIONS", path, HERE, origins)
        assert not [name for name in dict(answer.headers) if name.startswith("Access-Control")]


def test_with_a_star_any_page_may() -> None:
    assert ask("POST", "/v1/inference", ELSEWHERE, "*").headers["Access-Control-Allow-Origin"] == ELSEWHERE
    # The way without the fast lane's table, and the one with it.
    assert ask("GET", "/healthz", ELSEWHERE, "*").headers["Access-Control-Allow-Origin"] == ELSEWHERE


@pytest.mark.parametrize(
    ("origins", "auth", "says"),
    [
        ("app.example", "keys", "without paths"),
        ("https://app.example/", "keys", "without paths"),
        ("https://*.example", "keys", "without paths"),
        ("*", "off", "name the origins"),
    ],
)
def test_what_is_no_origin_stops_the_start(origins: str, auth: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load_settings({"BUNCH_CORS_ORIGINS": origins, "BUNCH_AUTH": auth})
