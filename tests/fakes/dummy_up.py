"""`up` with a real Valkey and stand-ins for everything else: python -m tests.fakes.dummy_up STATE_DIR NAME=OPTIONS…

The stand-ins are web, worker1, ops and flower; `worker1=--deaf` gives options to one of them.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

from cli.supervisor.backoff import Backoff
from cli.supervisor.embedded_valkey import EmbeddedValkey
from cli.supervisor.errors import SupervisorError
from cli.supervisor.ports import free_port
from cli.supervisor.probes import Look, answers_ping
from cli.supervisor.reaper.reaper_client import Reaper
from cli.supervisor.run import run
from cli.supervisor.screen import Screen
from cli.supervisor.state import ProcessRow, UpLock, UpState, wanted
from cli.supervisor.supervised_process import ProcessSpec
from cli.supervisor.supervisor import Report, Supervisor
from config.redis import connect

_STOP_STAGES = {"web": 0, "worker1": 1, "ops": 2, "flower": 3}
_CHILD = Path(__file__).with_name("dummy_child.py")


class DummyStack:
    def __init__(self, state_dir: Path, options: dict[str, str]) -> None:
        self.state_dir = state_dir
        self.valkey = EmbeddedValkey(state_dir, free_port())
        self._options = options

    def supervisor(self, reaper: Reaper, report: Report) -> Supervisor:
        (self.state_dir / "log").mkdir(parents=True, exist_ok=True)
        dummies = [self._dummy(name, stage) for name, stage in _STOP_STAGES.items()]
        valkey = replace(
            dummies[0],
            name="valkey",
            role="redis",
            command=self.valkey.prepare(),
            log_file=self.state_dir / "log" / "valkey.log",
            start_stage=0,
            stop_stage=9,
            probe=answers_ping(connect(self.valkey.data_url, timeout_s=0.5)),
            hasty_signal=signal.SIGTERM,
        )
        return Supervisor([valkey, *dummies], reaper, report, backoff=Backoff(first_s=0.1, limit_s=0.4))

    def follow(self, supervisor: Supervisor, now: float) -> None:
        number = wanted(self.state_dir).get("")
        if number is not None:
            supervisor.resize("worker", [self._dummy(f"worker{n}", 1) for n in range(1, number + 1)], now)

    def state(self, supervisor: Supervisor) -> UpState:
        rows = (ProcessRow(each.spec.role, each.pid, each.state.value, each.restarts) for each in supervisor.children)
        address = self.valkey.tcp_url
        return UpState(processes=tuple(rows), url="http://dummy", redis_url=address, broker_url=address)

    def _dummy(self, name: str, stop_stage: int) -> ProcessSpec:
        record = self.state_dir / "record.txt"

        def has_started(pid: int) -> Look:
            return Look(ready=record.exists() and f"{name} started {pid}" in record.read_text().splitlines())

        return ProcessSpec(
            name=name,
            role=name.rstrip("0123456789"),
            command=(sys.executable, str(_CHILD), name, str(record), *shlex.split(self._options.get(name, ""))),
            environment=dict(os.environ),
            log_file=self.state_dir / "log" / f"{name}.log",
            start_stage=1,
            stop_stage=stop_stage,
            stop_timeout_s=60.0,
            probe=has_started,
        )


def main(state_dir: str, *options: str) -> None:
    folder = Path(state_dir)
    try:
        with UpLock(folder):
            stack = DummyStack(folder, dict(each.split("=", 1) for each in options))
            screen = Screen(sys.stdout)
            run(stack, screen, lambda: screen.line("ready"))
    except SupervisorError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
