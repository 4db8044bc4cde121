"""Rolling restarts as Kubernetes does them, under load: no request fails, and none is computed twice.

The long form (`make chaos`) has 20 restarts of each role under 300 requests a second.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.conftest import FAULTS
from tests.chaos.kubelet import Kubelet

pytest.importorskip("grpc", reason="needs requirements-grpc.txt")

from tests.chaos.traffic import Traffic

RESTARTS, RPS = (20, 300.0) if FAULTS else (2, 60.0)

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "roles", [("web",), ("worker",), ("grpc",)] if FAULTS else [("web", "worker", "grpc")], ids="-".join
)
def test_rolling_restarts_fail_nothing_and_compute_nothing_twice(
    kubelet: Kubelet, tmp_path: Path, roles: tuple[str, ...]
) -> None:
    kubelet.create_all("worker", "worker", "web", "grpc")
    with Traffic(kubelet, RPS) as traffic:
        traffic.more(20)
        for _ in range(RESTARTS):
            for role in roles:
                kubelet.replace(role)
                traffic.more(10)
    print(f"\n{RESTARTS} restarts of {', '.join(roles)}: {len(traffic.http.answers)} over HTTP, {dict(traffic.grpc)}")
    traffic.check(tmp_path / "written")
