"""The recipes of docs/extending.md work: their code is taken from the page and run, from outside of our packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batching.policy import Reason, make, name_of
from batching.policy_settings import make_policy
from batching.request import Ok, Rejected, Work
from batching.simulator import Affine, Poisson, Scenario, simulate
from bunch import InputRejected
from config.errors import SettingsError
from config.model_files.schemes import SCHEMES
from config.policies import POLICIES
from config.settings import ModelSettings, Settings, load_settings
from tasks.observability import metrics
from tests.fakes.claim_rig import Rig
from webapp.app import create_app, make_services
from webapp.identity.base import Access
from webapp.routes import ROUTES
from webapp.routing import Route
from workers.executor.compute import BatchComputer
from workers.executor.shapes import Shapes
from workers.models import LoadError, load_model

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
CODE = dict(re.findall(r"^```(?:python|lua) (\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def run(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(compile(CODE[name], f"extending.md:{name}", "exec"), found)  # noqa: S102 - our own page
    return found


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's policy, in a module beside ours."""
    (tmp_path / "patient.py").write_text("from __future__ import annotations\n" + CODE["policy"])
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(POLICIES)
    run("registration")
    yield
    POLICIES.clear()
    POLICIES.update(before)
    sys.modules.pop("patient", None)


def settings_of(tmp_path: Path, policy: str, **options: float) -> ModelSettings:
    path = tmp_path / "bunch.toml"
    given = ", ".join(f"{key} = {value}" for key, value in options.items())
    path.write_text(f'[models.m]\nsource = "a:B"\npolicy = "{policy}"\npolicy_options = {{ {given} }}\n')
    return load_settings({}, str(path)).models["m"]


def test_a_policy_that_is_registered_from_outside_is_a_setting_with_ranges(registered: None, tmp_path: Path) -> None:
    policy = make_policy(settings_of(tmp_path, "patient", enough=0.25))
    assert (name_of(policy), policy.max_batch_size) == ("patient", 64)
    with pytest.raises(SettingsError, match="enough=2: must be from 0 to 1"):
        make_policy(settings_of(tmp_path, "patient", enough=2))


def test_a_policy_that_is_not_registered_is_no_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="must be one of adaptive, idle, fixed"):
        settings_of(tmp_path, "patient")


def test_a_policy_that_is_registered_from_outside_runs_in_the_claim_loop(registered: None) -> None:
    rig = Rig(policy=make("patient", 8, 3600.0, {}))
    try:
        rig.put(*map(str, range(4)))
        rig.start()
        rig.settled(*map(str, range(4)))
    finally:
        rig.close()
    assert [(info.size, info.reason) for info, _ in rig.witness.claims] == [(4, Reason.FULL)]


def test_a_policy_that_is_registered_from_outside_runs_in_the_simulator(registered: None) -> None:
    scenario = Scenario(
        arrivals=Poisson(200.0), service=Affine(0.01), policy=lambda: make("patient", 8, None, {}), duration_s=5.0
    )
    report = simulate(scenario)
    assert report.answered == report.requests > 0
    assert report.mean_batch == pytest.approx(4, abs=1)


def test_an_endpoint_is_a_handler_and_a_row_of_the_routes() -> None:
    route: Route = run("endpoint")["ROUTE"]
    model = ModelSettings(name="m", source="a:B")
    # Nobody connects to it.
    settings = Settings(redis_url="redis://127.0.0.1:1", models={"m": model}, default_model="m")
    services = make_services(settings, routes=(*ROUTES, route))
    client = create_app(services).test_client()
    answer = client.open(route.path, method=route.method)
    assert (answer.status_code, answer.json) == (200, {"models": 1})
    assert services.routes.access_of(route.method, route.path) is Access.OPERATOR
    document = client.get("/openapi.json").json
    assert document is not None
    described = document["paths"][route.path][route.method.lower()]
    assert described["responses"]["200"]["content"]["application/json"]["schema"]["required"] == ["models"]
    assert "403" in described["responses"]


