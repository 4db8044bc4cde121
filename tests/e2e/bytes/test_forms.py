"""Inputs in forms (multipart/form-data)."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.e2e.bytes.sent import LARGE, PNG, described, form, output, part, post
from tests.e2e.client import Api
from tests.e2e.stack import Stack


def test_a_form_of_parts(api: Api) -> None:
    picture = part("input", PNG, "image/png")
    rest = {"model": "described", "parameters": {"top": 1}, "timeout_ms": 60_000}
    expected = described(PNG, top=1, content_type="image/png")
    assert output(post(api, *form(picture, part("request", json.dumps(rest).encode(), "application/json")))) == expected
    apart = [part(name, json.dumps(value).encode().strip(b'"')) for name, value in rest.items()]
    assert output(post(api, *form(*apart, picture))) == expected
    assert output(post(api, *form(part("input", PNG)))) == described(PNG, content_type="application/octet-stream")
    assert output(post(api, *form(part("input", b"[1.50]", "application/json"), part("model", b"echo")))) == [1.5]


def test_the_query_of_a_form_is_its_rest_too(api: Api) -> None:
    sent = form(part("input", PNG, "image/png"))
    expected = described(PNG, top=1, content_type="image/png")
    assert output(post(api, *sent, model="thumbnails")) != expected
    assert output(post(api, *sent, model="described", parameters={"top": 1}, timeout_ms=60_000)) == expected
    assert post(api, *sent, model="echo").error == "UNSUPPORTED_MEDIA_TYPE"
    assert "timeout_ms" in post(api, *sent, timeout_ms=0).json["message"]
    both = post(api, *form(part("input", PNG), part("model", b"described")), model="described")
    assert (both.error, both.json["message"]) == ("INVALID_INPUT", "model: it is there twice")


@pytest.mark.parametrize("boundary", ["b", "+++", "--", "a b", "x" * 70])
def test_any_boundary_that_there_may_be(api: Api, boundary: str) -> None:
    answer = post(api, *form(part("input", PNG, "image/png"), boundary=boundary))
    assert output(answer) == described(PNG, content_type="image/png")


def test_what_a_client_library_sends(stack: Stack) -> None:
    sent = httpx.post(
        stack.url + "/v1/inference",
        files={"input": ("cat.png", LARGE, "image/png")},
        data={"parameters": '{"top": 1}'},
        timeout=60,
    )
    assert sent.json()["output"] == described(LARGE, top=1, content_type="image/png")


@pytest.mark.parametrize(
    ("parts", "status", "said"),
    [
        ([], 400, "input"),
        ([part("request", b"{}")], 400, "input"),
        ([part("input", PNG), part("input", PNG)], 400, "input: it is there twice"),
        ([part("input", PNG), part("model", b"echo"), part("request", b'{"model": "echo"}')], 400, "twice"),
        ([part("input", PNG), part("file", PNG)], 400, "'file'"),
        ([part("input", PNG), part("request", b"[]")], 400, "object"),
        ([part("input", PNG), part("request", b'{"model": 1}')], 400, "model"),
        ([part("input", PNG), part("parameters", b'{"a": 1, "a": 2}')], 400, "twice"),
        ([part("input", PNG), part("parameters", b'{}, "model": "echo"')], 400, "parameters"),
        ([part("input", PNG), part("timeout_ms", b"-1")], 400, "timeout_ms"),
        ([part("input", PNG), part("model", b"\xff")], 400, "UTF-8"),
        ([part("input", PNG), part("request", b"x" * 1_100_000)], 413, "request"),
        ([part("input", b"1" * 1_100_000, "application/json"), part("model", b"echo")], 413, "JSON"),
        ([part("input", b"{", "application/json"), part("model", b"echo")], 400, "input"),
        ([part("input", PNG), part("model", b"echo")], 415, "echo takes JSON"),
        ([part("input", PNG, "text/html")], 415, "text/html"),
        ([("form-data; name=input", PNG, "Content-Transfer-Encoding: base64\r\n")], 415, "Transfer-Encoding"),
        ([("attachment; name=input", PNG, "")], 400, "multipart"),
        ([part(f"n{n}", b"") for n in range(100)], 400, "n0"),
        ([part("input", PNG, "a" * 20_000)], 400, "multipart"),
    ],
)
def test_a_form_that_is_wrong(api: Api, parts: list[tuple[str, bytes, str]], status: int, said: str) -> None:
    answer = post(api, *form(*parts))
    assert answer.status == status, answer.body
    assert said in answer.json["message"]
    assert answer.error


def test_a_form_without_a_boundary_or_an_end(api: Api) -> None:
    body, content_type = form(part("input", PNG))
    assert post(api, body, "multipart/form-data").error == "INVALID_HEADER"
    assert post(api, body, content_type.replace("B", "C")).error == "INVALID_INPUT"
    assert post(api, body[:-20], content_type).error == "INVALID_INPUT"


def test_a_form_from_a_page_of_another_site(api: Api) -> None:
    """A browser sends it without asking first."""
    body, content_type = form(part("input", PNG))
    path, about = "/v1/inference", {"Content_Type": content_type, "Origin": "https://evil.example"}
    answer = api.call("POST", path, raw=body, Sec_Fetch_Site="cross-site", **about)
    assert (answer.status, answer.error) == (403, "FORBIDDEN")
