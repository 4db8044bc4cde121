"""Pools, devices and memory fractions in bunch.toml: what a worker serves, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.commands import cli
from config.errors import SettingsError
from config.model_files.pools import assignment
from config.model_files.room import needs_of, room_for
from config.settings import Settings, load_settings

MODELS = """
[models.a]
source = "workers.models.echo:Echo"
{a}
[models.b]
source = "workers.models.echo:Echo"
{b}
[models.web]
source = "http://127.0.0.1:1/"
{web}
"""
POOLS = """
[pools.fast]
models = ["a", "web"]
devices = ["cuda:0", "cuda:1"]
[pools.slow]
models = ["b"]
"""


def load(folder: Path, pools: str = "", environ: dict[str, str] | None = None, **keys: str) -> Settings:
    file = folder / "bunch.toml"
    file.write_text(MODELS.format(**{"a": "", "b": "", "web": "", **keys}) + pools)
    return load_settings(environ or {}, str(file))


def refused(folder: Path, pools: str = "", environ: dict[str, str] | None = None, **keys: str) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load(folder, pools, environ, **keys)
    return [str(each) for each in raised.value.problems]


def test_without_pools_a_worker_serves_everything(tmp_path: Path) -> None:
    served = assignment(load(tmp_path))
    assert (list(served.models), served.devices, served.pool) == (["a", "b", "web"], None, "")


@pytest.mark.parametrize(
    ("environ", "models", "devices"),
    [
        ({"BUNCH_WORKER_POOL": "fast"}, ["a", "web"], ("cuda:0", "cuda:1")),
        ({"BUNCH_WORKER_POOL": "slow"}, ["b"], None),
        ({"BUNCH_WORKER_MODELS": "b, a,b"}, ["b", "a"], None),
        ({}, ["a", "b", "web"], None),
    ],
)
def test_a_worker_serves_what_it_was_started_for(
    tmp_path: Path, environ: dict[str, str], models: list[str], devices: object
) -> None:
    served = assignment(load(tmp_path, POOLS, environ))
    assert (list(served.models), served.devices) == (models, devices)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"BUNCH_WORKER_POOL": "quick"}, "--pool = 'quick': must be one of fast, slow"),
        ({"BUNCH_WORKER_MODELS": "a,c"}, "--models = 'c': must be a comma-separated list of a, b, web"),
        ({"BUNCH_WORKER_POOL": "fast", "BUNCH_WORKER_MODELS": "a"}, "give one of the two"),
    ],
)
def test_a_worker_for_what_there_is_not_does_not_start(tmp_path: Path, environ: dict[str, str], said: str) -> None:
    (problem,) = refused(tmp_path, POOLS, environ)
    assert said in problem


@pytest.mark.parametrize(
    ("pools", "keys", "said"),
    [
        ("[pools.p]\nmodels = ['a', 'b']", {}, "[models.web] = 'web': is in no pool"),
        ("[pools.p]\nmodels = ['a', 'b', 'web', 'x']", {}, "[pools.p] models = 'x': must name models of this file"),
        ("[pools.p]\nmodels = ['a', 'b', 'web', 'a']", {}, "names a model twice"),
        ("[pools.P]\nmodels = ['a']", {}, "must have only lower-case letters"),
        ("[pools.p]\ndevices = ['cpu']", {}, "names no models"),
        (
            "[pools.p]\nmodels = ['a', 'b', 'web']\ndevices = ['cuda0']",
            {},
            "[pools.p] devices = 'cuda0': must be \"all\"",
        ),
        ("[pools.p]\nmodels = ['a', 'b', 'web']\nworkers = 2", {}, "has the keys models, devices and max_resident"),
        ("", {"a": "devices = 'every'"}, "[models.a] devices"),
        ("", {"a": "devices = []"}, "must name at least one device"),
        ("", {"a": "devices = ['cuda:0']\ninstances = 2"}, "[models.a] instances = 2: has no effect beside devices"),
        ("", {"a": "devices = ['cuda:0']\ndevice = 'cpu'"}, "[models.a] device = 'cpu': has no effect beside devices"),
        ("", {"web": "devices = ['cuda:0']"}, "has no effect on a model that runs behind a URL"),
        ("", {"a": "memory_fraction = 1.5"}, "[models.a] memory_fraction"),
        ("", {"a": "memory_fraction = 0.6", "b": "memory_fraction = 0.5"}, "at most 1, not 1.1"),
        ("", {"a": "memory_fraction = 0.6\ndevices = ['cuda:1', 'cuda:1']"}, "cuda:1: a, b, web"),
        ("", {"a": "memory_fraction = 0.6\nspare = true"}, "at most 1, not 1.2"),
        ("", {"a": "memory_fraction = 0.6\ndevices = 'all'", "b": "memory_fraction = 0.5\ndevice = 'cuda:7'"}, "1.1"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(
    tmp_path: Path, pools: str, keys: dict[str, str], said: str
) -> None:
    problems = refused(tmp_path, pools, **keys)
    assert [each for each in problems if said in each], problems


ON_DEMAND = 'residency = "on_demand"\n'


@pytest.mark.parametrize(
    ("pools", "keys", "said"),
    [
        ("", {"a": ON_DEMAND}, "[models.a] residency = 'on_demand': needs to know how many models fit"),
        ("", {"web": ON_DEMAND}, "[models.web] residency = 'on_demand': has no effect on a model that runs behind"),
        ("[server]\nmax_resident = 1", {}, "[server] max_resident = 1: limits on-demand models, and there is none"),
        (
            "[server]\nmax_resident = 1",
            {"a": ON_DEMAND + "spare = true"},
            "[server] max_resident = 1: must be at least 2: a takes that many places",
        ),
        (
            "[server]\nmax_resident = 2\n[pools.p]\nmodels = ['a', 'web']\nmax_resident = 1\n[pools.q]\nmodels = ['b']",
            {"a": ON_DEMAND + "spare = true", "b": ON_DEMAND},
            "[pools.p] max_resident = 1: must be at least 2",
        ),
        (
            "[pools.q]\nmodels = ['b', 'web']\nmax_resident = 1\n[pools.p]\nmodels = ['a']",
            {"a": ON_DEMAND + "memory_fraction = 0.5"},
            "[pools.q] max_resident = 1: limits on-demand models, and there is none",
        ),
        (
            "",
            {"a": ON_DEMAND + "memory_fraction = 0.6", "b": "memory_fraction = 0.5"},
            "[models.a] memory_fraction = 0.6: can never be loaded on cuda:0",
        ),
        ("", {"a": ON_DEMAND + "memory_fraction = 0.6\ndevices = ['cuda:1', 'cuda:1']"}, "it takes 1.2 of the memory"),
    ],
)
def test_on_demand_models_that_can_never_have_room_are_refused(
    tmp_path: Path, pools: str, keys: dict[str, str], said: str
) -> None:
    problems = refused(tmp_path, pools, **keys)
    assert [each for each in problems if said in each], problems


def test_on_demand_models_need_not_have_room_at_once(tmp_path: Path) -> None:
    each = ON_DEMAND + "memory_fraction = 0.7"
    load(tmp_path, a=each, b=each)
    assert assignment(load(tmp_path, "[server]\nmax_resident = 1", a=ON_DEMAND, b=ON_DEMAND)).max_resident == 1
    pools = "[server]\nmax_resident = 1\n[pools.p]\nmodels = ['a', 'b', 'web']\nmax_resident = 2"
    settings = load(tmp_path, pools, {"BUNCH_WORKER_POOL": "p"}, a=ON_DEMAND, b=ON_DEMAND)
    assert assignment(settings).max_resident == 2


@pytest.mark.parametrize(
    ("keys", "shares", "left"),
    [
        # Two devices, a spare on each; and what is always loaded takes its part.
        ({"a": ON_DEMAND + "memory_fraction = 0.3\nspare = true\ndevices = ['cuda:0', 'cuda:1']"}, 0.6, 1.0),
        (
            {
                "a": ON_DEMAND + "memory_fraction = 0.3\ndevices = ['cuda:0', 'cuda:1']",
                "b": "memory_fraction = 0.2\ndevices = ['cuda:0', 'cuda:1']",
            },
            0.3,
            0.8,
        ),
    ],
)
def test_room_is_what_the_devices_have_without_what_stays(
    tmp_path: Path, keys: dict[str, str], shares: float, left: float
) -> None:
    models = load(tmp_path, **keys).models
    devices = ("cuda:0", "cuda:1")
    always = [needs_of(models["b"], devices, 3)] if "b" in keys else []
    assert needs_of(models["a"], devices, 0) == pytest.approx(dict.fromkeys(devices, shares))
    assert room_for(always, devices, 3) == pytest.approx({**dict.fromkeys(devices, left), "models": 3.0})


@pytest.mark.parametrize(
    ("pools", "keys"),
    [
        ("", {"a": "memory_fraction = 0.6\ndevices = ['cuda:0']", "b": "memory_fraction = 0.6\ndevices = ['cuda:1']"}),
        ("", {"a": "memory_fraction = 0.6", "b": "memory_fraction = 0.6\ndevice = 'cpu'"}),
        ("", {"a": "memory_fraction = 0.6", "b": "memory_fraction = 0.4"}),
        (POOLS, {"a": "memory_fraction = 1.0", "b": "memory_fraction = 1.0"}),
    ],
)
def test_memory_of_different_devices_and_pools_does_not_add_up(
    tmp_path: Path, pools: str, keys: dict[str, str]
) -> None:
    load(tmp_path, pools, **keys)


@pytest.mark.parametrize(
    ("options", "status", "given"),
    [
        (["--pool", "fast"], 0, {"BUNCH_WORKER_POOL": "fast"}),
        (["--models", "a,b"], 0, {"BUNCH_WORKER_MODELS": "a,b"}),
        ([], 0, {}),
        (["--models", "x"], 1, None),
        (["--pool", "fast", "--models", "a"], 1, None),
    ],
)
def test_the_worker_command_passes_on_what_it_serves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    status: int,
    given: dict[str, str] | None,
) -> None:
    load(tmp_path, POOLS)
    become: list[dict[str, str]] = []
    monkeypatch.setattr("os.execve", lambda path, command, environment: become.append(environment))
    monkeypatch.setattr("cli.run.roles.restrict_umask", lambda: None)
    monkeypatch.setenv("BUNCH_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("BUNCH_STATE_DIR", str(tmp_path / "var"))
    done = CliRunner().invoke(cli, ["worker", "--config", str(tmp_path / "bunch.toml"), *options])
    assert bool(done.exit_code) is bool(status), done.output
    served = [{name: value for name, value in each.items() if name.startswith("BUNCH_WORKER")} for each in become]
    assert served == ([] if given is None else [given])
