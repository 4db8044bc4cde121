"""A batching worker on a pool that it cannot run on ends at once, and says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.celery_harness import ECHO, ROOT
from tests.shards import redis_environment
from tests.valkey import PrivateValkey


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_it_is_refused(pool: str, valkey: PrivateValkey, tmp_path: Path) -> None:
    (tmp_path / "bunch.toml").write_text(ECHO)
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "workers.app", "worker", "-P", pool, "-c", "1"],
        cwd=ROOT,
        env={
            "PATH": "/usr/bin:/bin",
            **redis_environment(valkey.url),
            "BUNCH_CONFIG": str(tmp_path / "bunch.toml"),
            "BUNCH_STATE_DIR": str(tmp_path / "var"),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode != 0
    assert f"--pool=threads or --pool=solo, not {pool}" in done.stderr
