"""Runs scenarios, each in a fork of this process. A line `REDIS_URL CLUSTER_URL MODULE SCENARIO OUTPUT` on standard
input starts one. Two lines on standard output answer it: the process id, and the exit status when it has ended.

Forks, because starting an interpreter with all its imports takes longer than most scenarios.
"""

from __future__ import annotations

# Before anything else is imported, as gunicorn's gevent worker does.
from gevent import monkey

monkey.patch_all()

import os  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from importlib import import_module  # noqa: E402

import celery.backends.redis  # noqa: E402, F401
import gevent  # noqa: E402

import tasks.app  # noqa: E402, F401
from tests.gevent_scenarios.frontend_fixture import FrontendFixture  # noqa: E402
from tests.shards import inherit  # noqa: E402

# The unpatched ones: gevent's would start an event loop here, and every fork would inherit it.
_fork = monkey.get_original("os", "fork")
_waitpid = monkey.get_original("os", "waitpid")


def play(url: str, cluster: str, module: str, scenario: str) -> None:
    inherit(url, cluster)
    frontend = FrontendFixture(url)
    try:
        getattr(import_module(f"tests.gevent_scenarios.{module}"), scenario)(frontend)
    finally:
        frontend.close()


def in_the_fork(url: str, cluster: str, module: str, scenario: str, output: str) -> int:
    gevent.reinit()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        play(url, cluster, module, scenario)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    for line in sys.stdin:
        pid = _fork()
        if pid == 0:
            os._exit(in_the_fork(*line.split()))
        print(pid, flush=True)
        _, status = _waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
