"""Completion in a real bash, in a folder and a shell that know nothing of the checkout's environment."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from config.environ import ROOT

BARE_PATH = "/usr/local/bin:/usr/bin:/bin"
COMPLETE = """
source <({manage} completion bash)
spec=$(complete -p manage.py)
COMP_WORDS=({words})
COMP_CWORD={index}
function=$(sed -E 's/.*-F ([^ ]+).*/\\1/' <<< "$spec")
"$function" {manage} && printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def completed(tmp_path: Path):
    if shutil.which("python3", path=BARE_PATH) is None:
        pytest.skip("no python3 outside of the environment, which ./manage.py looks for first")

    def run(words: str) -> list[str]:
        index = len(words.split(" ")) - 1
        script = COMPLETE.format(manage=ROOT / "manage.py", words=words, index=index)
        done = subprocess.run(
            ["bash", "--norc", "-c", script],
            cwd=tmp_path, env={"PATH": BARE_PATH, "HOME": str(tmp_path)},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


def test_commands_are_completed(completed) -> None:
    assert completed("manage.py res") == ["reset", "resume"]


def test_options_are_completed(completed) -> None:
    assert "--web-workers" in completed("manage.py up --w")


def test_models_are_those_of_the_file_that_is_there(completed, tmp_path: Path) -> None:
    (tmp_path / "bunch.toml").write_text('[models.penguin]\nsource = "workers.models.echo:Echo"\n')
    assert completed("manage.py pause pen") == ["penguin"]
