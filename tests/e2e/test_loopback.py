"""With auth off loopback is what lets callers in, and neither a proxy on this machine nor a page that rebinds its own
name to it is on loopback.
"""

from __future__ import annotations

import http.client

import pytest

from tests.e2e.client import Answer, Api

OPENED_BY_LOOPBACK: list[tuple[str, str, object]] = [
    ("POST", "/v1/inference", {"input": 1}),
    ("POST", "/v1/inference/bulk", {"inputs": [1]}),
    ("POST", "/v1/predict", {"input_data": 1}),
    ("POST", "/api/inference", {"input": "1"}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/result/an-id", None),
    ("DELETE", "/v1/result/an-id", None),
    ("GET", "/internal/health", None),
    ("GET", "/internal/scale", None),
    ("GET", "/internal/requests/an-id", None),
    ("GET", "/metrics", None),
    ("GET", "/ops/events", None),
    ("GET", "/ops/explain/an-id", None),
    ("POST", "/ops/actions/pause", {"arguments": {"model": "echo"}}),
]
FROM_ELSEWHERE: list[dict[str, str]] = [
    {"Host": "rebound.example"},
    {"Host": "127.0.0.1.rebound.example:80"},
    {"X_Forwarded_For": "127.0.0.1"},
    {"x_forwarded_proto": "http"},
    {"Forwarded": "for=127.0.0.1;host=localhost"},
    {"Via": "1.1 localhost"},
    {"X_REAL_IP": "::1"},
    {"Host": "localhost", "X_Forwarded_Host": "localhost", "X_Tier": "enterprise"},
]


def ask(api: Api, method: str, path: str, body: object, **headers: str) -> Answer:
    return api.post(path, body, **headers) if method == "POST" else api.call(method, path, raw=None, **headers)


@pytest.mark.parametrize("headers", FROM_ELSEWHERE)
def test_what_loopback_opens_is_shut_to_whoever_is_not_on_it(api: Api, headers: dict[str, str]) -> None:
    for method, path, body in OPENED_BY_LOOPBACK:
        answer = ask(api, method, path, body, **headers)
        code = answer.json["error"]["code"] if path == "/v1/models" else answer.error
        assert (answer.status, code.upper()) == (403, "FORBIDDEN"), path


@pytest.mark.parametrize("headers", [{"Host": "localhost"}, {"Host": "[::1]:8000"}, {"Host": "127.0.0.1"}])
def test_programs_on_this_machine_are_served(api: Api, headers: dict[str, str]) -> None:
    assert api.post("/v1/inference", {"input": 1}, X_Tier="free", **headers).json["metadata"]["tier"] == "free"
    for path in ("/internal/health", "/metrics", "/v1/models"):
        assert api.get(path, **headers).status == 200


@pytest.mark.parametrize("headers", FROM_ELSEWHERE)
def test_what_is_public_stays_so(api: Api, headers: dict[str, str]) -> None:
    for path in ("/healthz", "/readyz", "/openapi.json", "/ops"):
        assert api.get(path, **headers).status == 200


def test_a_connection_is_judged_by_each_of_its_requests(api: Api) -> None:
    """The server remembers a connection's heads, but takes none for a request that differs."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    for number in range(4):
        for headers, expected in (({}, 200), ({"X-Forwarded-For": "192.0.2.1"}, 403), ({"X-Amzn-Trace-Id": "1"}, 200)):
            sent = {"Content-Type": "application/json", **headers}
            connection.request("POST", "/v1/inference", b'{"input": %d}' % number, sent)
            response = connection.getresponse()
            response.read()
            assert response.status == expected
    connection.close()
