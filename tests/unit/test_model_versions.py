"""Names that callers use, and the models that answer: what needs no Redis."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest

from config.settings import ModelSettings, Settings
from config.tiers import Tier
from tasks.protocol.caller import Caller
from webapp.errors import ApiError
from webapp.model_versions import ModelVersions
from webapp.request import HttpRequest


def served(*names: str, **weights: float) -> Settings:
    models = {
        name: ModelSettings(
            name=name, source="a:B", version=name.partition("@")[2] or "1", weight=weights.get(name[-1], 0.0)
        )
        for name in names
    }
    return Settings(models=models, default_model=names[0])


class NoRedis:
    """Whatever is asked of it is a defect."""

    def register_script(self, text: str) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked of Redis")


def versions_of(settings: Settings) -> ModelVersions:
    return ModelVersions(settings, NoRedis())  # type: ignore[arg-type]


def a_call() -> HttpRequest:
    call = HttpRequest({"REQUEST_METHOD": "POST", "PATH_INFO": "/", "wsgi.input": BytesIO()})
    call.caller = Caller("key", "owner", Tier.PAID)
    return call


def test_a_model_without_versions_is_one_look_in_a_dict_and_has_nothing_to_do_every_second() -> None:
    versions = versions_of(served("m", "n"))
    call = a_call()
    assert [versions.route(asked, call) for asked in (None, "m", "n", "n@1")] == ["m", "m", "n", "n"]
    assert call.asked_model == ""
    assert versions.chores == []
    assert versions.families == versions.full == {}
    versions.start()


def test_versions_without_weight_are_asked_by_name_and_divide_nobody() -> None:
    versions = versions_of(served("m", "m@2", "m@3"))
    call = a_call()
    assert [versions.route(asked, call) for asked in (None, "m", "m@2", "m@3")] == ["m", "m", "m@2", "m@3"]
    assert call.asked_model == ""
    # Not the same request as one for `m` that has the same Idempotency-Key: that may be answered by another version.
    assert (versions.route("m@1", call), call.asked_model) == ("m", "m@1")
    assert versions.full == {"m": "m@1", "m@2": "m@2", "m@3": "m@3"}
    assert versions.families == {"m@2": "m", "m@3": "m"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("m@7", "there is no version '7' of m; its versions are 1, 2"),
        ("n@7", "there is no version '7' of n; its version is 1"),
        ("m@", "there is no version '' of m; its versions are 1, 2"),
        ("x", "there is no model 'x'; the models are m, n"),
        ("x@1", "there is no model 'x@1'; the models are m, n"),
        ("m@2@2", "there is no version '2@2' of m; its versions are 1, 2"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(asked: str, says: str) -> None:
    versions = versions_of(served("m", "m@2", "n"))
    for ask in (lambda: versions.route(asked, a_call()), lambda: versions.answering(asked)):
        with pytest.raises(ApiError) as refused:
            ask()
        assert (refused.value.code, refused.value.message) == ("UNKNOWN_MODEL", says)


def test_a_plain_name_is_ready_by_the_versions_that_answer_it() -> None:
    versions = versions_of(served("m", "m@2", "m@3", **{"2": 100.0}))
    assert versions.answering("m") == ("m@2",)
    assert versions.answering("m@1") == ("m",)
    assert versions_of(served("m", "m@2", "m@3", **{"3": 1.0})).answering("m") == ("m", "m@3")


def test_a_version_may_be_the_default_model() -> None:
    versions = versions_of(served("m@2", "m"))
    assert versions.route(None, a_call()) == "m@2"
