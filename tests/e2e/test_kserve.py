"""The Open Inference Protocol: tensors over HTTP, from a client that keeps none of its rules unless it wants to."""

from __future__ import annotations

import gzip
import json
import random
import struct
import zlib
from typing import Any

import pytest
from redis import Redis

from config.keys import Shard
from config.tiers import Tier
from tests.e2e.client import Answer, Api
from tests.waiting import wait_until

INFER = "/v2/models/echo/infer"
TENSORS = "/v2/models/tensors/infer"
LIMIT = 1_048_576


def text_body(*texts: str, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "input", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}], **more}


def binary_body(document: object, *raw: bytes) -> tuple[bytes, dict[str, str]]:
    """A body with tensors behind its JSON, and the headers that Triton's clients send: no media type."""
    head = json.dumps(document).encode()
    return b"".join([head, *raw]), {"Inference_Header_Content_Length": str(len(head))}


def post(api: Api, path: str, raw: bytes, **headers: str) -> Answer:
    return api.call("POST", path, raw=raw, **{"Content_Type": "application/octet-stream", **headers})


def error(answer: Answer) -> str:
    assert answer.json.keys() == {"error"}, answer.json
    return str(answer.json["error"])


def test_rows_are_requests_of_their_own_and_share_batches(api: Api) -> None:
    texts = [f"row {number}" for number in range(32)]
    answer = api.post(INFER, text_body(*texts, id="mine"))
    (output,) = answer.json["outputs"]
    assert (answer.status, answer.json["model_name"], answer.json["id"]) == (200, "echo", "mine")
    assert output == {"name": "output", "datatype": "BYTES", "shape": [32], "data": texts}

    def counted() -> bool:
        (stats,) = api.get("/v2/models/echo/stats").json["model_stats"]
        infer = stats["inference_stats"]["compute_infer"]
        return stats["inference_count"] >= 32 and min(infer["count"], infer["ns"], stats["execution_count"]) > 0

    wait_until(counted, what="the statistics have the rows")
    (stats,) = api.get("/v2/models/echo/stats").json["model_stats"]
    assert sum(each["compute_infer"]["count"] for each in stats["batch_stats"]) == stats["execution_count"]


def test_binary_tensors_of_several_inputs_go_in_and_come_out(api: Api) -> None:
    raw = {"a": struct.pack("<4f", 1, 2.5, -3, 4), "b": b"\1\0\0\0x\0\0\0\0"}
    described = [("a", "FP32", [2, 2]), ("b", "BYTES", [2])]
    document = {
        "inputs": [
            {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(raw[name])}}
            for name, datatype, shape in described
        ],
        "outputs": [{"name": "b", "parameters": {"binary_data": False}}, {"name": "a"}],
        "parameters": {"binary_data_output": True},
    }
    body, headers = binary_body(document, raw["a"], raw["b"])
    for coding, code in (("", bytes), ("gzip", gzip.compress), ("deflate", zlib.compress)):
        encoded = {"Content_Encoding": coding} if coding else {}
        answer = post(api, TENSORS, code(body), **headers, **encoded)
        assert answer.status == 200, answer.body
        length = int(answer.headers["inference-header-content-length"])
        assert answer.headers["content-type"] == "application/octet-stream"
        text, numbers = json.loads(answer.body[:length])["outputs"]
        assert text == {"name": "b", "datatype": "BYTES", "shape": [2], "data": ["x", ""]}
        assert (numbers["shape"], numbers["parameters"]) == ([2, 2], {"binary_data_size": 16})
        assert answer.body[length:] == raw["a"]


def test_a_long_answer_is_compressed_for_whom_can_read_it(api: Api) -> None:
    texts = ["one text and the same again"] * 100
    answer = api.post(INFER, text_body(*texts), Accept_Encoding="br, gzip;q=0.5")
    assert answer.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.body))["outputs"][0]["data"] == texts
    assert "content-encoding" not in api.post(INFER, text_body(*texts)).headers
    assert "content-encoding" not in api.post(INFER, text_body("short"), Accept_Encoding="gzip").headers


BYTES_ROW = {"name": "input", "datatype": "BYTES", "shape": [1]}
BOMB = gzip.compress(json.dumps(text_body("x" * (16 * LIMIT))).encode())


