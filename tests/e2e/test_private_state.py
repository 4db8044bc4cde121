"""Nobody but the user who started it gets into the embedded server, or reads what lies in the state folder."""

from __future__ import annotations

import base64
import contextlib
import os
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from celery import Celery
from redis import Redis
from redis.exceptions import AuthenticationError

from tests.e2e.client import Api
from tests.e2e.stack import PATIENT, Stack

PATIENCE_S = 160
FLOWER = "somebody:a-long-enough-word"
MODELS = """\
[models.echo]
source = "workers.models.echo:Echo"
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """With a folder as earlier versions left it, and a database."""
    each = Stack(tmp_path_factory.mktemp("private"), MODELS)
    log = each.state_dir / "log"
    log.mkdir(parents=True)
    each.state_dir.chmod(0o755)
    (log / "worker1.log.1").write_text("what somebody asked")
    (log / "worker1.log.1").chmod(0o644)
    try:
        yield each.start(
            *("--web-workers=1", "--workers=1"),
            auth="keys",
            ledger_retention_days=1,
            flower_port=0,
            flower_basic_auth=FLOWER,
            **PATIENT,
        )
        each.stop()
    finally:
        each.kill()


@pytest.fixture(scope="module")
def password(stack: Stack) -> str:
    found = urlsplit(stack.redis_url).password
    assert found
    return found


def test_a_stranger_is_refused_on_the_port_and_on_the_socket(stack: Stack, password: str) -> None:
    port = urlsplit(stack.redis_url).port
    for guess in (None, "", "foobared", password[:-1], password.upper()):
        with Redis(port=port, password=guess) as stranger, pytest.raises(AuthenticationError):
            stranger.hset("bunch:keys", "forged", "{}")
    with Redis(unix_socket_path=str(stack.state_dir / "valkey.sock")) as stranger, pytest.raises(AuthenticationError):
        stranger.ping()
    with stack.redis() as known:
        assert known.ping()


def test_a_plain_celery_client_gets_in_by_the_url_that_status_prints(stack: Stack) -> None:
    with Celery("plain", broker=stack.redis_url, backend=stack.redis_url, set_as_current=False) as app:
        result = app.send_task("bunch.infer", ["A bunch"], {"parameters": {}}, queue="bunch.echo.paid")
        assert result.get(timeout=PATIENCE_S) == "A bunch"
        app.backend.result_consumer.stop()


def test_the_password_is_in_no_log_title_screen_or_page(stack: Stack, password: str) -> None:
    below = psutil.Process(stack.process.pid).children(recursive=True)
    assert not [each for each in below if any(password in word for word in _words(each))]
    logs = (stack.state_dir / "log").iterdir()
    assert not [each.name for each in logs if password in each.read_text()]
    assert password not in stack.logs()
    assert password not in stack.manage("status").stdout
    assert password not in stack.manage("check").stdout
    assert password not in stack.manage("workers").stdout
    credential = {"Authorization": f"Basic {base64.b64encode(FLOWER.encode()).decode()}"}
    page = urllib.request.Request(f"http://127.0.0.1:{_flower_port(stack)}/api/workers?refresh=1", headers=credential)
    with urllib.request.urlopen(page) as answer:
        shown = answer.read().decode()
    assert "broker_url" in shown
    assert password not in shown


def test_all_that_lies_in_the_state_folder_is_its_users_alone(stack: Stack) -> None:
    assert Api(stack.port).post("/v1/inference", {"input": 1}).status == 401
    assert stack.manage("keys", "create", "--tier=paid").returncode == 0
    everything = [stack.state_dir, *stack.state_dir.rglob("*")]
    kinds = {each.relative_to(stack.state_dir).parts[0] for each in everything[1:]}
    assert {"log", "valkey", "flower", "valkey.sock", "up.json", "bunch.db"} <= kinds
    modes = {each: _mode_if_there(each) for each in everything}
    assert not [f"{each} {mode:o}" for each, mode in modes.items() if mode & 0o077]


def test_a_folder_that_holds_other_things_is_left_open_and_said_so(tmp_path: Path) -> None:
    each = Stack(tmp_path, MODELS)
    (each.state_dir / "mine").mkdir(parents=True)
    for path in (each.state_dir, each.state_dir / "mine"):
        path.chmod(0o755)
    try:
        each.start("--web-workers=1", "--no-flower")
        assert "chmod 700" in (tmp_path / "output.txt").read_text()
        assert {_mode(each.state_dir), _mode(each.state_dir / "mine")} == {0o755}
        assert _mode(each.state_dir / "valkey") == 0o700
        (each.state_dir / "mine").rmdir()
        each.stop()
    finally:
        each.kill()


def _words(process: psutil.Process) -> list[str]:
    """Of one that has ended meanwhile nothing is shown any more."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def _mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def _mode_if_there(path: Path) -> int:
    """Files are replaced by others: the new one has another name for a moment."""
    with contextlib.suppress(FileNotFoundError):
        return _mode(path)
    return 0


def _flower_port(stack: Stack) -> int:
    (pid,) = stack.pids("flower")
    (port,) = (each.laddr.port for each in psutil.Process(pid).net_connections("tcp") if each.status == "LISTEN")
    return int(port)
