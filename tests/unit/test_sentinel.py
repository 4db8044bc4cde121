"""Whom the sentinels name, from what each of them says; and what an error of Redis means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from config.locator import Address
from config.redis_errors import Meaning, meaning_of
from config.redis_url import Sentinels
from config.sentinel import Primary, PrimaryConnection, SentinelError
from tests.waiting import wait_until

HOSTS = (("s1", 26379), ("s2", 26379), ("s3", 26379))
OLD, NEW = ("10.0.0.1", 6379), ("10.0.0.2", 6379)


class Said(Primary):
    """Sentinels that say what the test says: an epoch and an address, None for an unknown name, or nothing at all."""

    def __init__(self, **said: tuple[int, Address] | None) -> None:
        super().__init__(Sentinels(HOSTS, "bunch"))
        self.said: Mapping[str, tuple[int, Address] | None] = said
        self.asked: list[str] = []

    def _ask_one(self, host: Address) -> tuple[int, Address] | None:
        self.asked.append(host[0])
        if host[0] not in self.said:
            raise RedisConnectionError("refused")
        return self.said[host[0]]


class Cuttable:
    peer = OLD
    is_cut = False

    def cut(self) -> None:
        self.is_cut = True


def test_the_latest_failover_counts_whoever_tells_of_it() -> None:
    assert Said(s1=(1, OLD), s2=(2, NEW), s3=(1, OLD)).ask() == NEW


def test_a_sentinel_that_is_cut_off_with_the_old_primary_is_not_believed_again() -> None:
    primary = Said(s1=(1, OLD), s2=(2, NEW), s3=(2, NEW))
    assert primary.ask() == NEW
    primary.said = {"s1": (1, OLD)}
    with pytest.raises(SentinelError, match="have not heard of the last failover"):
        primary.ask()
    assert primary.named == NEW


def test_sentinels_that_were_set_up_anew_are_believed_together() -> None:
    primary = Said(s1=(7, OLD), s2=(7, OLD), s3=(7, OLD))
    primary.ask()
    primary.said = {"s1": (0, NEW), "s2": (0, NEW)}
    assert primary.ask() == NEW


def test_a_silent_sentinel_is_left_to_the_watch() -> None:
    primary = Said(s2=(1, OLD), s3=(1, OLD))
    primary.ask()
    primary.asked.clear()
    primary.ask()
    assert primary.asked == ["s2", "s3"]
    primary.ask(everyone=True)
    assert primary.asked[2:] == ["s1", "s2", "s3"]


def test_an_answer_serves_those_who_connect_at_the_same_time_until_it_is_doubted() -> None:
    primary = Said(s1=(1, OLD), s2=(1, OLD), s3=(1, OLD))
    primary.address()
    primary._asked_at += 3600
    primary.address()
    assert len(primary.asked) == 3
    primary.doubt()
    primary.address()
    assert len(primary.asked) == 6


def test_nobody_is_named_without_sentinels_or_under_an_unknown_name() -> None:
    with pytest.raises(SentinelError, match="no sentinel answers"):
        Said().ask()
    with pytest.raises(SentinelError, match="no sentinel knows a primary named bunch"):
        Said(s1=None, s2=None, s3=None).ask()


def test_a_failover_cuts_the_connections_to_the_old_primary_and_no_other() -> None:
    primary = Said(s1=(1, OLD), s2=(1, OLD), s3=(1, OLD))
    primary._watching = True
    primary.ask()
    stale, fresh = Cuttable(), Cuttable()
    fresh.peer = NEW
    for each in (stale, fresh):
        primary.register(cast("PrimaryConnection", each))
    primary.ask()
    assert (stale.is_cut, primary.switches) == (False, 0)
    primary.said = dict.fromkeys(("s1", "s2", "s3"), (2, NEW))
    primary.ask()
    assert (stale.is_cut, fresh.is_cut, primary.switches) == (True, False, 1)


def test_the_watch_goes_on_after_an_error_that_nobody_has_thought_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("config.locator._WATCH_EVERY_S", 0.001)
    primary = Said(s1=(1, OLD), s2=(1, OLD), s3=(1, OLD))
    primary.ask()

    def broken(host: Address) -> tuple[int, Address]:
        primary._ask_one = lambda host: (2, NEW)  # type: ignore[method-assign]
        raise RuntimeError

    primary._ask_one = broken  # type: ignore[method-assign]
    stale = Cuttable()
    primary.register(cast("PrimaryConnection", stale))
    wait_until(lambda: stale.is_cut)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (RedisConnectionError("refused"), Meaning.ANEW),
        (RedisTimeoutError("slow"), Meaning.ANEW),
        (SentinelError("no sentinel answers"), Meaning.ANEW),
        (ConnectionResetError(104, "reset"), Meaning.ANEW),
        (ReadOnlyError("You can't write against a read only replica."), Meaning.ANEW),
        (ResponseError("ERR Error running script: @user_script: READONLY You can't write"), Meaning.ANEW),
        (ResponseError("UNBLOCKED force unblock from blocking operation"), Meaning.ANEW),
        (MovedError("3999 127.0.0.1:6381"), Meaning.ANEW),
        (AskError("3999 127.0.0.1:6381"), Meaning.LATER),
        (BusyLoadingError("loading"), Meaning.LATER),
        (MasterDownError("link down"), Meaning.LATER),
        (ClusterDownError("down"), Meaning.LATER),
        (TryAgainError("multiple keys"), Meaning.LATER),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), Meaning.FULL),
        (OutOfMemoryError("command not allowed"), Meaning.FULL),
        (ResponseError("MISCONF Errors writing to the AOF file"), Meaning.FULL),
        (NoScriptError("No matching script."), Meaning.SCRIPT),
        (NoPermissionError("no rights"), Meaning.NEVER),
        (ResponseError("WRONGTYPE Operation against a key"), Meaning.NEVER),
    ],
)
def test_each_error_of_a_failover_has_its_meaning(error: Exception, meaning: Meaning) -> None:
    assert meaning_of(error) is meaning
