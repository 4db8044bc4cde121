"""Each level of `BUNCH_DURABILITY` keeps what it promises to those who poll, when the server is killed.

The long form (`CHAOS_FAULTS`) kills four times as many servers of each level as there are faults.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.chaos.conftest import FAULTS, SEED
from tests.e2e.stack import ROOT

KILLS = 4 * FAULTS or 1

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60 + 10 * KILLS)]


@pytest.mark.parametrize("level", ["memory", "second", "disk", "replica"])
def test_a_killed_server_loses_what_its_level_says(level: str) -> None:
    command = [sys.executable, "-m", "tests.chaos.durability", level, str(KILLS), str(SEED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{level}: {found}")
    assert found["accepted"] > found["kills"]
    if level == "memory":
        assert found["lost"] == found["accepted"]
    if level in {"disk", "replica"}:
        assert found["lost"] == 0
