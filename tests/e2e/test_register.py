"""Every process of a stack is in the register, and a file that says something else is told apart."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.client import Api
from tests.e2e.stack import Stack
from tests.waiting import wait_until


def test_every_role_is_there_with_what_it_uses(api: Api, stack: Stack) -> None:
    def listed() -> list[dict[str, object]]:
        return list(json.loads(stack.manage("workers", "--all", "--json").stdout))

    def all_have_reported() -> bool:
        rows = listed()
        by_role = {role: [row for row in rows if row["role"] == role] for role in ("web", "worker", "ops")}
        workers = json.loads(stack.manage("workers", "--json").stdout)
        return (
            {row["pid"] for row in by_role["web"]} == {each.pid for each in stack.frontends()}
            and {row["name"] for row in by_role["worker"]} == {row["node"] for row in workers}
            and len(by_role["ops"]) == 1
        )

    wait_until(all_have_reported, what="all have reported, and nobody else")
    rows = listed()
    assert len({json.dumps(row["models"]) for row in rows}) == 1
    people = stack.manage("workers", "--all").stdout
    assert "ops" in people
    assert "configured differently" not in people
    roles = ("web", "worker", "ops", "executor")
    wait_until(
        lambda: all(f'role="{role}"' in api.get("/metrics").body.decode() for role in roles), what="all are measured"
    )
    text = api.get("/metrics").body.decode()
    for name in ("redis_memory_used_bytes", "process_cpu_seconds_total", "process_open_fds", "build_info"):
        assert f"bunch_{name}" in text, name
    workers = json.loads(stack.manage("workers", "--json").stdout)
    assert {"device", "in_flight"} <= workers[0]["models"][0].keys()
    assert "degraded" in workers[0]


def test_a_file_that_says_something_else_is_told_apart(stack: Stack, tmp_path: Path) -> None:
    other = tmp_path / "bunch.toml"
    text = stack.config_file.read_text()
    assert "item_ms = 0.1" in text
    other.write_text(text.replace("item_ms = 0.1", "item_ms = 0.2"))
    same = json.loads(stack.manage("check", "--json", "--config", str(stack.config_file)).stdout)
    differs = json.loads(stack.manage("check", "--json", "--config", str(other)).stdout)
    said = [each for each in differs["warnings"] if "configured differently" in json.dumps(each)]
    assert len(said) == 1
    assert "simulated is configured differently" in json.dumps(said)
    assert "on this file" in json.dumps(said)
    assert "configured differently" not in json.dumps(same["warnings"])
