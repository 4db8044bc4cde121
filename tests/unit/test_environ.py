"""The variables that reach each role: no other program's, no other role's secrets, and all that a model may need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import environ
from config.environ import child_environment, executor_environment, forget_other_programs
from config.process import devices
from config.secrets.secret_settings import HOLDERS

ROLES = ("web", "grpc", "worker", "ops", "flower", "redis")
OF_OTHERS = {
    "CELERY_BROKER_URL": "redis://elsewhere",
    "CELERYD_CONCURRENCY": "9",
    "GUNICORN_CMD_ARGS": "--bind 0.0.0.0",
    "FLOWER_BASIC_AUTH": "a:b",
    "FORKED_BY_MULTIPROCESSING": "1",
    "C_FORCE_ROOT": "1",
}
STEERING = {
    "BROKER_URL": "redis://elsewhere",
    "RESULT_BACKEND": "redis://elsewhere",
    "WEB_CONCURRENCY": "9",
    "FORWARDED_ALLOW_IPS": "*",
    "OTEL_SDK_DISABLED": "true",
    "DJANGO_SETTINGS_MODULE": "shop.settings",
    "PROMETHEUS_MULTIPROC_DIR": "/run/prom",
    "FLASK_DEBUG": "1",
    "REMAP_SIGTERM": "SIGQUIT",
}
OF_A_MODEL = {"HF_HOME": "/models", "CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "2", "MY_API_TOKEN": "t"}


@pytest.fixture
def given_environment(monkeypatch: pytest.MonkeyPatch):
    def put(**names: str) -> None:
        monkeypatch.setattr(environ.os, "environ", {"PATH": "/bin", "LANG": "C.UTF-8", **names})

    return put


@pytest.mark.parametrize("role", ROLES)
def test_other_programs_steer_no_role(role: environ.Role, given_environment) -> None:
    given_environment(**OF_OTHERS, **STEERING)
    reached = child_environment(role, {})
    assert not (OF_OTHERS.keys() | STEERING.keys()) & reached.keys()
    assert reached["PATH"] == "/bin"


@given(
    name=st.sampled_from(["CELERY", "GUNICORN_", "FLOWER_", "OTEL_", "FLASK_", "KOMBU_"]),
    rest=st.text("AB_", max_size=8),
)
def test_whatever_such_a_name_goes_on_with(name: str, rest: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environ.os, "environ", {name + rest: "x"})
        assert all(name + rest not in child_environment(role, {}) for role in ROLES)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("field", sorted(HOLDERS))
def test_a_secret_reaches_those_who_need_it_alone(role: environ.Role, field: str, given_environment) -> None:
    name = f"BUNCH_{field.upper()}"
    given_environment(**{name: "s3cret", f"{name}_FILE": "/run/s3cret", "BUNCH_LOG_LEVEL": "DEBUG"})
    reached = child_environment(role, {})
    assert {name in reached, f"{name}_FILE" in reached} == {role in HOLDERS[field]}
    assert ("BUNCH_LOG_LEVEL" in reached) == (role != "redis")


def test_executors_have_all_of_a_models_own_and_no_setting(given_environment) -> None:
    given_environment(**OF_A_MODEL, **STEERING, **OF_OTHERS, BUNCH_REDIS_URL="redis://:s3cret@h", BUNCH_HTTP_PORT="1")
    given_environment(**child_environment("worker", {"redis_url": "redis://:s3cret@h"}))
    reached = executor_environment()
    assert (OF_A_MODEL | STEERING).items() <= reached.items()
    assert not OF_OTHERS.keys() & reached.keys()
    assert not [name for name in reached if name.startswith("BUNCH_")]
    assert "s3cret" not in json.dumps(reached)


@pytest.mark.parametrize("role", ["web", "worker"])
def test_executors_run_on_the_gpus_that_whoever_starts_them_has_chosen(
    role: environ.Role, given_environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_environment(**OF_A_MODEL)
    given_environment(**child_environment(role, {"mode": "collocated"}, with_executors=role == "web"))
    monkeypatch.setattr(devices, "driver_gpus", lambda: ("GPU-a", "GPU-b"))
    machine = devices.this_machine.__wrapped__()
    assert (machine.gpus, machine.narrowed) == (("1",), True)


@pytest.mark.parametrize("role", ["web", "ops", "flower", "redis"])
def test_a_models_variables_stay_out_of_what_runs_no_model(role: environ.Role, given_environment) -> None:
    given_environment(**OF_A_MODEL)
    assert not OF_A_MODEL.keys() & child_environment(role, {}).keys()
    assert "MY_API_TOKEN" in child_environment(role, {}, also={"MY_API_TOKEN"})


def test_a_secret_from_a_file_stays_in_it(given_environment, tmp_path: Path) -> None:
    file = tmp_path / "redis"
    file.write_text("redis://:s3cret@h\n")
    given_environment(BUNCH_REDIS_URL_FILE=str(file))
    assert "BUNCH_REDIS_URL" not in child_environment("web", {"redis_url": "redis://:s3cret@h"})
    # The embedded server's, say: then the file is not what holds.
    reached = child_environment("web", {"redis_url": "unix:///other"})
    assert reached["BUNCH_REDIS_URL"] == "unix:///other"
    assert "BUNCH_REDIS_URL_FILE" not in reached


def test_what_kubernetes_makes_is_passed_to_no_role(given_environment) -> None:
    given_environment(BUNCH_HTTP_PORT="tcp://10.0.0.1:80", BUNCH_SERVICE_HOST="10.0.0.1")
    for role in ROLES:
        assert not [name for name in child_environment(role, {}) if "PORT" in name or "HOST" in name]


def test_a_command_in_this_process_goes_by_our_settings_too(given_environment) -> None:
    given_environment(**OF_OTHERS, **STEERING, **OF_A_MODEL)
    forget_other_programs()
    assert set(environ.os.environ) == {"PATH", "LANG", *OF_A_MODEL}
