"""The table of the kinds of `source`: each is told by its text, and what its row names is there."""

from __future__ import annotations

import inspect

import pytest

from cli.supervisor.role_commands import asked_for_by_headers
from config.model_files.schemes import IMPORTED, SCHEMES, Scheme, forms, resolve, scheme_of
from config.settings import ModelSettings, Settings
from webapp.fallback import FallbackModel
from workers.models import LoadError, load_model


@pytest.mark.parametrize(
    ("source", "scheme"),
    [
        ("package.module:Name", IMPORTED),
        ("http:Server", IMPORTED),
        ("httpx:Client", IMPORTED),
        ("http://example.org/predict", "http"),
        ("https://example.org/predict", "https"),
    ],
)
def test_a_source_is_told_by_what_stands_before_its_slashes(source: str, scheme: str) -> None:
    assert scheme_of(source) is SCHEMES[scheme]
    assert scheme_of(source).pattern.fullmatch(source)
    assert ModelSettings(name="m", source=source).is_remote == (scheme != IMPORTED)


@pytest.mark.parametrize("source", ["", "package.module", "a.b:", "ftp://example.org", "http://", "HTTP://x", "://a:b"])
def test_what_is_of_no_kind_fits_no_row_and_leads_to_no_model(source: str) -> None:
    assert not scheme_of(source).pattern.fullmatch(source)


@pytest.mark.parametrize("source", ["package.module", "ftp://example.org", "a.b:C"])
def test_a_source_that_leads_nowhere_is_a_load_error(source: str) -> None:
    with pytest.raises(LoadError, match=source.partition(":")[0]):
        load_model(ModelSettings(name="m", source=source))


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=list(SCHEMES))
def test_what_a_row_names_is_there(scheme: Scheme) -> None:
    (settings,) = inspect.signature(resolve(scheme.loader)).parameters
    assert settings == "settings"
    if scheme.direct:
        assert issubclass(resolve(scheme.direct), FallbackModel)


def test_an_error_names_each_form_once() -> None:
    adapted = "one of openai, tei, kserve in front of an http(s) URL"
    assert forms() == f'"package.module:Name" or an http(s) URL of a fixed API or {adapted}'
    assert forms(lambda scheme: scheme.direct) == "an http(s) URL of a fixed API"


def test_frontends_get_the_variables_of_the_apis_that_they_may_call_themselves() -> None:
    options = {"headers": {"Authorization": {"env": "API_TOKEN"}, "Accept": "application/json"}}
    models = {
        name: ModelSettings(name=name, source=source, direct=direct, options=options)
        for name, source, direct in [("api", "https://example.org", True), ("queued", "https://example.org", False)]
    }
    assert asked_for_by_headers(Settings(models=models)) == {"API_TOKEN"}
    assert asked_for_by_headers(Settings(models={"queued": models["queued"]})) == frozenset()
    assert SCHEMES[IMPORTED].variables(options) == frozenset(), "a class reads its options itself"
