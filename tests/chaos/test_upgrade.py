"""A rolling upgrade: both versions side by side on one Redis, under load.

The version before is the last tag, or the commit that `UPGRADE_FROM` names. Without a tag it is the first commit whose
leases this version reads (ADR 0063). It runs with the packages of this one.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.chaos.kubelet import Kubelet
from tests.e2e.stack import ROOT

pytest.importorskip("grpc", reason="needs requirements-grpc.txt")

from tests.chaos.traffic import Traffic

_WITHOUT_A_TAG = "9e4cb26"
_RPS = 60.0

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The checkout of the version before."""
    tag = _git("describe", "--tags", "--abbrev=0", "HEAD^").stdout.decode().strip()
    commit = os.environ.get("UPGRADE_FROM") or tag or _WITHOUT_A_TAG
    archive = _git("archive", "--format=tar", commit)
    if archive.returncode != 0:
        pytest.skip(f"no upgrade was tried: this clone has no commit {commit}; fetch it, or set UPGRADE_FROM")
    folder = tmp_path / "before"
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def test_an_upgrade_in_any_order_and_back_fails_nothing(kubelet: Kubelet, before: Path, tmp_path: Path) -> None:
    kubelet.root = before
    kubelet.create_all("worker", "worker", "web", "grpc")
    with Traffic(kubelet, _RPS) as traffic:
        traffic.more(20)
        steps = [
            # New frontends in front of old workers, then of both, then of new ones.
            *((ROOT, role) for role in ("web", "grpc", "worker", "worker")),
            # Old frontends in front of new workers, as in an upgrade in the other order, and while it is taken back.
            *((before, role) for role in ("web", "grpc", "worker", "worker")),
        ]
        for root, role in steps:
            kubelet.root = root
            kubelet.replace(role)
            traffic.more(20)
    print(f"\n{len(steps)} steps: {len(traffic.http.answers)} over HTTP, {dict(traffic.grpc)}")
    traffic.check(tmp_path / "written")
