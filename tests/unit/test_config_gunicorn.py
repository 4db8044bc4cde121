"""gunicorn's configuration file, read as gunicorn reads it."""

from __future__ import annotations

import os
import runpy
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.util import parse_address

from config.environ import ROOT
from tests.fakes.tls import Authority
from webapp.http.limits import ServerLimits


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`read(http_port=…)`: what the file defines under these settings."""

    def build(**settings: object) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        for name, value in settings.items():
            monkeypatch.setenv(f"BUNCH_{name.upper()}", str(value))
        return runpy.run_path(str(ROOT / "config" / "gunicorn.py"))

    return build


def test_every_name_is_one_of_gunicorns(read) -> None:
    known = Config().settings
    defined = {name for name, value in read().items() if not name.startswith("_") and isinstance(value, str | int)}
    assert {"bind", "workers", "worker_class"} <= defined
    assert defined <= set(known)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_where_it_listens(read, host: str) -> None:
    assert parse_address(read(http_host=host, http_port=8123)["bind"]) == (host, 8123)


def test_settings_arrive(read) -> None:
    given = read(web_workers=3, graceful_timeout_ms=7000)
    assert (given["workers"], given["graceful_timeout"]) == (3, 7)
    assert given["worker_class"] == "webapp.server.Worker"


@pytest.mark.parametrize(("mode", "spare_s"), [("durable", 0), ("collocated", 4)])
def test_a_process_with_its_queue_in_memory_has_time_to_save_it_before_it_is_killed(
    read, mode: str, spare_s: int
) -> None:
    given = read(graceful_timeout_ms=7000, mode=mode)
    worker = SimpleNamespace(limits=ServerLimits())
    given["post_fork"](None, worker)
    assert given["graceful_timeout"] - worker.save_s == 7
    assert worker.save_s == spare_s


def test_workers_have_the_certificate_of_their_master(read, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).certificate("bunch.example")
    worker = SimpleNamespace(limits=ServerLimits())
    given = read(tls_cert=certificate, tls_key=key)
    certificate.unlink()
    given["post_fork"](None, worker)
    assert worker.tls.cert_store_stats() == {"x509": 0, "crl": 0, "x509_ca": 0}


@pytest.mark.parametrize("what", ["gone", "expired", "good"])
def test_hup_with_a_certificate_that_nobody_could_use_changes_nothing(read, tmp_path: Path, what: str) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certificate("bunch.example")
    given = read(tls_cert=certificate, tls_key=key)
    done: list[str] = []
    server = SimpleNamespace(
        handle_hup=lambda: done.append("reloaded"), log=SimpleNamespace(error=lambda _, error: done.append(str(error)))
    )
    given["on_starting"](server)
    if what == "gone":
        key.unlink()
    else:
        authority.certificate("bunch.example", expired=what == "expired")
    server.handle_hup()
    (only,) = done
    assert {"gone": "BUNCH_TLS_KEY", "expired": "BUNCH_TLS_CERT", "good": "reloaded"}[what] in only


def test_a_worker_that_fails_for_good_ends_the_server_with_status_1(read, monkeypatch: pytest.MonkeyPatch) -> None:
    given = read()
    given["on_exit"](None)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *about: told.append(about))
    # The worker is another process.
    pid = os.fork()
    if not pid:
        given["end_in_failure"]()
        os._exit(0 if told == [(os.getppid(), signal.SIGTERM)] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    with pytest.raises(SystemExit) as ended:
        given["on_exit"](None)
    assert ended.value.code == 1
