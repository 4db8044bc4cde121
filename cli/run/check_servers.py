"""Checks of `check` for the Redis or Valkey servers of the settings, and for the rights of their user."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cli.base import CLUSTER, without_credentials
from config.errors import Problem
from config.keys import SEPARATOR, Shard
from config.redis_url import cluster_of, is_cluster, node_url, sentinels_of
from config.secrets.masking import PERCENT, masked_url
from config.secrets.message_keys import fingerprint, message_keys
from config.settings import Settings, is_loopback
from config.tiers import Tier

if TYPE_CHECKING:
    from redis import Redis


# The minimum for Celery 5.7 and the scripts; Valkey reports the Redis version that it is compatible with.
MIN_REDIS = (6, 2)
MIN_CLUSTER = (7, 0)
_SLOTS = 16384
_RECIPE = "docs/security.md lists the rights that are needed"

# One command for each kind of right that a role needs, on names that nobody uses: each has no effect. (`{db}`: kombu
# names its channels after the database.)
_RIGHTS: tuple[tuple[str, ...], ...] = (
    ("TIME",),
    ("LREM", "bunch.check.paid", "0", "-"),
    ("EVAL", "return redis.call('HDEL', KEYS[1], '-')", "1", "bunch:check"),
    ("XLEN", "bunch:check"),
    ("DEL", "celery-task-meta-check"),
    ("PUBLISH", "bunch:reply:check", ""),
    ("PUBLISH", "celery-task-meta-check", ""),
    ("SREM", "_kombu.binding.check", "-"),
    ("HDEL", "unacked", "-"),
    ("ZREM", "unacked_index", "-"),
    ("LREM", "check.celery.pidbox", "0", "-"),
    ("LREM", "check.celery.pidbox\x06\x163", "0", "-"),
    ("LREM", "check.reply.celery.pidbox", "0", "-"),
    ("PUBLISH", "/{db}.celery.pidbox", ""),
)


# Of the nodes of a cluster, which have the shards of requests and nothing else.
_SHARD_RIGHTS: tuple[tuple[str, ...], ...] = (
    *_RIGHTS[:5],
    ("SPUBLISH", "bunch:reply:check", ""),
    ("CLUSTER", "SLOTS"),
    ("CLUSTER", "NODES"),
    ("ASKING",),
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The findings about a server: `problems` keep Bunch from working, `warnings` do not."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def server_problems(settings: Settings) -> Iterator[Problem]:
    """Problems that keep Bunch from working, or let strangers in where authentication is on."""
    for key, url in _servers(settings).items():
        yield from _look(settings, key, url).problems
        if must_have_password(settings, url):
            yield from _without_password(key, url)
    yield from _left_shards(settings, served=False)


def _left_shards(settings: Settings, *, served: bool) -> Iterator[Problem]:
    from tasks.fleet.left_shards import finding

    # What is wrong with a URL is said above.
    with contextlib.suppress(ValueError):
        if settings.redis_url and (text := finding(settings, served=served)):
            yield Problem("BUNCH_SHARDS", settings.shard_count, text)


def server_warnings(settings: Settings) -> Iterator[Problem]:
    """Settings of a server that work but may not be intended."""
    yield from _too_short_for_a_failover(settings)
    yield from _left_shards(settings, served=True)
    for key, url in _servers(settings).items():
        yield from _look(settings, key, url).warnings
        if not must_have_password(settings, url):
            yield from _without_password(key, url)


def _too_short_for_a_failover(settings: Settings) -> Iterator[Problem]:
    held_ms, limit_ms = settings.failover_wait_s * 1000, min(map(settings.queue_timeout_of, Tier))
    if (sentinels_of(settings.redis_url) or settings.is_clustered) and limit_ms < held_ms:
        why = (
            "what waits in a queue when Redis fails over gives up before the failover may have ended "
            f"(BUNCH_FAILOVER_WAIT_MS); set it to at least {held_ms:.0f}"
        )
        yield Problem("BUNCH_QUEUE_TIMEOUT_MS", limit_ms, why)


def seal_problems(settings: Settings) -> Iterator[Problem]:
    """Workers that would refuse the messages of a frontend with these settings."""
    from redis.exceptions import RedisError

    from config.redis import connect
    from tasks.fleet.registry_reader import Fleet

    own = fingerprint(message_keys(settings))
    if not (own and settings.redis_url):
        return
    with contextlib.suppress(RedisError, ValueError):
        fleet = Fleet(connect(settings.home_url, timeout_s=2.0), lease_ttl_s=settings.lease_ttl_s)
        for row in fleet.alive_of(fleet.workers()):
            if row.seal not in {own, ""}:
                yield Problem(
                    "BUNCH_MESSAGE_SECRET",
                    "…" if settings.message_secret else "",
                    f"worker {row.id} has another secret and refuses messages signed with this one; "
                    "set it, or _FILE, to the same value for web and worker on every host",
                )


def separator_warnings(settings: Settings) -> Iterator[Problem]:
    """Celery clients whose messages with a priority are stored in lists that no worker reads."""
    from redis.exceptions import RedisError

    from config.redis import connect

    if not settings.redis_url:
        return
    keys = Shard()
    queues = [queue for name in settings.models for queue in keys.queues(name)]
    with contextlib.suppress(RedisError, ValueError):
        pipeline = connect(settings.home_url, timeout_s=2.0).pipeline(transaction=False)
        for queue in queues:
            pipeline.smembers(keys.bindings(queue))
        for queue, members in zip(queues, pipeline.execute(), strict=True):
            for member in sorted(members):
                twice = member.decode(errors="replace")[len(queue) : -len(queue)]
                if twice != 2 * SEPARATOR:
                    yield Problem(
                        f"queue {queue}",
                        "",
                        f"a Celery client uses the separator {twice[: len(twice) // 2]!r}: messages that it sends with "
                        "a priority are never read. Remove `sep` from its broker_transport_options",
                    )


def must_have_password(settings: Settings, url: str) -> bool:
    """Return whether the server needs a password: authentication is on, and users of other machines may reach it."""
    nodes = cluster_of(url)
    hosts = [urlsplit(url).hostname] if nodes is None else [host for host, _ in nodes.hosts]
    return settings.auth != "off" and any(host is not None and not is_loopback(host) for host in hosts)


def _servers(settings: Settings) -> dict[str, str]:
    """The configured servers, each once."""
    servers = {"BUNCH_REDIS_URL": settings.redis_url}
    for key, url in {"BUNCH_BROKER_URL": settings.broker_url, "BUNCH_BLOB_URL": settings.blob_url}.items():
        if url not in servers.values():
            servers[key] = url
    return {key: url for key, url in servers.items() if url}


def _look(settings: Settings, key: str, url: str) -> _Seen:
    from redis.exceptions import RedisError, ResponseError

    from config.redis import connect

    shown = masked_url(url)
    try:
        if is_cluster(url):
            found = list(_judge_cluster(settings, url))
        else:
            with connect(url, timeout_s=2.0) as client:
                with contextlib.suppress(ResponseError):
                    client.ping()
                found = list(_judge(settings, client))
    except RedisError as error:
        return _Seen((Problem(key, shown, f"must name a Redis or Valkey server that answers: {error}"),))
    except ValueError:
        # The error text quotes the unreadable part, which belongs to the password if that has a raw `/` or `:`.
        return _Seen((Problem(key, shown, f"is not a valid URL; {PERCENT}"),))
    return _Seen(
        tuple(Problem(key, shown, text) for stops, text in found if stops),
        tuple(Problem(key, shown, text) for stops, text in found if not stops),
    )


def _judge_cluster(settings: Settings, url: str) -> Iterator[tuple[bool, str]]:
    """Findings about a cluster and each of its primaries. Raises RedisError when no node answers."""
    from redis.exceptions import RedisError

    from config.cluster import slots_of
    from config.redis import connect

    nodes = cluster_of(url)
    assert nodes is not None
    owners = slots_of(nodes).owners()
    covered = sum(each.last - each.first + 1 for each in owners)
    if covered < _SLOTS:
        yield True, f"has {_SLOTS - covered} slots that no node serves; assign them: redis-cli --cluster fix"
    for host, port in dict.fromkeys(each.address for each in owners):
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        of_it = [each for each in owners if each.address == (host, port)]
        if not any(each.replicas for each in of_it):
            # Each of them is said for its node.
            wanted = settings.durability == "replica"
            yield wanted, f"has no replica of {name}: what that node has is not served, or lost, without it"
        try:
            with connect(node_url(url, name), timeout_s=2.0) as client:
                found = list(_judge(settings, client, of_cluster=True))
        except RedisError as error:
            yield True, f"has a primary that does not answer, {name}: {error}"
        else:
            yield from ((stops, f"has a node, {name}, that {text}") for stops, text in found)


def _judge(settings: Settings, client: Redis, *, of_cluster: bool = False) -> Iterator[tuple[bool, str]]:
    """Findings: whether one keeps Bunch from working, and its text. Raises RedisError when the server does not
    answer.
    """
    info = _asked(client.info)
    if info is None:
        without = "its version and memory are unknown, so BUNCH_MAX_MEMORY_PERCENT has no effect"
        yield False, f"does not let this user run INFO: {without}; {_RECIPE}"
    else:
        yield from _judge_server(info, of_cluster=of_cluster)
    if settings.durability == "disk":
        yield from _judge_durability(client)
    if settings.durability == "replica" and not of_cluster and info is not None and not info.get("connected_slaves"):
        yield True, "must have a replica for BUNCH_DURABILITY=replica; none is connected"
    database = client.connection_pool.connection_kwargs.get("db") or 0
    refused = [
        " ".join(map(repr, command[:2] if command[0] != "EVAL" else (command[0], command[3])))
        for command in (_SHARD_RIGHTS if of_cluster else _RIGHTS)
        if _is_forbidden(client, [each.format(db=database) for each in command])
    ]
    if refused:
        yield True, f"does not give this user enough rights, {refused[0]} for one; {_RECIPE}"


def _judge_server(info: dict[str, Any], *, of_cluster: bool = False) -> Iterator[tuple[bool, str]]:
    version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    if of_cluster and version < MIN_CLUSTER:
        yield True, f"is Redis {info['redis_version']}; 7.0 or newer is needed in a cluster, for sharded pub/sub"
    elif version < MIN_REDIS:
        yield True, f"is Redis {info['redis_version']}; 6.2 or newer is needed"
    if info.get("cluster_enabled") and not of_cluster:
        yield True, CLUSTER
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory") and policy != "noeviction":
        yield (
            True,
            f"evicts accepted requests when its memory is full ({policy}); set its maxmemory-policy to noeviction",
        )


def _judge_durability(client: Redis) -> Iterator[tuple[bool, str]]:
    found = _asked(lambda: client.config_get("appendonly", "appendfsync"))
    if found is None:
        yield False, "does not let this user run CONFIG GET, so BUNCH_DURABILITY=disk could not be checked"
    elif (found.get("appendonly"), found.get("appendfsync")) != ("yes", "always"):
        yield True, "must have appendonly yes and appendfsync always for BUNCH_DURABILITY=disk"


def _asked(question: Callable[[], Any]) -> dict[str, Any] | None:
    """The reply; None when the server answers but refuses the question."""
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import ResponseError
    from redis.exceptions import TimeoutError as RedisTimeoutError

    try:
        answer: dict[str, Any] = question()
    except (RedisConnectionError, RedisTimeoutError):
        raise
    except ResponseError:
        return None
    return answer


def _is_forbidden(client: Redis, command: list[str]) -> bool:
    from redis.exceptions import ResponseError

    try:
        client.execute_command(*command)  # type: ignore[no-untyped-call]
    except ResponseError as error:
        # For an error inside a script, the server's message is somewhere in the middle.
        return any(word in str(error) for word in ("NOPERM", "no permission", "permissions to", "can't access"))
    return False


def _without_password(key: str, url: str) -> Iterator[Problem]:
    from redis.exceptions import RedisError

    from config.redis import connect

    nodes = cluster_of(url)
    if nodes is not None:
        host, port = nodes.hosts[0]
        for each in _without_password(key, node_url(url, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")):
            yield Problem(key, masked_url(url), each.fix)
        return
    if url.partition(":")[0] not in {"redis", "rediss"}:
        # A Unix socket is protected by file permissions.
        return
    with contextlib.suppress(RedisError, ValueError), connect(without_credentials(url), timeout_s=2.0) as stranger:
        stranger.ping()
        yield Problem(
            key,
            masked_url(url),
            "accepts connections without a password: whoever reaches it can read every result and act as anybody; "
            "set requirepass there, and redis://:<password>@host:port/0 here",
        )
