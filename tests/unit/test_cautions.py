"""`check` warns of settings that work and are dangerous."""

from __future__ import annotations

import secrets

import pytest

from config.checks.cautions import cautions, is_weak
from config.settings import ModelSettings, Settings

API = "http://models.example/predict"


def of_model(source: str = API, **options: object) -> list[str]:
    return [
        str(each) for each in cautions(Settings(models={"m": ModelSettings(name="m", source=source, options=options)}))
    ]


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (API, {"headers": {"Authorization": "Bearer hunter2"}}),
        (API, {"headers": {"x-api-key": "hunter2"}}),
        (API, {"headers": {"Cookie": "hunter2"}}),
        ("http://user:hunter2@models.example/", {}),
        ("http://models.example/?access_token=hunter2", {}),
        ("workers.models.http:HttpModel", {"url": API, "headers": {"X-Auth-Token": "hunter2"}}),
    ],
)
def test_a_credential_in_the_clear(source: str, options: dict[str, object]) -> None:
    (line,) = of_model(source, **options)
    assert "[models.m]" in line
    assert "https://" in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (API, {"headers": {"Accept-Language": "en"}}),
        ("https://models.example/", {"headers": {"Authorization": "Bearer hunter2"}}),
        ("http://127.0.0.1:9000/", {"headers": {"Authorization": "Bearer hunter2"}}),
        ("http://localhost/", {"headers": {"Authorization": "Bearer hunter2"}}),
        ("workers.models.echo:Echo", {"headers": {"Authorization": "hunter2"}, "verify": False}),
    ],
)
def test_what_is_no_credential_or_goes_nowhere(source: str, options: dict[str, object]) -> None:
    assert of_model(source, **options) == []


def test_any_certificate_being_taken() -> None:
    (line,) = of_model("https://models.example/", verify=False)
    assert "verify" in line
    assert of_model("https://models.example/", verify=True) == []


@pytest.mark.parametrize("weak", ["a" * 40, "1234567812345678", "abcabcabcabcabcabcabc", "Secret-0f9e8d7c6b5a49382716"])
def test_a_token_that_can_be_guessed(weak: str) -> None:
    assert is_weak(weak)
    lines = [str(each) for each in cautions(Settings(service_token=f"ann:{secrets.token_hex(16)},ben:{weak}"))]
    assert len(lines) == 1
    assert "ben" in lines[0]
    assert weak not in lines[0]
    assert [each.key for each in cautions(Settings(auth="jwt", jwt_secret=weak))] == ["BUNCH_JWT_SECRET"]


def test_random_tokens_are_strong() -> None:
    assert not any(is_weak(make(size)) for size in (16, 32) for make in (secrets.token_hex, secrets.token_urlsafe))
