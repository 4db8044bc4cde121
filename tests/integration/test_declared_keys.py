"""Scripts touch the keys that they declare, and those that docs/architecture.md lists with a reason.

MONITOR tells of every command that the server runs: those of a script stand behind the call of it, which has the keys
that were declared. `COMMAND GETKEYS` says which keys a command touches.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs
from redis import Redis
from redis.exceptions import ResponseError

import batching.script_args
import tasks.script_args
from batching.blobs.reference import reference_to
from batching.blobs.store import RedisBlobs, Room
from batching.claim.priorities import PriorityLists
from batching.claim.registry import ModelThroughput, WorkerRegistry
from batching.claim.store import Blame, RedisBatchStore, Settled
from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Ok
from batching.scripts import LuaScript
from config.keys import Shard
from config.redis import Line, Script, dedicated_connection
from config.settings import ModelSettings, Settings
from config.tiers import Tier
from tasks.accounts.api_keys import ApiKey
from tasks.accounts.key_table import KeyTableStore
from tasks.accounts.ledger import LedgerStream, RowGroup
from tasks.callbacks.store import CallbackStore
from tasks.client.client import Client
from tasks.client.client_limit import ClientLimit
from tasks.client.dedup import DedupIdentity
from tasks.client.owner_numbers import OwnerNumbers
from tasks.client.resend import Recogniser
from tasks.client.versions import position
from tasks.fleet.dead_letters import DeadLetters
from tasks.observability.batch_log import BatchLog, BatchRecord
from tasks.observability.metrics import MetricsFlusher
from tasks.protocol.caller import Caller
from tasks.protocol.quota import Quota
from tasks.protocol.results import CeleryCodec, DeadLetter
from tests.fakes.door import MODEL, Door
from tests.fakes.messages import celery_message, our_message
from tests.integration.test_joined_traces import World
from tests.shards import places_of

KEYS = Shard()
CODEC = CeleryCodec(60_000)
SCRIPTS = {Script(each.text).sha: each for each in (*batching.script_args.ALL, *tasks.script_args.ALL)}
DOCS = Path(__file__).parents[2] / "docs/architecture.md"
_ROW = re.compile(r"^\| `(\w+)\.lua` \| `(\S+)` \| [^|]{20,} \|$", re.MULTILINE)
_LINE = re.compile(rb"[\d.]+ \[\d+ ([^]]+)\] (.*)", re.DOTALL)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)


@dataclass
class Call:
    """One run of a script."""

    script: LuaScript
    declared: set[str]
    commands: list[tuple[bytes, ...]] = field(default_factory=list)


class Monitor:
    """The commands that the scripts of a server run from now on."""

    def __init__(self, redis: Redis) -> None:
        self._redis = cast("Any", redis)
        self._connection = dedicated_connection(redis.connection_pool)
        self._connection.send_command("MONITOR")
        assert self._connection.read_response() == b"OK"

    def calls(self) -> list[Call]:
        self._redis.echo("the end")
        calls: list[Call] = []
        for source, words in self._lines():
            name = words[0].upper()
            if source != b"lua" and name == b"EVALSHA":
                count = int(words[2])
                calls.append(Call(SCRIPTS[words[1].decode()], {word.decode() for word in words[3 : 3 + count]}))
            elif source == b"lua":
                calls[-1].commands.append(words)
        self._connection.disconnect()
        # Of a script that the server did not know yet nothing was run.
        return [each for each in calls if each.commands]

    def keys_of(self, commands: list[tuple[bytes, ...]]) -> dict[tuple[bytes, ...], set[str]]:
        pipeline = self._redis.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command("COMMAND GETKEYS", *words)
        found = {}
        for words, keys in zip(commands, pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(keys, ResponseError):
                assert "no key arguments" in str(keys), words
            found[words] = set() if isinstance(keys, ResponseError) else set(keys)
        return found

    def _lines(self) -> Iterator[tuple[bytes, tuple[bytes, ...]]]:
        while True:
            source, rest = _LINE.fullmatch(self._connection.read_response()).groups()
            words = tuple(map(_unescaped, _WORD.findall(rest)))
            if words == (b"ECHO", b"the end"):
                return
            yield source, words


def _unescaped(word: bytes) -> bytes:
    return word.decode("latin-1").encode().decode("unicode_escape").encode("latin-1")


def test_the_monitor_sees_a_key_that_is_not_declared(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "redis.call('SET', KEYS[1], 'a \"b\"') return redis.call('MGET', KEYS[1], ARGV[1] .. '\\n\\\\\\1')"
    some = LuaScript("some")
    monkeypatch.setitem(SCRIPTS, Script(text).sha, some)
    monitor = Monitor(redis)
    redis.register_script(text)(keys=["declared"], args=["not"])
    (call,) = monitor.calls()
    assert (call.script, call.declared) == (some, {"declared"})
    touched = monitor.keys_of(call.commands)
    assert set.union(*touched.values()) == {"declared", "not\n\\\x01"}


def test_scripts_touch_no_key_but_those_that_they_declare_or_that_are_listed(redis: Redis) -> None:
    listed = set(_ROW.findall(DOCS.read_text(encoding="utf-8")))
    monitor = Monitor(redis)
    for drive in (
        submit,
        repeat,
        batches,
        dead_letters,
        pauses,
        joined,
        callers,
        registers,
        accounts,
        records,
        recognised,
        payloads,
    ):
        drive(redis)
    calls = monitor.calls()
    assert {call.script for call in calls} == set(SCRIPTS.values())

    keys_of = monitor.keys_of(list({words for call in calls for words in call.commands}))
    used, unlisted = set(), set()
    for call in calls:
        for name in set().union(*(keys_of[words] for words in call.commands)) - call.declared:
            row = next((row for row in listed if row[0] == call.script.name and fnmatchcase(name, row[1])), None)
            used.add(row)
            if row is None:
                unlisted.add((call.script.name, name))
    assert not unlisted
    assert used == listed, "a row that no script needs any more"


def submit(redis: Redis) -> None:
    WorkerRegistry(redis, 5.0).beat("w1", b"{}", {MODEL: ModelThroughput(2, 500.0, 0.02, 0.05)})
    quota = Quota.of("key", 6000, 100)
    for admission in ("drain", "off"):
        door = Door(redis, f"door-{admission}", admission=admission)
        named = structs.replace(door.request(Tier.PAID, quota), tracked=True, request_key=KEYS.request("mine"))
        assert door.flush([named, door.request(Tier.FREE), door.request(Tier.PAID, quota)]) == [None] * 3
        door.close()


def repeat(redis: Redis) -> None:
    """Under an Idempotency-Key: queued, repeated, expired and sent again."""
    door = Door(redis, "repeat")
    once = DedupIdentity(claim=KEYS.idempotency("hash"), fingerprint="ab")
    first = structs.replace(door.request(Tier.PAID), tracked=True, once=once)
    again = structs.replace(door.request(Tier.PAID), tracked=True, once=once)
    assert door.flush([first]) == [None]
    assert door.flush([again]) != [None]
    redis.set(KEYS.result(first.task_id), b'{"status":"FAILURE"}')
    assert door.flush([again]) != [None]
    door.close()


def batches(redis: Redis) -> None:
    store = RedisBatchStore(redis, "w1")
    redis.lpush(KEYS.queue(MODEL, Tier.PAID), celery_message([1]))
    store.peek({MODEL: frozenset()})
    store.look(MODEL)
    claim = store.claim(MODEL, "b1", 4)
    assert store.claim(MODEL, "b1", 4).entries == claim.entries
    assert store.give_back(MODEL, "b1", Blame.ATTEMPT) == len(claim.entries)
    claim = store.claim(MODEL, "b2", 64)
    outcomes = [
        Settled(each.position, f"id{each.position}", 1000, "bunch:reply:x", b"{}", foreign=each.position == 1)
        for each in claim.entries
    ]
    assert store.finish("b2", outcomes, last=True)


def dead_letters(redis: Redis) -> None:
    redis.lpush(KEYS.queue(MODEL, Tier.PAID), our_message("dead", b"1"))
    store = RedisBatchStore(redis, "w1")
    claim = store.claim(MODEL, "b3", 64)
    record = DeadLetter("dead", MODEL, "paid", "died", "InferenceFailed", "", 2, 1, "b3", 0, 0.0)
    letter = Settled(len(claim.entries), "dead", 1000, "", b"{}", msgspec.json.encode(record))
    assert store.finish("b3", [letter], last=True)
    assert DeadLetters(places_of(redis)).replay("dead", 30.0, 60.0)


def payloads(redis: Redis) -> None:
    blobs = RedisBlobs(redis, room=Room(max_kept_bytes=8))
    for name in ("payload-1", "payload-2"):
        blobs.put(reference_to(name, b"12345", "bytes"), b"12345", 60_000)
        assert blobs.extend(name, 60_000, keep=True)
    assert blobs.usage() == (1, 5, 5)
    blobs.put(reference_to("payload-3", b"12345", "bytes"), b"12345", 1)
    time.sleep(0.002)
    assert blobs.extend("payload-2", 60_000, keep=False)
    assert not blobs.extend("payload-3", 60_000, keep=False)
    assert blobs.release(["payload-2"]) == 1
    blobs.close()


def pauses(redis: Redis) -> None:
    store = RedisBatchStore(redis, "w1")
    claim = store.claim(MODEL, "b4", 64)
    assert store.put_aside(MODEL, "b4", [(each.position, 0) for each in claim.entries], last=True)
    assert store.look(MODEL).depth


def joined(redis: Redis) -> None:
    """The same questions in any order, and one whose answer is kept."""
    redis.flushdb()
    for seed in range(3):
        world = World(redis, seed)
        world.play()
        world.door.close()
    door, store = Door(redis, "kept"), RedisBatchStore(redis, "w1")
    asked = DedupIdentity(question=f"{9:064x}", keep_ms=60_000)
    requests = [structs.replace(door.request(Tier.PAID), once=asked, tracked=True) for _ in range(2)]
    assert door.flush(requests[:1]) == [None]
    claim = store.claim(MODEL, "b5", 64)
    info = BatchInfo("b5", MODEL, "1", 1, Reason.IDLE, claim.view.now_ms, 0.001)
    assert store.finish("b5", [CODEC.encode(CODEC.decode(claim.entries[0]), Ok(b"1"), info)], last=True)
    assert door.flush(requests[1:]) == [None]
    assert redis.keys(KEYS.cached("*"))
    door.close()


def callers(redis: Redis) -> None:
    model = ModelSettings(name=MODEL, source="tests:Nothing")
    settings = Settings(models={MODEL: model}, default_model=MODEL, client_rpm=60)
    client = Client(settings, redis)
    caller = Caller("key", "owner", Tier.PAID, 60, 1)
    client.charge(caller)
    redis.set(KEYS.result("t1"), b'{"status":"PENDING","result":null}')
    assert client.cancel("t1") == "PENDING"
    assert client._take_back(["t2", "t3"])
    assert ClientLimit(settings, redis).refusal("owner", "phone") is None
    assert OwnerNumbers(redis).position("m", "owner") == position(0)
    callbacks = CallbackStore(places_of(redis))
    callbacks.owe("t4", "https://hooks.example/", MODEL, Tier.PAID, 1.0, 0.0)
    callbacks.finished("t4")
    assert callbacks.take(1, 1.0).ids == ["t4"]


def registers(redis: Redis) -> None:
    registry = WorkerRegistry(redis, 5.0)
    registry.beat("w2", b"{}", {MODEL: ModelThroughput(1)})
    assert registry.deregister("w2")
    redis.lpush(KEYS.priorities(KEYS.queue(MODEL, Tier.PAID))[0], celery_message([1]))
    assert PriorityLists(redis).gather([MODEL]) == 1


def accounts(redis: Redis) -> None:
    key = ApiKey(id="key", digest=b"x" * 32, owner="owner", tier=Tier.PAID)
    assert KeyTableStore(redis).publish("db:1", [key])
    stream = LedgerStream(redis)
    assert stream.add([RowGroup(["t"], [1], "owner", "paid", MODEL, "SUCCESS", 2, 1)])
    stream.forget(stream.oldest(10))


def records(redis: Redis) -> None:
    BatchLog(redis).write([BatchRecord(model=MODEL)])
    MetricsFlusher(redis).flush()


def recognised(redis: Redis) -> None:
    """A request that waits for another one, one in a lease, and one that is lost."""
    store = RedisBatchStore(redis, "w1")
    redis.lpush(KEYS.queue(MODEL, Tier.PAID), our_message("leased", b"1"))
    assert store.claim(MODEL, "recognised", 64).entries
    door = Door(redis, "recognised")
    lost = structs.replace(door.request(Tier.PAID), once=DedupIdentity(question="q"))
    assert Recogniser(Line(redis), KEYS).lost([lost]) == [True]
    door.close()
