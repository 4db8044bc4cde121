"""The rights that docs/security.md lists are enough for the whole stack; less is named by `check`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery
from redis import Redis
from redis.exceptions import NoPermissionError

from tests.e2e.client import Api
from tests.e2e.stack import PATIENT, ROOT, Stack
from tests.valkey import PrivateValkey
from tests.waiting import PATIENCE_S, wait_until

MODELS = """\
[models.echo]
source = "workers.models.echo:Echo"
"""


def recipe() -> dict[str, str]:
    """Lines of the ACL file in the docs, by user, on one line each."""
    (block,) = re.findall(r"```acl\n(.*?)```", (ROOT / "docs" / "security.md").read_text(), re.DOTALL)
    joined = block.replace("\\\n", " ")
    return {line.split()[1]: line for line in joined.splitlines() if line.startswith("user ")}


@contextmanager
def server_with(folder: Path, *users: str) -> Iterator[PrivateValkey]:
    """Only these, and one who may do everything."""
    folder.mkdir(exist_ok=True)
    acl = folder / "users.acl"
    acl.write_text("\n".join(("user default off", "user admin on >admin ~* &* +@all", *users)) + "\n")
    server = PrivateValkey("--aclfile", str(acl))
    server.url = url_for(server, "admin", "admin")
    server.start()
    try:
        yield server
    finally:
        server.stop()


def url_for(server: PrivateValkey, user: str, password: str) -> str:
    return f"redis://{user}:{password}@127.0.0.1:{server.port}/0"


def refused(server: PrivateValkey) -> set[str]:
    """All that somebody was not allowed, of all users."""
    with server.client() as admin:
        return {str(each) for each in admin.acl_log()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateValkey]:
    users = {name: line.replace(">…", f">{name}-secret") for name, line in recipe().items()}
    with server_with(tmp_path_factory.mktemp("acl"), *users.values()) as server:
        yield server


@pytest.fixture(scope="module")
def stack(server: PrivateValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    each = Stack(tmp_path_factory.mktemp("stack"), MODELS)
    url = url_for(server, "bunch", "bunch-secret")
    try:
        yield each.start(
            "--web-workers=1", redis_url=url, flower_port=0, auth="off", ledger_retention_days=1, **PATIENT
        )
        each.stop()
    finally:
        each.kill()


def test_everything_works_with_the_rights_of_the_docs_and_nothing_is_refused(
    stack: Stack, server: PrivateValkey
) -> None:
    api = Api(stack.port)
    assert api.infer("one").status == 200
    task_id = api.later("two")
    assert api.outcome(task_id)["status"] == "SUCCESS"
    for command in (
        ("check",), ("workers",), ("queues",), ("dlq", "list"), ("pause", "echo"), ("resume", "echo"),
        ("drain", "worker1"), ("drain", "worker1", "--undo"),
    ):  # fmt: skip
        done = stack.manage(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert Api(stack.port).get("/metrics").status == 200
    wait_until(stack.all_run, what="all run, Flower too")
    assert refused(server) == set()
    assert all(row.restarts == 0 for row in stack.rows())


def test_a_queue_client_asks_and_reads_and_does_nothing_else(stack: Stack, server: PrivateValkey) -> None:
    url = url_for(server, "client", "client-secret")
    with Celery("client", broker=url, backend=url, set_as_current=False) as app:
        result = app.send_task("bunch.infer", ["three"], {"parameters": {}}, queue="bunch.echo.paid")
        assert result.get(timeout=PATIENCE_S) == "three"
        app.backend.result_consumer.stop()
    with Redis.from_url(url) as client:
        for command in (
            ("HSET", "bunch:keys", "forged", "{}"),
            ("HGETALL", "bunch:keys"),
            ("SET", f"celery-task-meta-{result.id}", "{}"),
            ("RPOP", "bunch.echo.enterprise"),
            ("PUBLISH", "bunch:reply:somebody", "[]"),
            ("PUBLISH", "/0.celery.pidbox", "{}"),
            ("EVAL", "return 1", "0"),
            ("FLUSHDB",),
        ):
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)


@pytest.mark.parametrize(
    ("taken", "named"),
    [
        ("resetchannels", "bunch:reply:check"),
        ("-@scripting", "EVAL"),
        ("resetkeys ~bunch* ~celery*", "_kombu.binding.check"),
        ("resetkeys ~bunch* ~celery* ~_kombu.*", "unacked"),
        ("resetkeys ~bunch:* ~celery* ~_kombu.* ~unacked* ~*.celery.pidbox*", "bunch.check.paid"),
        ("-time", "TIME"),
    ],
)
def test_check_names_a_right_that_is_missing(tmp_path: Path, taken: str, named: str) -> None:
    line = recipe()["bunch"].replace(">…", ">secret")
    with server_with(tmp_path / "acl", f"{line} {taken}") as server:
        done = _check(tmp_path, url_for(server, "bunch", "secret"))
    assert done["ok"] is False
    (problem,) = done["problems"]
    assert named in problem["fix"]
    assert "docs/security.md" in problem["fix"]


@pytest.mark.parametrize("durability", ["second", "disk"])
def test_what_may_not_be_asked_is_said_as_such_and_the_rest_works(tmp_path: Path, durability: str) -> None:
    line = recipe()["bunch"].replace(">…", ">secret")
    with server_with(tmp_path / "acl", f"{line} -info -config") as server:
        done = _check(tmp_path, url_for(server, "bunch", "secret"), durability=durability)
    assert (done["ok"], done["problems"]) == (True, [])
    said = [each["fix"] for each in done["warnings"]]
    assert "INFO" in said[0]
    assert [each for each in said if "CONFIG GET" in each] == said[1:]
    assert len(said) == (2 if durability == "disk" else 1)


def _check(folder: Path, url: str, durability: str = "second") -> dict[str, object]:
    stack = Stack(folder, MODELS)
    stack._environment |= {"BUNCH_REDIS_URL": url, "BUNCH_HTTP_PORT": "0", "BUNCH_DURABILITY": durability}
    found: dict[str, object] = json.loads(stack.manage("check", "--json").stdout)
    return found
