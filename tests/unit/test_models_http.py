"""The fixed API as a model, over httpx's own in-memory transport."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from workers.models.http import ApiError, HttpModel

Handler = Callable[[httpx.Request], httpx.Response]


def model(handler: Handler, **options: object) -> HttpModel:
    made = HttpModel("http://api.example/predict", transport=httpx.MockTransport(handler), **options)  # type: ignore[arg-type]
    made.load("cpu")
    return made


def test_one_post_a_batch_with_inputs_and_parameters() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"outputs": ["A", {"b": None}], "model": "extra fields are fine"})

    outputs = model(handler, headers={"Authorization": "Bearer s3cret"}).predict(["a", 2], [{"k": 1}, {}])
    assert outputs == ["A", {"b": None}]
    (request,) = seen
    assert request.method == "POST"
    assert str(request.url) == "http://api.example/predict"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Bearer s3cret"
    assert json.loads(request.content) == {"inputs": ["a", 2], "parameters": [{"k": 1}, {}]}


@pytest.mark.parametrize("status", [302, 400, 404, 422, 429, 500, 503])
def test_any_status_but_success_is_the_batchs_error(status: int) -> None:
    failing = model(lambda request: httpx.Response(status, text="what the API says " + "x" * 10_000))
    with pytest.raises(ApiError, match=f"answered {status}: what the API says") as raised:
        failing.predict(["a"], [{}])
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"outputs": 3}', b'{"results": []}', b'{"outputs": [NaN]}'])
def test_another_body_is_the_batchs_error(body: bytes) -> None:
    with pytest.raises(ApiError, match="must answer"):
        model(lambda request: httpx.Response(200, content=body)).predict(["a"], [{}])


def test_a_slow_or_absent_api_is_the_batchs_error() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("timed out")

    with pytest.raises(ApiError, match="ReadTimeout"):
        model(handler).predict(["a"], [{}])


def test_it_gives_up_before_the_executor_would_be_killed() -> None:
    limits: list[float] = []

    def handler(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, json={"outputs": [1]})

    model(handler, timeout_ms=2000).predict(["a"], [{}])
    assert limits[0] < 2.0
