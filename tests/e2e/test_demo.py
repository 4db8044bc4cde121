"""The main job on real input: 200 sentences at once, through the real model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shards import inherited_environment

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_shows_what_batching_is_worth(tmp_path: Path) -> None:
    environment = inherited_environment()
    done = subprocess.run(
        [sys.executable, "manage.py", "demo"],
        cwd=ROOT,
        env=environment | {"BUNCH_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        name: [float(number.replace(",", "")) for number in re.findall(r"[\d,.]+", rest)]
        for name, rest in re.findall(r"^(one at a time|batched) +(.+)$", done.stdout, re.MULTILINE)
    }
    # requests, requests/s, p50, p95, p99, mean batch
    single, batched = rows["one at a time"], rows["batched"]
    assert single[5] == 1.0
    assert batched[5] > 8
    assert "    0.51  The striker scored twice before half time." in done.stdout
    # Its state folder was its own, and is gone.
    assert list(tmp_path.iterdir()) == []
