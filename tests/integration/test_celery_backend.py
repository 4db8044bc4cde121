"""`bunch.celery_backend` as other people's programs select it: by configuration alone, beside a real worker of ours.

The plain worker's own results are stored through it too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError

from bunch.celery_backend import BunchBackend
from config.keys import Shard
from tasks.client.client import new_id
from tasks.protocol.ids import sharded_id
from tests.integration.celery_harness import PATIENCE_S, ROOT, close_client, infer
from tests.integration.celery_rig import Rig, running
from tests.waiting import wait_until

OURS = "bunch.celery_backend:BunchBackend+"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("celery"), PLAIN_BACKEND=OURS) as rig:
        yield rig


@pytest.fixture
def app(rig: Rig) -> Iterator[Celery]:
    app = Celery("somebody", broker=rig.url, backend=OURS + rig.url, set_as_current=False)
    yield app
    close_client(app)


def plain(app: Celery, name: str, *args: Any) -> Any:
    return app.signature(f"plain.{name}", args=args)


def test_the_example_of_the_documentation_runs(rig: Rig) -> None:
    page = (ROOT / "docs/celery.md").read_text()
    section = page.partition("## Result backend")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found
    names: dict[str, Any] = {"REDIS_URL": rig.url}
    exec(found[1].replace("bunch.minilm.paid", "bunch.echo.paid"), names)  # noqa: S102 - our own page
    try:
        assert isinstance(names["app"].backend, BunchBackend)
        assert names["outputs"] == ["one", "two", "three"]
        assert names["app"].AsyncResult(names["later"].id).state == "PENDING"
    finally:
        close_client(names["app"])


def test_batched_and_ordinary_tasks_are_joined_together(rig: Rig, app: Celery) -> None:
    result = group(infer(app, 1), plain(app, "double", 4), infer(app, 2)).apply_async()
    assert result.get(timeout=PATIENCE_S) == [1, 8, 2]
    assert dict(result.iter_native(timeout=PATIENCE_S)).keys() == {each.id for each in result}


def test_chains_and_chords_come_to_their_end(rig: Rig, app: Celery) -> None:
    name = uuid.uuid4().hex
    assert chain(infer(app, 3), plain(app, "double")).apply_async().get(timeout=PATIENCE_S) == 6
    batched = chord([infer(app, n) for n in (1, 2, 3)], plain(app, "total", name))
    ordinary = chord([plain(app, "double", n) for n in (1, 2, 3)], plain(app, "total", name))
    assert batched.apply_async().get(timeout=PATIENCE_S) == 6
    assert ordinary.apply_async().get(timeout=PATIENCE_S) == 12


def test_failures_are_raised_as_celery_raises_them(rig: Rig, app: Celery) -> None:
    refused = infer(app, {"reject": "not this"}).apply_async()
    with pytest.raises(Exception, match="not this") as caught:
        refused.get(timeout=PATIENCE_S)
    assert type(caught.value).__name__ == "InputRejected"
    assert (refused.state, refused.failed()) == ("FAILURE", True)
    failed = chord([infer(app, 1), infer(app, {"reject": "no"})], plain(app, "total", uuid.uuid4().hex))
    with pytest.raises(ChordError):
        failed.apply_async().get(timeout=PATIENCE_S, follow_parents=False)


def test_a_revoked_request_raises_and_its_states_are_told(rig: Rig, app: Celery) -> None:
    heard: list[str] = []
    with rig.occupied():
        result = infer(app, "x").apply_async()
        result.revoke()
        with pytest.raises(TaskRevokedError):
            result.get(timeout=PATIENCE_S, on_message=lambda meta: heard.append(meta["status"]))
    assert heard[-1] == "REVOKED"


STRANGER = """\
from celery import Celery
app = Celery("tasks")
"""


def ask_as_a_stranger(folder: Path, task_id: str, backend: str, *path: Path) -> str:
    """From a folder with a `tasks.py` of its own, by an environment variable alone."""
    (folder / "tasks.py").write_text(STRANGER)
    script = f"from tasks import app; print(type(app.backend).__name__, app.AsyncResult({task_id!r}).get(timeout=60))"
    environment = {
        **os.environ, "CELERY_RESULT_BACKEND": backend, "PYTHONPATH": os.pathsep.join(map(str, path)),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_program_with_a_tasks_module_of_its_own_selects_it(rig: Rig, app: Celery, tmp_path: Path) -> None:
    sent = infer(app, "é").apply_async()
    assert ask_as_a_stranger(tmp_path, sent.id, OURS + rig.url, ROOT) == "BunchBackend é"


def test_an_installed_distribution_gives_it_a_short_name(rig: Rig, app: Celery, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(ROOT / "bunch", source / "bunch", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    install = ("pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(target))
    subprocess.run([sys.executable, "-m", *install, str(source)], check=True, capture_output=True)
    # `bin` has the command.
    assert {each.name for each in target.iterdir() if each.suffix != ".dist-info"} == {"bin", "bunch"}
    sent = infer(app, "short").apply_async()
    assert ask_as_a_stranger(tmp_path, sent.id, f"bunch+{rig.url}", target) == "BunchBackend short"


def test_a_request_of_a_shard_is_found_by_its_id(rig: Rig, app: Celery) -> None:
    task_id = sharded_id(new_id(), 3)
    channel = Shard("{s3}").result(task_id)
    outcome = {"status": "SUCCESS", "result": 7, "traceback": None, "children": [], "task_id": task_id}
    assert app.AsyncResult(task_id).state == "PENDING"

    def finish() -> None:
        # Told as `finish.lua` tells it, and not yet to be read: only the message can end the wait.
        wait_until(lambda: dict(rig.redis.pubsub_shardnumsub(channel))[channel.encode()], "it listens")
        rig.redis.execute_command("SPUBLISH", channel, json.dumps(outcome))

    finishing = threading.Thread(target=finish)
    finishing.start()
    assert app.AsyncResult(task_id).get(timeout=PATIENCE_S) == 7
    finishing.join()
    rig.redis.set(channel, json.dumps(outcome), px=60_000)
    again = Celery("somebody", backend=OURS + rig.url, set_as_current=False)
    assert again.AsyncResult(task_id).get(timeout=PATIENCE_S) == 7
    assert next(iter(again.backend.get_many([task_id])))[0] == task_id
    close_client(again)
    wait_until(lambda: not dict(rig.redis.pubsub_shardnumsub(channel))[channel.encode()], "nothing is left behind")
