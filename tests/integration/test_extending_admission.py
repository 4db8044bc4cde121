"""The admission rule of docs/extending.md works: its lines are taken from the page, and refuse at a real door."""

from __future__ import annotations

import shutil
from dataclasses import replace
from enum import Enum
from pathlib import Path

import pytest
from redis import Redis

from batching.policy import Shed
from config.tiers import Tier
from tasks.client import admission_codes
from tasks.errors import ServiceOverloaded
from tasks.script_args import SUBMIT
from tests.fakes.door import Door, reasons
from tests.unit.test_extending import CODE, run

PLACES = {
    "calm_of": "local function calm_of(flush, class, deadline, queue_limit)\n",
    "refusal": "    local rank, fleet_known",
}


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's rule, in a copy of the script."""
    folder = shutil.copytree(SUBMIT.folder, tmp_path / "lua")
    script = folder / "judge.lua"
    text = script.read_text()
    for name, place in PLACES.items():
        before, anchor, after = text.partition(place)
        line, end, rest = (anchor + after).partition("\n")
        text = before + line + end + CODE[name] + rest
    script.write_text(text)

    status = run("status")["STATUS"]
    monkeypatch.setattr("tasks.client.admission_args.SUBMIT", replace(SUBMIT, folder=folder, codes=(status,)))
    monkeypatch.setattr(admission_codes, "_BY_BYTE", {ord(each.code): each for each in status})
    monkeypatch.setattr(
        admission_codes, "Shed", Enum("Shed", {each.name: each.value for each in Shed} | {"CROWD": "crowd"})
    )


def test_a_rule_from_outside_refuses_under_its_own_name(redis: Redis, registered: None) -> None:
    door = Door(redis)
    try:
        assert reasons(door.send(Tier.PAID, 3)) == [""] * 3
        told = door.send(Tier.FREE, 3)
        assert reasons(told) == ["", "crowd", "crowd"]
        assert isinstance(told[1], ServiceOverloaded)
        assert (str(told[1]), told[1].retry_after_s) == ("one at a time, please", 1.0)
    finally:
        door.close()
    assert redis.llen("bunch.m.free") == 1


def test_a_rule_that_is_not_registered_refuses_nobody(redis: Redis) -> None:
    door = Door(redis)
    assert reasons(door.send(Tier.FREE, 3)) == [""] * 3
    door.close()
