"""Bunch as `pip install` leaves it: one wheel of this checkout, in a virtual environment of its own.

The environment sees the packages of the one that runs the tests by a `.pth` file, so nothing is downloaded. An
installation into an empty environment is in docs/deploy.md, with its times and sizes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from config.environ import ROOT

# What the wheel is made of.
SOURCES = ("bunch", "batching", "cli", "config", "tasks", "webapp", "workers")


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of its sources, so that no `build/` is left in the checkout."""
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, sources / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    _run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"),
        *("--wheel-dir", str(folder), str(sources)),
    )
    (wheel,) = folder.glob("bunch-*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install it into a new environment in `folder`; returns the folder of its programs."""
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = folder / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "beside.pth").write_text(sysconfig.get_path("purelib"))
    _run(
        *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"),
        *("--no-compile", "--disable-pip-version-check", str(wheel)),
    )
    return folder / "bin"


def _run(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BUNCH_", "PYTHON"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
