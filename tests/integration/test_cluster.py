"""`cluster://` with a real cluster: who is connected to what, while slots move and nodes are lost."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from redis import Redis
from redis.exceptions import AskError, MovedError, RedisError, ResponseError, TryAgainError

from batching.claim.bell import Bell
from config.cluster import ShardConnection, slots_of
from config.keys import Shard
from config.locator import failovers_of
from config.redis import Call, Line, Script, connect, dedicated_connection
from config.redis_errors import Meaning, meaning_of
from config.redis_url import cluster_of
from config.settings import Settings
from config.shards import open_places
from config.tracked_line import TrackedLine
from tests.clusters import Clustered, Mover
from tests.waiting import PATIENCE_S, wait_until

TAG = "{s3}"
# Writes, and then reads a key that it has not declared.
HALF = "redis.call('INCR', KEYS[1]) return redis.call('GET', ARGV[1])"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Clustered]:
    each = Clustered(replicas=True)
    try:
        yield each.start()
    finally:
        each.stop()


@pytest.fixture
def redis(nodes: Clustered) -> Iterator[Redis]:
    wait_until(nodes.is_whole, what="the cluster is whole")
    with connect(nodes.url, shard_tag=TAG) as client:
        # Of its own words, `FLUSHALL` has none for a cluster.
        for key in client.scan_iter(match=f"*{TAG}", count=1000):
            client.delete(key)
        yield client


def elsewhere(nodes: Clustered) -> int:
    """A primary that does not have the shard."""
    owner = nodes.owner(TAG)
    return next(number for number in range(len(nodes.ports)) if nodes.role(number)[0] == b"master" and number != owner)


class Load:
    """Increments a counter again and again over one line, as a frontend or a worker would: what has not run, or may run
    again, is repeated. `seen` has the errors that it met.
    """

    def __init__(self, redis: Redis) -> None:
        self._line = Line(redis)
        # As our own scripts: an id makes it safe to send it again.
        self._script = Script(
            "if redis.call('SET', KEYS[2], 1, 'NX', 'EX', 60) then redis.call('INCR', KEYS[1]) end return 1"
        )
        self.done = 0
        self.failed: list[Exception] = []
        self.seen: set[type[Exception]] = set()
        self.longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._line.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            while not self._once():
                time.sleep(0.01)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.done += 1

    def _once(self) -> bool:
        try:
            self._line.script(self._script, [f"count{TAG}", f"done:{self.done}{TAG}"], [])
        except (RedisError, OSError) as error:
            self.seen.add(type(error))
            if meaning_of(error) not in {Meaning.ANEW, Meaning.LATER}:
                self.failed.append(error)
                return True
            return False
        return True

    def wait_for_more(self, count: int = 20) -> None:
        until = self.done + count
        wait_until(lambda: self.done >= until or self.failed, what="the load goes on")


def test_each_shard_is_served_by_the_node_that_has_its_slot(nodes: Clustered) -> None:
    places = open_places(Settings(redis_url=nodes.url, broker_url="redis://127.0.0.1:1/0"))
    script = Script("redis.call('SET', KEYS[1], #KEYS) return redis.call('GET', KEYS[1])")
    served = set()
    for place in places.shards:
        key = place.keys.bell("m")
        # Scripts know nothing of the key more that they get.
        assert Line(place.redis).script(script, [key], []) == b"1"
        call = Call(script, [key], [])
        line = Line(place.redis)
        assert [line.again(call), line.again(call)] == [b"1", b"1"]
        assert place.redis.register_script(script.source)(keys=[key]) == b"1"
        pipeline = place.redis.pipeline()
        pipeline.register_script(script.source)  # type: ignore[attr-defined]
        pipeline.get(key)
        pipeline.delete(key)
        assert pipeline.execute() == [b"1", 1]
        connection = dedicated_connection(place.redis.connection_pool)
        assert isinstance(connection, ShardConnection)
        assert nodes.number_of(connection.port) == nodes.owner(place.keys.tag)
        served.add(connection.port)
        connection.disconnect()
        place.redis.close()
    assert len(served) == 3


def test_a_replica_is_never_asked_for_a_shard(nodes: Clustered, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    named = cluster_of(nodes.url)
    assert named is not None
    slots, owner = slots_of(named), nodes.owner(TAG)
    replica = next(n for n in range(6) if nodes.role(n)[0] == b"slave" and nodes.role(n)[2] == nodes.ports[owner])
    told: list[int] = []
    there = ("127.0.0.1", nodes.ports[replica])
    monkeypatch.setattr(slots, "address", lambda slot: told.append(slot) or there)
    # Else the watch, which asks twice a second, may cut the connection before the replica has said anything.
    monkeypatch.setattr(slots, "named", lambda slot: there)
    with pytest.raises(MovedError):
        dedicated_connection(redis.connection_pool)
    assert told
    monkeypatch.undo()
    dedicated_connection(redis.connection_pool).disconnect()


def test_what_is_published_for_a_shard_is_heard_on_it(nodes: Clustered, redis: Redis) -> None:
    keys = Shard(TAG)
    feed = dedicated_connection(redis.connection_pool)
    feed.send_command("SSUBSCRIBE", keys.revoked_channel(), keys.reply_channel("f"))
    assert [feed.read_response()[0], feed.read_response()[0]] == [b"ssubscribe"] * 2
    assert Line(redis).script(Script("return redis.call('SPUBLISH', KEYS[1], 'x')"), [keys.revoked_channel()], []) == 1
    assert feed.read_response() == [b"smessage", keys.revoked_channel().encode(), b"x"]
    nodes.move(TAG, elsewhere(nodes))
    # Whoever listens is told, or cut off.
    wait_until(lambda: not still_listens(feed), what="it has been told")
    feed.disconnect()


def still_listens(feed: Any) -> bool:
    try:
        return bool(feed.read_response()[0] != b"sunsubscribe")
    except RedisError:
        return False


def test_a_line_is_told_of_changes_by_the_node_that_has_the_shard(nodes: Clustered, redis: Redis) -> None:
    line = TrackedLine(redis)
    for value in ("1", "2"):
        line.heard()
        line.command("GET", f"told{TAG}")
        redis.set(f"told{TAG}", value)
        wait_until(lambda: line.fileno is not None and readable(line.fileno), what="the change is announced")
        line.heard()
        # The next command opens another connection, and tracks on that.
        nodes.move(TAG, elsewhere(nodes))
    line.close()


def readable(fileno: int) -> bool:
    return bool(select.select([fileno], [], [], 0)[0])


def test_while_a_slot_is_moved_key_by_key_each_command_runs_once_or_says_why_not(
    nodes: Clustered, redis: Redis
) -> None:
    line = Line(redis)
    half, pair = Script(HALF), [f"n{TAG}"]
    redis.set(f"n{TAG}", 5)
    mover = Mover(nodes, TAG, elsewhere(nodes))
    mover.begin()
    # What a script of several keys would do there: it fails in its midst.
    with pytest.raises(ResponseError, match="non local key"):
        redis.eval(HALF, 1, f"n{TAG}", f"missing{TAG}")
    assert redis.get(f"n{TAG}") == b"6"
    for run in (lambda: line.script(half, pair, [f"missing{TAG}"]), lambda: line.again(Call(half, pair, ["-"]))):
        with pytest.raises(TryAgainError):
            run()
    with pytest.raises(TryAgainError):
        redis.register_script(HALF)(keys=pair, args=[f"missing{TAG}"])
    # A missing key is asked for, and written, where the slot goes.
    assert (line.command("GET", f"new{TAG}"), line.command("SET", f"new{TAG}", 1), redis.get(f"new{TAG}")) == (
        None,
        b"OK",
        b"1",
    )
    with pytest.raises(AskError):
        redis.pipeline(transaction=False).get(f"new{TAG}").get(f"n{TAG}").execute()
    assert mover.move_keys() == 1
    mover.end()
    assert [line.script(half, pair, [f"new{TAG}"]), redis.mget(f"n{TAG}", f"new{TAG}")] == [b"1", [b"7", b"1"]]


def test_a_slot_that_is_moved_key_by_key_under_load_fails_nothing(nodes: Clustered, redis: Redis) -> None:
    with Load(redis) as load:
        load.wait_for_more()
        for _ in range(3):
            mover = Mover(nodes, TAG, elsewhere(nodes))
            mover.begin()
            # Plain calls wait for it, and are answered.
            assert redis.exists(f"count{TAG}") == 1
            wait_until(lambda: TryAgainError in load.seen, what="a script had to wait")
            mover.move_keys()
            mover.end()
            load.wait_for_more()
    assert load.failed == []
    assert redis.get(f"count{TAG}") == str(load.done).encode()


def test_a_slot_that_is_moved_at_once_under_load_fails_nothing(nodes: Clustered, redis: Redis) -> None:
    before = failovers_of(redis)
    with Load(redis) as load:
        for _ in range(4):
            load.wait_for_more()
            nodes.move(TAG, elsewhere(nodes))
        load.wait_for_more()
    assert load.failed == []
    assert TryAgainError not in load.seen
    assert redis.get(f"count{TAG}") == str(load.done).encode()
    wait_until(lambda: failovers_of(redis) >= before + 4, what="each move was seen")


def test_a_bell_that_waits_while_its_slot_moves_rings_on_the_new_node(nodes: Clustered, redis: Redis) -> None:
    bell, key = Bell(redis), Shard(TAG).bell("m")
    rung: list[str | None] = []
    errors: list[Meaning] = []

    def wait() -> None:
        while not rung or rung[-1] is None:
            try:
                rung.append(bell.wait([key], 0.5, ask_s=1.0))
            except RedisError as error:
                errors.append(meaning_of(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    nodes.move(TAG, elsewhere(nodes))
    # The connections to the old node are cut at any moment from now on; a line repeats what met that.
    Line(redis).command("LPUSH", key, "x")
    waiting.join(PATIENCE_S)
    assert rung[-1] == key
    assert {*errors} <= {Meaning.ANEW}
    bell.close()


def test_a_forked_process_has_connections_and_a_watch_of_its_own(nodes: Clustered, redis: Redis) -> None:
    redis.set(f"n{TAG}", 1)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        # Its line is open while the slot moves, and it learns of that by itself.
        line = Line(redis)
        value, before = line.command("GET", f"n{TAG}"), failovers_of(redis)
        os.write(writing, value)
        wait_until(lambda: failovers_of(redis) > before)
        os.write(writing, line.command("INCR", f"n{TAG}").to_bytes(1, "big"))
        os._exit(0)
    try:
        assert os.read(reading, 1) == b"1"
        nodes.move(TAG, elsewhere(nodes))
        assert os.read(reading, 1) == b"\x02"
        # The watch of this process may cut the connection to the old node only now; a line repeats what meets that.
        assert Line(redis).command("GET", f"n{TAG}") == b"2"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def stopped(nodes: Clustered, number: int) -> Callable[[], object]:
    nodes.signal(number, signal.SIGSTOP)
    return lambda: nodes.signal(number, signal.SIGCONT)


def killed(nodes: Clustered, number: int) -> Callable[[], object]:
    nodes.kill(number)
    return lambda: nodes.run(number)


def planned(nodes: Clustered, number: int) -> Callable[[], object]:
    nodes.fail_over(number)
    return lambda: None


def cut_off(nodes: Clustered, number: int) -> Callable[[], object]:
    """It and the others disagree about who has its slots, until it finds itself alone."""
    nodes.cut_off(number)
    return lambda: nodes.join(number)


@pytest.mark.parametrize("lose", [planned, cut_off, stopped, killed])
def test_a_primary_that_is_replaced_is_left_and_nothing_fails(
    nodes: Clustered, redis: Redis, lose: Callable[[Clustered, int], Callable[[], object]]
) -> None:
    before = failovers_of(redis)
    with connect(nodes.url, shard_tag=TAG, timeout_s=240.0) as patient, Load(patient) as load:
        load.wait_for_more()
        old = nodes.owner(TAG)
        come_back = lose(nodes, old)
        try:
            # Nothing but the watch could end a wait for a node that hangs.
            wait_until(lambda: nodes.owner(TAG) != old, what="another node has the shard")
            load.wait_for_more(50)
            assert load.longest_s < 180
        finally:
            come_back()
        # It comes back as a primary, and nobody goes there.
        load.wait_for_more(50)
        wait_until(nodes.is_whole, what="the old primary follows")
    assert load.failed == []
    assert failovers_of(redis) > before
    count: Any = redis.get(f"count{TAG}")
    # Replication is asynchronous: what the old one had and the new one had not is gone.
    lost = load.done - int(count)
    assert lost == 0 if lose is planned else lost < 100
