"""An executor's child whose parent is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.e2e.stack import ROOT
from tests.processes import alive
from tests.waiting import wait_until

PARENT = """
    import json, sys, threading
    from pathlib import Path
    from batching.request import Work
    from config.settings import ModelSettings
    from workers.executor.process_executor import ProcessExecutor

    with open({runs!r}, "a") as file:
        file.write("main\\n")
    executor = ProcessExecutor(ModelSettings(name="m", source="tests.fakes.models:Puppet"), 0)
    executor.start()
    assert executor.wait_ready(30)
    executor.send(Work("a", [json.dumps({{"do": "hold", "path": {gate!r}}}).encode()], [b"{{}}"]))
    print(executor.pid, flush=True)
    threading.Event().wait()
"""


def test_the_child_dies_with_its_parent_and_never_runs_its_main(tmp_path: Path) -> None:
    script, runs, gate = tmp_path / "main.py", tmp_path / "runs", tmp_path / "gate"
    script.write_text(textwrap.dedent(PARENT.format(runs=str(runs), gate=str(gate))))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            wait_until(lambda: gate.with_suffix(".begun").exists(), what="it is inside a batch")
            assert alive(pid)
        finally:
            parent.kill()
    # It was inside a batch: it could not have noticed the end of the pipe.
    wait_until(lambda: not alive(pid), what="the child is dead")
    assert runs.read_text() == "main\n"
