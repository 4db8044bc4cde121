"""The stack in an environment full of other programs' variables, other roles' secrets and a Kubernetes Service."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.client import connected
from tests.e2e.stack import PATIENT, Stack
from tests.waiting import wait_until

# Each would break or open something: a broker that is not there, an address that is everybody's, workers by the dozen.
OF_OTHERS = {
    "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
    "CELERY_RESULT_BACKEND": "redis://127.0.0.1:1/0",
    "BROKER_URL": "redis://127.0.0.1:1/0",
    "RESULT_BACKEND": "redis://127.0.0.1:1/0",
    "GUNICORN_CMD_ARGS": "--bind 0.0.0.0:1 --workers 9",
    "FLOWER_PORT": "1",
    "FLOWER_URL_PREFIX": "elsewhere",
    "DJANGO_SETTINGS_MODULE": "shop.settings",
    "REMAP_SIGTERM": "SIGQUIT",
    "WEB_CONCURRENCY": "9",
}
OF_KUBERNETES = {
    "BUNCH_SERVICE_HOST": "10.96.0.1",
    "BUNCH_FLOWER_PORT": "tcp://10.96.0.1:5555",
    "BUNCH_HTTP_PORT_80_TCP_ADDR": "10.96.0.1",
}
SERVICE_TOKEN = "a-token-that-only-frontends-need"
MODELS = """\
[models.surroundings]
source = "surroundings:Surroundings"
"""
MODULE = """\
import os

class Surroundings:
    def load(self, device):
        print("loaded in", os.getcwd())

    def predict(self, inputs, parameters):
        return [dict(os.environ) for _ in inputs]
"""


@pytest.fixture(scope="module")
def surrounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("surrounded")
    (folder / "surroundings.py").write_text(MODULE)
    (folder / "token").write_text(SERVICE_TOKEN + "\n")
    stack = Stack(folder, MODELS, environment=OF_OTHERS | OF_KUBERNETES | {"HF_HOME": "/models", "MY_OWN": "mine"})
    try:
        yield stack.start(
            "--web-workers=1",
            service_token_file=folder / "token",
            jwt_secret="j" * 40,
            flower_basic_auth="me:flower",
            **PATIENT,
        )
        stack.stop()
    finally:
        stack.kill()


def environment_of(pid: int) -> dict[str, str]:
    return psutil.Process(pid).environ()


def test_it_starts_and_a_model_sees_what_is_its_own(surrounded: Stack) -> None:
    with connected(surrounded.port) as api:
        seen = api.post("/v1/inference", {"model": "surroundings", "input": 1}).json["output"]
    assert (seen["HF_HOME"], seen["MY_OWN"], seen["DJANGO_SETTINGS_MODULE"]) == ("/models", "mine", "shop.settings")
    assert not [name for name in seen if name.startswith(("BUNCH_", "CELERY_", "GUNICORN_", "FLOWER_"))]


def test_commands_in_the_same_shell_reach_the_stack(surrounded: Stack) -> None:
    done = surrounded.manage("pause", "surroundings", "--json")
    assert list(json.loads(done.stdout)["workers"]), done.stdout + done.stderr
    assert surrounded.manage("resume", "surroundings").returncode == 0


def test_each_process_has_the_secrets_of_its_role_alone(surrounded: Stack) -> None:
    holders = {"BUNCH_JWT_SECRET": {"web"}, "BUNCH_SERVICE_TOKEN_FILE": {"web"}, "BUNCH_FLOWER_BASIC_AUTH": {"flower"}}
    for row in surrounded.rows():
        assert row.pid is not None
        seen = environment_of(row.pid)
        assert not OF_OTHERS.keys() & seen.keys(), row.role
        for name, roles in holders.items():
            assert (name in seen) == (row.role in roles), (name, row.role)
        assert SERVICE_TOKEN not in seen.values()


def test_a_secret_in_a_file_is_the_one_that_is_asked_for(surrounded: Stack) -> None:
    with connected(surrounded.port) as api:
        assert api.get("/internal/health").status == 401
        headers = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
        assert api.get("/internal/health", **headers).status == 200


def test_nothing_below_up_has_a_variable_that_was_meant_for_another_program(surrounded: Stack) -> None:
    looked_at = 0
    for each in psutil.Process(surrounded.process.pid).children(recursive=True):
        # One may have ended since.
        with contextlib.suppress(psutil.NoSuchProcess):
            names, command = set(each.environ()), " ".join(each.cmdline())
            assert not {"CELERY_BROKER_URL", "GUNICORN_CMD_ARGS", "FLOWER_PORT"} & names, each
            assert "BUNCH_JWT_SECRET" not in names or "gunicorn" in command, each
            looked_at += 1
    assert looked_at >= len(surrounded.rows())


def test_a_role_alone_is_as_free_of_them(surrounded: Stack) -> None:
    """`manage.py worker`, as a container runs it: it is heard by the stack, so it has the right broker."""
    third = surrounded.spawn("worker", "--name=alone")
    try:

        def is_heard() -> bool:
            rows = json.loads(surrounded.manage("workers", "--json").stdout)
            return any(row["node"].startswith("alone@") and row["healthy"] for row in rows)

        wait_until(is_heard, what="the worker is heard")
        assert (
            not (OF_OTHERS.keys() | {"BUNCH_JWT_SECRET", "BUNCH_SERVICE_TOKEN_FILE"}) & environment_of(third.pid).keys()
        )
    finally:
        third.terminate()
        third.wait()
