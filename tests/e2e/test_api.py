"""The HTTP contract, endpoint by endpoint, over the running stack."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.e2e.client import Api
from tests.e2e.gate import Gate
from tests.waiting import wait_until

METADATA = {
    *("latency_ms", "queue_ms", "compute_ms", "batch_size", "batch_id", "tier", "attempt", "cached", "model_version"),
    *("admission_ms", "batch_wait_ms", "transfer_ms", "reply_ms", "reason"),
}
JSON_VALUES: tuple[object, ...] = (
    *(None, True, 0, -1, 1.5, 1e300, 2**53, 10**300, "", "\u0000\ud7ff\uffff😀", 'a "quoted" \\ text'),
    *([], {}, [[]], {"": {}}, {"input": "input"}, [1, "two", None, {"three": [3.0]}], "é" * 30_000),
)


def test_an_input_comes_back_with_all_that_is_known_of_it(api: Api) -> None:
    answer = api.infer("hello", parameters={"any": ["thing"]}, client_id="me")

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json.keys() == {"request_id", "task_id", "model", "output", "latency_ms", "metadata"}
    assert (answer.json["model"], answer.json["output"]) == ("echo", "hello")
    assert answer.json["request_id"] == answer.headers["x-request-id"]
    metadata = answer.json["metadata"]
    assert metadata.keys() == METADATA
    assert 0 <= metadata["compute_ms"] <= metadata["latency_ms"]
    assert 0 <= metadata["queue_ms"] <= metadata["latency_ms"]
    assert (metadata["tier"], metadata["attempt"], metadata["cached"]) == ("paid", 1, False)
    assert (metadata["batch_size"], metadata["model_version"]) == (1, "1")


def test_every_json_value_comes_back_as_it_was(api: Api) -> None:
    for value, answer in zip(JSON_VALUES, api.all(JSON_VALUES), strict=True):
        assert answer.status == 200, answer
        assert answer.json["output"] == value
        assert type(answer.json["output"]) is type(value)


def test_the_short_endpoints(api: Api) -> None:
    predicted = api.post("/v1/predict", {"model_id": "shout", "input_data": "hello"})
    simple = api.post("/api/inference", {"input": "hello"})

    assert (predicted.status, simple.status) == (200, 200)
    assert predicted.json.keys() == simple.json.keys() == {"request_id", "output", "latency_ms"}
    assert (predicted.json["output"], simple.json["output"]) == ("HELLO", "hello")


def test_the_tier_can_be_named_on_loopback(api: Api) -> None:
    for tier in ("enterprise", "paid", "free"):
        answer = api.post("/v1/inference", {"input": 1}, X_Tier=tier)
        assert answer.json["metadata"]["tier"] == tier
    refused = api.post("/v1/inference", {"input": 1}, X_Tier="gold")
    assert (refused.status, refused.error) == (400, "INVALID_HEADER")
    assert "X-Tier" in refused.json["message"]


def test_a_valid_request_id_is_kept_and_another_replaced(api: Api) -> None:
    for path, body in (("/v1/inference", {"input": 1}), ("/v1/inference", {}), ("/v1/inference/bulk", {"inputs": [1]})):
        answer = api.post(path, body, X_Request_Id="Mine-1.2_3")
        assert answer.headers["x-request-id"] == answer.json["request_id"] == "Mine-1.2_3"
    for path in ("/healthz", "/readyz", "/internal/health", "/metrics", "/openapi.json", "/nothing/here"):
        assert api.get(path, X_Request_Id="mine").headers["x-request-id"] == "mine"
    for bad in ("a" * 129, "two words", 'quo"te', "ü"):
        assert api.get("/healthz", X_Request_Id=bad).headers["x-request-id"] not in {bad, ""}
    assert api.call("OPTIONS", "/v1/inference", X_Request_Id="mine").headers["x-request-id"] == "mine"


def test_health_and_readiness(well: Api) -> None:
    alive = well.get("/healthz").json
    assert (alive["status"], alive["waiting"]) == ("alive", 0)
    ready = well.get("/readyz")
    assert (ready.status, ready.json["status"]) == (200, "ready")
    health = well.get("/internal/health")
    assert health.status == 200
    assert health.json["status"] == "healthy"
    assert health.json["redis"] == "up"
    assert (health.json["workers"], health.json["healthy_workers"]) == (2, 2)
    assert 0 <= health.json["executor_utilization"] <= 1
    assert health.json["gpu_utilization"] is None
    assert health.json["queue_depth"] == 0
    assert health.json["requests_per_second"] >= 0


def test_health_shows_what_waits_and_how_busy_the_executors_are(api: Api, gate: Gate) -> None:
    gate.occupy()
    waiting = [api.soon(n, "moody") for n in range(3)]
    wait_until(lambda: api.get("/internal/health").json["queue_depth"] == 3, what="what waits is counted")
    gate.open()
    assert [each.result().status for each in waiting] == [200] * 3

    def busy() -> bool:
        api.all(range(8), "simulated")
        return bool(api.get("/internal/health").json["executor_utilization"] > 0)

    wait_until(busy, what="the work of the executors is shown")


def test_bulk_answers_in_order_each_with_its_own_outcome(api: Api) -> None:
    inputs = [{"n": n} if n % 5 else {"reject": f"no {n}"} for n in range(200)]
    answer = api.post("/v1/inference/bulk", {"inputs": inputs, "model": "moody"})

    assert answer.status == 200
    results = answer.json["results"]
    assert len(results) == 200
    for n, (given, result) in enumerate(zip(inputs, results, strict=True)):
        if n % 5:
            assert result["output"]["echo"] == given
        else:
            assert (result["error"], result["message"]) == ("INPUT_REJECTED", f"no {n}")
    assert len({result["task_id"] for result in results}) == 200
    # A task of its own for each, batched with the others.
    assert max(result["output"]["batch"] for result in results if "output" in result) > 8


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/inference/bulk", {"inputs": []}),
        ("/v1/inference/bulk", {"inputs": [1] * 1001}),
        ("/v1/inference/bulk", {"inputs": "abc"}),
        ("/v1/inference/bulk", {"inputs": [1], "callback_url": "https://example.org/done"}),
        ("/v1/inference", {"inputs": [1]}),
        ("/v1/inference", {"input": 1, "timeout_ms": -1}),
        ("/v1/inference", {"input": 1, "timeout_ms": "100"}),
        ("/v1/inference", {"input": 1, "parameters": [1]}),
        ("/v1/inference", {"input": 1, "client_id": 7}),
        ("/v1/predict", {"model_id": "echo"}),
        ("/v1/predict", {"model_id": 1, "input_data": 1}),
        ("/api/inference", {"input": None}),
        ("/api/inference", {"input": 5}),
        ("/api/inference", []),
        ("/api/inference", None),
    ],
)
def test_a_body_of_the_wrong_form_is_refused(api: Api, path: str, body: object) -> None:
    answer = api.post(path, body)
    assert (answer.status, answer.error) == (400, "INVALID_INPUT")


def test_the_message_names_the_field(api: Api) -> None:
    for body, field in (
        ({}, "input"),
        ({"input": 1, "timeout_ms": []}, "timeout_ms"),
        ({"input": 1, "model": 2}, "model"),
    ):
        assert field in api.post("/v1/inference", body).json["message"]


@pytest.mark.parametrize("header", ["-1", "soon", "", "1e", "NaN", "Infinity", "0x10", "٣", "1 2", "1_0", "."])
def test_a_timeout_header_must_be_a_number(api: Api, header: str) -> None:
    answer = api.post("/v1/inference", {"input": 1}, X_Timeout_Ms=header.encode().decode("latin-1"))
    assert (answer.status, answer.error) == (400, "INVALID_HEADER")
    assert "X-Timeout-Ms" in answer.json["message"]
    both = api.post("/v1/inference", {"input": 1, "timeout_ms": 50}, X_Timeout_Ms=header.encode().decode("latin-1"))
    assert both.status == 400


@pytest.mark.parametrize("value", ["-1", "soon", "", "1e", "NaN", "inf", "%2B1", "5;6"])
def test_wait_ms_must_be_a_number(api: Api, value: str) -> None:
    answer = api.get(f"/v1/result/{uuid.uuid4()}?wait_ms={value}")
    assert (answer.status, answer.error) == (400, "INVALID_INPUT")
    assert "wait_ms" in answer.json["message"]


def test_a_timeout_beyond_all_numbers_is_the_servers_own(api: Api) -> None:
    raw = b'{"input":1,"timeout_ms":' + b"9" * 400 + b"}"
    assert api.call("POST", "/v1/inference", raw=raw).status == 200
    assert api.post("/v1/inference", {"input": 1}, X_Timeout_Ms="9" * 400).status == 200


def test_whoever_gives_no_time_is_told_so(api: Api) -> None:
    for prefer in ({}, {"Prefer": "respond-async"}):
        answer = api.post("/v1/inference", {"input": 1, "timeout_ms": 0}, **prefer)
        assert (answer.status, answer.error) == (400, "INVALID_INPUT")
    for path, body in (("/v1/inference/bulk", {"inputs": [1]}), ("/v1/predict", {"input_data": 1})):
        answer = api.post(path, body, X_Timeout_Ms="0")
        assert (answer.status, answer.error) == (400, "INVALID_HEADER")


def test_an_unknown_model_is_not_found_and_the_known_are_named(api: Api) -> None:
    for path, body in (
        ("/v1/inference", {"input": 1, "model": "nobody"}),
        ("/v1/inference", {"input": 1, "model": ""}),
        ("/v1/inference/bulk", {"inputs": [1], "model": "nobody"}),
        ("/v1/predict", {"model_id": "nobody", "input_data": 1}),
    ):
        answer = api.post(path, body)
        assert (answer.status, answer.error) == (404, "UNKNOWN_MODEL")
        assert "echo" in answer.json["message"]


def test_a_function_takes_strings_only(api: Api) -> None:
    for value in (None, 5, ["a"], {"a": "b"}, True):
        answer = api.infer(value, "shout")
        assert (answer.status, answer.error) == (400, "INVALID_INPUT")
    assert api.infer("straße", "shout").json["output"] == "STRASSE"


@pytest.mark.parametrize("path", ["/v1/inference", "/v1/inference/bulk", "/v1/predict", "/api/inference"])
def test_only_json_is_read(api: Api, path: str) -> None:
    body = json.dumps({"input": "1", "inputs": ["1"], "input_data": "1"}).encode()
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "application/json-patch+json", ""):
        answer = api.call("POST", path, raw=body, Content_Type=media_type)
        assert (answer.status, answer.error) == (415, "UNSUPPORTED_MEDIA_TYPE")
    for media_type in ("application/json; charset=utf-8", "Application/JSON"):
        assert api.call("POST", path, raw=body, Content_Type=media_type).status == 200


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/inference", {"POST", "OPTIONS"}),
        ("/v1/inference/bulk", {"POST", "OPTIONS"}),
        ("/v1/predict", {"POST", "OPTIONS"}),
        ("/api/inference", {"POST", "OPTIONS"}),
        ("/v1/result/x", {"GET", "HEAD", "DELETE", "OPTIONS"}),
        ("/internal/requests/x", {"GET", "HEAD", "OPTIONS"}),
        ("/healthz", {"GET", "HEAD", "OPTIONS"}),
        ("/readyz", {"GET", "HEAD", "OPTIONS"}),
        ("/metrics", {"GET", "HEAD", "OPTIONS"}),
        ("/internal/health", {"GET", "HEAD", "OPTIONS"}),
        ("/openapi.json", {"GET", "HEAD", "OPTIONS"}),
    ],
)
def test_a_method_that_a_path_does_not_have(api: Api, path: str, allowed: set[str]) -> None:
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "QUERY"} - allowed:
        answer = api.call(method, path)
        assert (answer.status, answer.error) == (405, "METHOD_NOT_ALLOWED")
        assert set(answer.headers["allow"].split(", ")) == allowed
    options = api.call("OPTIONS", path)
    assert options.status == 200
    assert set(options.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/inference/",
        "//v1/inference",
        "/v1//inference",
        "//healthz",
        "/v1/result/",
        "/healthz/",
        "/%00",
        "/ü",
    ],
)
def test_a_path_that_is_not_there(api: Api, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = api.call(method, path.replace("ü", "%FC"))
        assert (answer.status, answer.error) == (404, "NOT_FOUND")


def test_head_says_what_get_would_without_saying_it(api: Api) -> None:
    for path in ("/healthz", "/readyz", "/openapi.json", "/nothing"):
        get, head = api.get(path), api.call("HEAD", path)
        assert head.status == get.status
        assert head.body == b""
        assert head.headers["content-length"] == get.headers["content-length"]
        assert head.headers["content-type"] == get.headers["content-type"]
    assert api.call("HEAD", "/v1/inference").status == 405


def test_an_id_that_was_never_issued(api: Api) -> None:
    for method, path in (
        ("GET", "/v1/result/"),
        ("DELETE", "/v1/result/"),
        ("GET", "/internal/requests/"),
    ):
        for unknown in (str(uuid.uuid4()), "x", "%00%ff", "a" * 4000):
            answer = api.call(method, path + unknown)
            assert (answer.status, answer.error) == (404, "UNKNOWN_TASK")


def test_no_answer_is_guessed_at_and_none_of_json_is_kept(api: Api) -> None:
    for answer in (
        *(api.get(path) for path in ("/", "/healthz", "/readyz", "/v1/models", "/nothing", "/v1/result/none")),
        *(api.infer(1), api.infer(1, "nobody"), api.get("/openapi.json"), api.get("/internal/health")),
        api.post("/v1/inference/bulk", {"inputs": [1]}),
        api.call("PUT", "/v1/inference"),
        # Refused by the server itself, before any application.
        api.get("/", Expect="the-unexpected"),
        api.post("/v1/inference", {"input": "x" * 2_000_000}),
    ):
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
    for path in ("/metrics", "/ops", "/ops/static/page.js"):
        assert api.get(path).headers["x-content-type-options"] == "nosniff"


def test_whoever_finds_the_port_is_told_what_it_is(api: Api) -> None:
    answer = api.get("/")
    assert (answer.status, answer.json["name"]) == (200, "Bunch")
    for name, path in answer.json["links"].items():
        found = api.get(path)
        # A link to what takes POST is a link all the same.
        assert found.status == (405 if name in {"inference", "embeddings", "rerank"} else 200), path


def test_no_page_of_another_site_may_call(api: Api) -> None:
    for path in ("/v1/inference", "/", "/metrics"):
        preflight = {"Origin": "https://app.example", "Access_Control_Request_Method": "POST"}
        answer = api.call("OPTIONS", path, **preflight)
        assert (answer.status, answer.body) == (200, b"")
        assert "OPTIONS" in answer.headers["allow"]
        assert not [name for name in answer.headers if name.startswith("access-control")]