@pytest.mark.parametrize(
    ("document", "raw", "headers", "status", "says"),
    [
        (text_body(), b"", {"Inference_Header_Content_Length": "99999"}, 400, "the body has only"),
        (text_body(), b"", {"Inference_Header_Content_Length": "x"}, 400, "must be a number of bytes"),
        ({"inputs": [{**BYTES_ROW, "parameters": {"binary_data_size": 9}}]}, b"\5\0\0\0a", {}, 400, "only 5 bytes"),
        ({"inputs": [{**BYTES_ROW, "parameters": {"binary_data_size": 5}}]}, b"\xff" * 5, {}, 400, "said to have"),
        ({"inputs": [{**BYTES_ROW, "parameters": {"binary_data_size": 5}}]}, b"\1\0\0\0\xff", {}, 400, "not UTF-8"),
        ({"inputs": [{**BYTES_ROW, "shape": [2**62], "data": []}]}, b"", {}, 400, "at most 1000"),
        ({"inputs": [{**BYTES_ROW, "shape": [2**64], "data": []}]}, b"", {}, 400, "<= 9223372036854775807"),
        ({"inputs": [{**BYTES_ROW, "shape": [-1], "data": ["a"]}]}, b"", {}, 400, "shape"),
        ({"inputs": []}, b"", {}, 400, "input: is missing"),
        ({}, b"", {}, 400, "inputs"),
        ({**text_body("a"), "parameters": {"timeout": -1}}, b"", {}, 400, "microseconds"),
        ({**text_body("a"), "parameters": {"sequence_id": 3}}, b"", {}, 400, "sequences are not offered"),
        (text_body("a"), b"", {"Content_Type": "text/plain"}, 415, "Content-Type"),
        (text_body("a"), b"", {"Content_Encoding": "br"}, 415, "use gzip or deflate"),
        (text_body("a"), b"", {"Content_Encoding": "gzip"}, 400, "is not gzip"),
    ],
)
def test_rubbish_is_told_apart_in_the_protocols_form_and_queues_nothing(
    api: Api, store: Redis, document: object, raw: bytes, headers: dict[str, str], status: int, says: str
) -> None:
    body, length = binary_body(document, raw)
    answer = post(api, INFER, body, **{**length, **headers})
    assert (answer.status, says in error(answer)) == (status, True), answer.body
    assert not store.exists(*(Shard().queue("echo", tier) for tier in Tier))


def test_bombs_and_torn_bodies_are_refused(api: Api) -> None:
    assert len(BOMB) < 100_000
    answer = post(api, INFER, BOMB, Content_Encoding="gzip")
    assert (answer.status, "when decompressed" in error(answer)) == (413, True)
    whole = gzip.compress(json.dumps(text_body("a")).encode())
    for torn, says in ((whole[:-4], "cut short"), (whole + b"x", "goes on after its end")):
        answer = post(api, INFER, torn, Content_Encoding="gzip")
        assert (answer.status, says in error(answer)) == (400, True)
    doubled = b'{"inputs": [{"name": "input", "datatype": "BYTES", "shape": [1], "shape": [1], "data": ["a"]}]}'
    assert "'shape' twice" in error(post(api, INFER, doubled))


def test_one_row_that_is_refused_fails_the_call_with_its_error(api: Api) -> None:
    texts = [json.dumps({"reject": "no"}), "fine"]
    answer = api.post("/v2/models/shout/infer", text_body("a", "b"))
    assert answer.json["outputs"][0]["data"] == ["A", "B"]
    wrong = api.post(TENSORS, text_body(*texts))
    assert (wrong.status, "there is no input 'input'" in error(wrong)) == (400, True)


def test_a_deadline_in_microseconds_is_kept(api: Api) -> None:
    answer = api.post("/v2/models/slow/infer", text_body("a", parameters={"timeout": 1000, "priority": 3}))
    assert (answer.status, "deadline" in error(answer)) == (504, True)


def test_the_server_and_its_models_describe_themselves(api: Api) -> None:
    assert api.get("/v2").json["extensions"]
    assert api.get("/v2/health/live").json == {"live": True}
    assert api.get("/v2/health/ready").json == {"ready": True}
    assert "tensors" in api.get("/v2/models").json["models"]
    for path in ("/v2/models/tensors", "/v2/models/tensors/versions/1"):
        described = api.get(path).json
        assert described["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, 2]}
        assert api.get(f"{path}/ready").json == {"name": "tensors", "ready": True}
        assert api.get(f"{path}/config").json["input"][1]["reshape"] == {"shape": []}
    for path in ("/v2/models/nothing", "/v2/models/tensors/versions/7", "/v2/models/nothing/ready", "/v2/elsewhere"):
        answer = api.get(path)
        assert (answer.status, bool(error(answer))) == (404, True)
    assert error(api.get(INFER)).startswith("GET is not allowed")


def test_the_repository_is_listed_and_not_changed(api: Api) -> None:
    # As Triton's clients send it: no body, no media type.
    index = {each["name"]: each["state"] for each in api.call("POST", "/v2/repository/index").json}
    assert index["tensors"] == "READY"
    assert len(api.post("/v2/repository/index", {"ready": True}).json) == len(index)
    assert api.call("POST", "/v2/repository/models/echo/load").status == 200
    refused = api.call("POST", "/v2/repository/models/echo/unload")
    assert (refused.status, "manage.py pause echo" in error(refused)) == (400, True)
    assert api.call("POST", "/v2/repository/models/nothing/load").status == 404


def test_whatever_becomes_of_a_body_on_its_way_it_is_answered_in_the_protocols_form(api: Api) -> None:
    chance = random.Random(7)
    whole, length = binary_body({"inputs": [{**BYTES_ROW, "parameters": {"binary_data_size": 9}}]}, b"\5\0\0\0hello")
    assert post(api, INFER, whole, **length).status == 200
    for _ in range(100):
        torn = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            torn[chance.randrange(len(torn))] = chance.randrange(256)
        answer = post(api, INFER, bytes(torn[: chance.choice([len(torn), chance.randrange(len(torn))])]), **length)
        assert answer.status == 200 or (answer.status == 400 and error(answer)), (torn, answer.body)
