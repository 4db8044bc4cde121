"""A virtual environment of its own for each rival, made on first use and again when its pins change."""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

RIVALS = Path(__file__).parent / "rivals"
VENVS = Path(__file__).parents[2] / "var" / "bench" / "venvs"


class VenvFailedError(Exception):
    """A rival's packages could not be installed; the text has the rival and the end of pip's output."""


def python_of(name: str, rivals: Path = RIVALS, venvs: Path = VENVS) -> Path:
    """The rival's own interpreter, with its `requirements.txt` installed."""
    requirements = rivals / name / "requirements.txt"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    folder = venvs / name
    stamp = folder / "requirements.sha256"
    if not (stamp.exists() and stamp.read_text() == wanted):
        logger.info("%s: making its virtual environment in %s (once)", name, folder)
        shutil.rmtree(folder, ignore_errors=True)
        _run(name, sys.executable, "-m", "venv", str(folder))
        _run(name, str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(requirements))
        # Written last, so that an interrupted installation is repeated.
        stamp.write_text(wanted)
    return folder / "bin" / "python"


def _run(name: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VenvFailedError(name, done.stderr[-2000:])


def pins_of(name: str, rivals: Path = RIVALS) -> str:
    """The pinned versions of the rival's `requirements.txt`, on one line."""
    return " ".join((rivals / name / "requirements.txt").read_text().split())
