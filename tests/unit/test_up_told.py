"""The request that `up` shows to try: one that this configuration accepts."""

from __future__ import annotations

import shlex

import pytest

from cli.run.up import curl_line
from config.settings import ModelSettings, Settings

URL = "http://127.0.0.1:8000"


def told(url: str = URL, input_type: str = "json", **changed: str) -> list[str]:
    models = {"m": ModelSettings(name="m", source="a:B", input_type=input_type)}
    return shlex.split(curl_line(url, Settings(models=models, default_model="m", **changed)))


@pytest.mark.parametrize(
    ("auth", "credential"),
    [
        ("off", []),
        ("keys", ["-H", "Authorization: Bearer $KEY"]),
        ("keys,mtls", ["-H", "Authorization: Bearer $KEY"]),
        ("mtls", ["--cert", "client.pem", "--key", "client.key"]),
    ],
)
def test_the_request_has_a_credential_that_is_accepted(auth: str, credential: list[str]) -> None:
    rest = ["-H", "Content-Type: application/json", "-d", '{"model": "m", "input": "A bunch of celery"}']
    assert told(auth=auth) == ["curl", f"{URL}/v1/inference", *credential, *rest]
    assert told("https://127.0.0.1:8000", auth=auth)[:2] == ["curl", "-k"]


@pytest.mark.parametrize("input_type", ["bytes", "npy", "arrow"])
def test_bytes_are_sent_to_a_model_of_bytes(input_type: str) -> None:
    words = told(input_type=input_type)
    assert words[-1] == f"{URL}/v1/inference?model=m"
    assert words[words.index("--data-binary") + 1] == "@FILE"
    assert "Content-Type: application/octet-stream" in words
