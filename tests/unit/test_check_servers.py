"""`check` on settings that are about servers; tests/integration/test_manage_py.py asks real ones."""

from __future__ import annotations

import pytest

from cli.run import check_servers
from cli.run.check_servers import server_warnings
from config.settings import Settings

SENTINELS = "sentinel://h1,h2/bunch/0"


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (Settings(redis_url=SENTINELS), True),
        (Settings(redis_url=SENTINELS, queue_timeout_ms=5000), False),
        (Settings(redis_url=SENTINELS, queue_timeout_ms=5000, free_queue_timeout_ms=4999), True),
        (Settings(redis_url=SENTINELS, failover_wait_ms=2000), False),
        (Settings(redis_url="redis://h/0"), False),
        (Settings(redis_url="cluster://h1,h2"), True),
    ],
)
def test_a_queue_that_gives_up_before_a_failover_ends_is_warned_of(
    settings: Settings, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None of them can be asked.
    monkeypatch.setattr(check_servers, "_servers", lambda settings: {})
    keys = [each.key for each in server_warnings(settings)]
    assert keys == (["BUNCH_QUEUE_TIMEOUT_MS"] if warned else [])