def test_a_model_source_is_a_class_with_two_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_model.py").write_text(CODE["model"])
    monkeypatch.syspath_prepend(tmp_path)
    model = load_model(ModelSettings(name="m", source="outside_model:Reverse"))
    model.load("cpu")
    good, bad = model.predict(["abc", 1], [{}, {}])
    assert good == "cba"
    assert isinstance(bad, InputRejected)


def test_a_model_pads_to_the_bucket_of_its_call() -> None:
    model = run("shapes")["Lengths"]()
    model.load("cpu")
    computer = BatchComputer(model, shapes=Shapes((2, 4), (8, 32), model.length))
    done, _ = computer.compute(computer.decode(Work("b", [b'"abc"', b'"a longer text"', b'""'], [b"{}"] * 3)))
    assert done is not None
    assert done.outcomes == [Ok(b"3"), Ok(b"13"), Ok(b"0")]
    assert model.shapes == {(2, 32), (2, 8)}


def test_a_model_has_stages_around_predict() -> None:
    model = run("stages")["Encoder"]()
    model.load("cpu")
    computer = BatchComputer(model)
    assert computer.overlaps
    done, _ = computer.compute(computer.decode(Work("b", [b'"b a"', b'" "', b'"c a"'], [b"{}"] * 3)))
    assert done is not None
    assert done.outcomes == [Ok(b"[0,1]"), Rejected("the text is empty"), Ok(b"[1,2]")]


@pytest.fixture
def _lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's scheme, with its loader in a module beside ours."""
    (tmp_path / "lines.py").write_text(CODE["loader"])
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(SCHEMES)
    run("scheme")
    yield
    SCHEMES.clear()
    SCHEMES.update(before)
    sys.modules.pop("lines", None)


def configured(tmp_path: Path, source: str, more: str = "") -> ModelSettings:
    path = tmp_path / "bunch.toml"
    path.write_text(f'[models.m]\nsource = "{source}"\n{more}')
    return load_settings({}, str(path)).models["m"]


@pytest.mark.usefixtures("_lines")
def test_a_scheme_that_is_registered_from_outside_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "known.txt").write_text("a\nb\n")
    settings = configured(tmp_path, f"lines://{tmp_path}/known.txt", 'options = { headers = "an API\'s alone" }\n')
    assert not settings.is_remote
    model = load_model(settings)
    model.load("cpu")
    assert model.predict(["a", "c"], [{}, {}]) == [True, False]
    with pytest.raises(LoadError, match="is no file"):
        load_model(configured(tmp_path, "lines://nowhere"))
    with pytest.raises(SettingsError, match="or lines:// and the path of a text file"):
        configured(tmp_path, "other://known.txt")
    with pytest.raises(SettingsError, match=r"\[models.m\] direct"):
        configured(tmp_path, "lines://known.txt", "direct = true\n")


def test_a_scheme_that_is_not_registered_is_no_source(tmp_path: Path) -> None:
    forms = r'must be "package.module:Name" or an http\(s\) URL of a fixed API or .* in front of an http\(s\) URL$'
    with pytest.raises(SettingsError, match=forms):
        configured(tmp_path, "lines://known.txt")


def test_a_metric_is_one_declaration() -> None:
    counter = run("metric")["NAPS"]
    try:
        assert metrics.REGISTRY.get_sample_value("bunch_naps_total", {"model": "minilm"}) == 1
    finally:
        metrics.REGISTRY.unregister(counter)


def test_every_file_that_a_recipe_names_exists() -> None:
    root = Path(__file__).parents[2]
    for name in re.findall(r"`([\w./]+/[\w.]*)`", PAGE):
        assert (root / name).exists() or "<" in name, name


@pytest.mark.parametrize(
    ("heading", "most"), [("A policy", 3), ("An endpoint", 3), ("A model source", 2), ("An admission rule", 4)]
)
def test_a_recipe_touches_few_files(heading: str, most: int) -> None:
    recipe = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    assert 0 < len(re.findall(r"^\d\. ", recipe, re.MULTILINE)) <= most
