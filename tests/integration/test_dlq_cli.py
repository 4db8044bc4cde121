"""`manage.py dlq` over a private Valkey, and a replay that a real worker answers."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from celery import Celery
from click.testing import CliRunner, Result
from redis import Redis

from batching.claim.store import RedisBatchStore, Settled
from cli.commands import cli
from config.keys import Shard
from config.tiers import Tier
from tasks.protocol.messages import read_payload
from tasks.protocol.results import DeadLetter
from tests.fakes.messages import celery_message, our_message
from tests.integration.celery_harness import MOODY, ROOT, bunch_worker, close_client, plain_client, wait_for_models
from tests.shards import inherited_environment, redis_environment
from tests.valkey import PrivateValkey
from tests.waiting import PATIENCE_S, wait_until

KEYS = Shard()
MODELS = '[models.m]\nsource = "workers.models.echo:Echo"\n'


class Dlq:
    """`manage.py dlq …` with a bunch.toml of its own, in this process but for `as_process`."""

    def __init__(self, folder: Path, url: str) -> None:
        self._config = folder / "bunch.toml"
        self.configure(MODELS)
        self._environment = {
            **inherited_environment(),
            **redis_environment(url),
            "BUNCH_CONFIG": str(self._config),
        }

    def configure(self, models: str) -> None:
        self._config.write_text(models)

    def __call__(self, *arguments: str) -> Result:
        # click takes a variable that is None away for the time of the call.
        return CliRunner(env=dict.fromkeys(os.environ) | self._environment).invoke(cli, ["dlq", *arguments])

    def as_process(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), "dlq", *arguments],
            cwd=self._config.parent,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


@pytest.fixture
def dlq(tmp_path: Path, valkey: PrivateValkey) -> Dlq:
    return Dlq(tmp_path, valkey.url)


def bury(
    redis: Redis,
    task_id: str,
    message: bytes,
    *,
    model: str = "m",
    tier: Tier = Tier.PAID,
    reason: str = "the model raised",
) -> None:
    """Claim a message and give it up, as a worker does."""
    store = RedisBatchStore(redis, "w")
    redis.lpush(KEYS.queue(model, tier), message)
    store.claim(model, f"b-{task_id}", 1)
    record = DeadLetter(
        task_id, model, tier.value, reason, "ValueError", "Traceback: here", 3, 1, f"b-{task_id}", 7, 1e9
    )
    settled = Settled(1, task_id, 60_000, "", b'{"status":"FAILURE"}', msgspec.json.encode(record))
    assert store.finish(f"b-{task_id}", [settled], last=True)


def ids(redis: Redis) -> set[str]:
    return {raw.decode() for raw in redis.zrange(KEYS.dead(), 0, -1)}


def test_an_empty_queue_is_no_error(dlq: Dlq, redis: Redis) -> None:
    assert json.loads(dlq("list", "--json").stdout) == []
    assert "no dead letters" in dlq("list").stdout
    assert dlq("replay", "--all").exit_code == 0
    assert dlq("drop", "--all").exit_code == 0
    assert json.loads(dlq.as_process("list", "--json").stdout) == []


def test_list_has_what_the_contract_names_newest_first(dlq: Dlq, redis: Redis) -> None:
    bury(redis, "old", our_message("old", b"1"))
    bury(redis, "new", our_message("new", b"1", tier=Tier.FREE), tier=Tier.FREE)
    redis.zincrby(KEYS.dead(), 1000, "new")
    done = dlq("list", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == [
        {"id": name, "model": "m", "tier": tier, "reason": "the model raised", "attempts": 3, "failed_at": 1e9}
        for name, tier in (("new", "free"), ("old", "paid"))
    ]
    table = dlq("list").stdout
    assert table.index("new") < table.index("old")


@pytest.mark.parametrize("theirs", [False, True])
def test_show_prints_record_traceback_and_the_decoded_input(dlq: Dlq, redis: Redis, theirs: bool) -> None:
    input, parameters = {"text": "Grüße", "n": [1]}, {"top": 3}
    message = (
        celery_message([input], {"parameters": parameters}, task_id="t")
        if theirs
        else our_message("t", json.dumps(input).encode(), json.dumps(parameters).encode())
    )
    bury(redis, "t", message)
    text = dlq("show", "t").stdout
    for expected in ("the model raised", "Traceback: here", "Grüße", "top"):
        assert expected in text
    shown = json.loads(dlq("show", "t", "--json").stdout)
    assert (shown["input"], shown["parameters"], shown["traceback"]) == (input, parameters, "Traceback: here")
    assert (shown["id"], shown["lost"], shown["batch_id"]) == ("t", 1, "b-t")
    assert ids(redis) == {"t"}


def test_what_a_caller_wrote_cannot_steer_the_terminal(dlq: Dlq, redis: Redis) -> None:
    bury(redis, "t", b"{\x1b[2Jbroken")
    assert "\x1b" not in dlq("show", "t").stdout


def test_what_an_exception_quotes_is_neither_markup_nor_a_command_to_the_terminal(dlq: Dlq, redis: Redis) -> None:
    """One such letter made the whole list unreadable: rich stops at a tag that closes nothing."""
    bury(redis, "t", our_message("t", b"1"), reason="[red]x[/red] \x1b]0;title\x07 [/y]")
    done = dlq("list")
    assert done.exit_code == 0, done.stderr
    assert "[red]x[/red] �]0;title� [/y]" in done.stdout


def test_show_of_a_message_that_nobody_can_read(dlq: Dlq, redis: Redis) -> None:
    bury(redis, "t", b"{broken")
    assert json.loads(dlq("show", "t", "--json").stdout)["message"] == "{broken"
    assert "{broken" in dlq("show", "t").stdout


def test_unknown_ids_exit_with_1_and_are_named(dlq: Dlq, redis: Redis) -> None:
    bury(redis, "t", our_message("t", b"1"))
    assert dlq.as_process("show", "nobody").returncode == 1
    for command in ("show", "replay", "drop"):
        done = dlq(command, "nobody")
        assert done.exit_code == 1
        assert "nobody" in done.stderr
    # Those that are there are done all the same.
    done = dlq("drop", "nobody", "t", "--json")
    assert (done.exit_code, set(json.loads(done.stdout)["failed"])) == (1, {"nobody"})
    assert json.loads(done.stdout)["dropped"] == ["t"]
    assert ids(redis) == set()


@pytest.mark.parametrize(
    "arguments", [("replay",), ("drop",), ("replay", "x", "--all"), ("drop", "x", "--all"), ("show",)]
)
def test_which_ones_must_be_said_once(dlq: Dlq, redis: Redis, arguments: tuple[str, ...]) -> None:
    assert dlq(*arguments).exit_code == 2


def test_drop_forgets_those_named_or_all(dlq: Dlq, redis: Redis) -> None:
    for name in ("a", "b", "c"):
        bury(redis, name, our_message(name, b"1"))
    assert dlq("drop", "b").exit_code == 0
    assert ids(redis) == {"a", "c"}
    assert dlq("drop", "--all").exit_code == 0
    assert ids(redis) == set()
    assert not redis.keys(KEYS.dead() + "*")


def test_replay_of_all_queues_each_in_its_own_tier(dlq: Dlq, redis: Redis) -> None:
    bury(redis, "a", our_message("a", b"1", tier=Tier.ENTERPRISE), tier=Tier.ENTERPRISE)
    bury(redis, "b", our_message("b", b"1", tier=Tier.FREE), tier=Tier.FREE)
    done = dlq("replay", "--all", "--json")
    assert (done.exit_code, sorted(json.loads(done.stdout)["replayed"])) == (0, ["a", "b"])
    assert [redis.llen(name) for name in KEYS.queues("m")] == [1, 0, 1]
    assert ids(redis) == set()


def test_a_letter_of_a_model_that_is_not_served_stays(dlq: Dlq, redis: Redis) -> None:
    bury(redis, "a", our_message("a", b"1"))
    dlq.configure(MODELS.replace("models.m", "models.other"))
    done = dlq("replay", "a")
    assert done.exit_code == 1
    assert "bunch.toml" in done.stderr
    assert ids(redis) == {"a"}


@pytest.mark.parametrize("options", [{}, {"protocol": 1}, {"body_encoding": "utf-8"}, {"compression": "gzip"}])
@pytest.mark.parametrize("protocol", [1, 2])
def test_a_plain_clients_expiry_does_not_outlive_its_message(
    dlq: Dlq, redis: Redis, options: dict[str, object], protocol: int
) -> None:
    message = celery_message(["in"], task_id="t", expires=0.001, **{"protocol": protocol, **options})
    bury(redis, "t", message)
    dlq("replay", "t")
    claim = RedisBatchStore(redis, "w").claim("m", "again", 1)
    assert read_payload(claim.entries[0].message) == (b'"in"', b"{}")
    assert b'expires": "' not in claim.entries[0].message


@pytest.fixture
def client(valkey: PrivateValkey) -> Iterator[Celery]:
    app = plain_client(valkey.url)
    yield app
    close_client(app)


@pytest.fixture
def moody(tmp_path: Path, valkey: PrivateValkey, redis: Redis) -> Iterator[None]:
    worker = bunch_worker(tmp_path, valkey, MOODY).start()
    try:
        wait_for_models(redis, "moody")
        yield
    finally:
        worker.stop()


def test_a_replayed_request_is_answered_under_its_old_id(dlq: Dlq, redis: Redis, client: Celery, moody: None) -> None:
    dlq.configure(MOODY)
    result = client.send_task("bunch.infer", [{"fail": "not today"}], queue="bunch.moody.paid", expires=5)
    assert wait_until(result.ready, "the request is given up")
    assert result.state == "FAILURE"
    assert "not today" in dlq("show", result.id).stdout
    # What was wrong is mended: the input is another one by now.
    message = json.loads(redis.hget(KEYS.dead(result.id), "message"))
    message["body"] = base64.b64encode(json.dumps([["fine"], {}, {}]).encode()).decode()
    redis.hset(KEYS.dead(result.id), "message", json.dumps(message))
    wait_until(lambda: datetime.fromisoformat(message["headers"]["expires"]) < datetime.now(UTC), "it would expire")
    assert dlq("replay", result.id).exit_code == 0
    wait_until(lambda: client.AsyncResult(result.id).state == "SUCCESS", "the replay is answered")
    assert client.AsyncResult(result.id).get(timeout=PATIENCE_S) == {"echo": "fine", "batch": 1}
    assert ids(redis) == set()
