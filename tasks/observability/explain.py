"""`explain`: the life of one request, put together from what Redis has.

    bunch:request:<request id> ─▶ task id ─▶ bunch:record:…             the batches that it was in
                                          ├▶ celery-task-meta-<id>      its outcome, while that is kept
                                          ├▶ leases                     an executor has it
                                          ├▶ queues, pauses             it waits
                                          ├▶ bunch:dead:<id>            it was given up
                                          └▶ bunch:callback:<id>        its result is pushed

An id of ours tells the shard of its request, which alone is asked; any other name is asked for in every place.
Meant for a person who looks at one request: a few round trips, and one more per thousand requests in its queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from redis import Redis

from batching.claim.lease import Lease, parse_lease
from batching.claim.registry import name_of
from batching.fast_header import read_fast_header
from config.shards import Place, Places
from config.tiers import TIERS
from tasks.callbacks.store import CallbackStore
from tasks.fleet.all_places import AllPlaces, answered
from tasks.fleet.dead_letters import DeadLetters
from tasks.observability.batch_log import UNSETTLED, BatchLog, BatchRecord, Member
from tasks.protocol.ids import made_at_ms, newest, place_of, shard_of, until_ms
from tasks.protocol.outputs import payload_of
from tasks.protocol.results import FINISHED, Details, Reply, decode_details, decode_error, decode_reply

STAGES = ("admission", "queue", "batch_wait", "transfer", "compute", "reply")
_CHUNK = 1000
_MAX_NEIGHBOURS = 100

_Found = tuple[BatchRecord, Member]
_STATES = {"SUCCESS": "completed", "FAILURE": "failed", "REVOKED": "cancelled", "STARTED": "running"}


def explain(places: Places, models: Iterable[str], name: str) -> dict[str, Any] | None:
    """Return a dictionary about the request with this request id or task id; None when nothing is known of it.

    Keys: `request_id`, `task_id`, `status`, `model`, `tier`, `attempt`, `stages` (a list of `{"stage", "ms"}` in
    order), `accounted_ms`, `where`, `batch` (with `neighbours`), `attempts` (earlier ones), `error`, `callback`.
    Unknown values are None or empty.

    Raises:
        RedisError: the home cannot be reached, or the place of the request.
    """
    task_id, found = _known(places, name)
    place = place_of(places, task_id)
    settled = _settled(found)
    raw = cast("bytes | None", place.redis.get(place.keys.result(task_id)))
    reply = decode_reply(raw) if raw else None
    about: dict[str, Any] = {
        "request_id": name,
        "task_id": task_id,
        "status": "unknown",
        "model": None,
        "tier": None,
        "attempt": None,
        "stages": [],
        "accounted_ms": None,
        "where": None,
        "batch": None,
        "attempts": [_attempt(*each) for each in found if each is not settled],
        "error": None,
        "callback": _callback(places, task_id),
    }
    if reply is not None and reply.status in FINISHED:
        return about | _ended(task_id, reply, settled[0] if settled else None)
    waiting = _waits(places, place, tuple(models), task_id)
    if waiting is not None:
        return about | waiting
    if settled is not None:
        return about | _recorded(*settled)
    letter = DeadLetters(places).show(task_id)
    if letter is not None:
        record = letter[0]
        return (
            about
            | {
                "status": "failed",
                "model": record.model,
                "tier": record.tier,
                "attempt": record.attempts,
                "where": "a dead letter; its result has expired",
                "error": {"code": "INFERENCE_FAILED", "type": record.exc_type, "message": record.reason},
            }
            | _payload(letter[1])
        )
    if reply is None and not about["attempts"]:
        return None
    if reply is not None:
        # It was between a queue and a lease while we looked: report the state that it had.
        about["status"] = _STATES.get(reply.status, "queued")
    return about


def _callback(places: Places, task_id: str) -> dict[str, Any] | None:
    """The host that the result is pushed to, since the URL's path may be a secret, and whether it was."""
    found = CallbackStore(places).find(task_id)
    if found is None:
        return None
    callback, look_ms = found
    over = "delivered" if callback.delivered_ms else "given up"
    return {
        "host": urlsplit(callback.url).netloc,
        "status": over if look_ms is None else "tried again" if callback.attempts else "owed",
        "attempts": callback.attempts,
        "next_ms": look_ms or None,
        "delivered_ms": callback.delivered_ms or None,
        "error": callback.error or None,
    }


def explain_recorded(redis: Redis, name: str, owner: str = "") -> dict[str, Any] | None:
    """Explain a finished request from the batch log alone; None for any that `owner` may not know of.

    Raises:
        RedisError: Redis cannot be reached.
    """
    settled = _settled(BatchLog(redis).find(name, owner))
    return {"request_id": name, "task_id": settled[1].id} | _recorded(*settled) if settled else None


def why_unknown(redis: Redis, name: str) -> str:
    """A sentence for a request of which nothing is known. Raises RedisError."""
    reach = BatchLog(redis).reach()
    made_ms = made_at_ms(name, reach.now_ms)
    far = "an hour"
    if reach.cut:
        far = (
            f"{reach.seconds / 60:.0f} min at this rate"
            if reach.seconds >= 90
            else f"{reach.seconds:.0f} s at this rate"
        )
    if made_ms is None:
        return f"nothing is known of {name}: it was never issued, or is older than the batch log reaches: {far}"
    if made_ms < reach.since_ms:
        more = " (BUNCH_EXPLAIN_MAX_BYTES)" if reach.cut else ""
        return f"{name} is older than the batch log reaches: {far}{more}; it is not among the failures of the last day"
    return f"nothing is known of {name}: it was never issued here, or its process was killed before it recorded it"


def _settled(found: Iterable[_Found]) -> _Found | None:
    """The batch that settled a request; the newest if a caller gave several requests one id."""
    return max((each for each in found if each[1].code != UNSETTLED), key=lambda each: each[0].claimed_ms, default=None)


def _known(places: Places, name: str) -> tuple[str, list[_Found]]:
    """The task id behind a name (the newest, if a caller gave several requests one id), and its batches."""
    pointer = _pointer(places, name)
    task_id = pointer or name
    found = BatchLog(places.home.redis).find(task_id)
    if found and not pointer:
        task_id = found[-1][1].id
    return task_id, [each for each in found if each[1].id == task_id]


def _pointer(places: Places, request_id: str) -> str:
    """The task id for a caller's own request id, wherever that is; empty if there is none."""
    if shard_of(request_id) is not None:
        return ""

    def note(pipeline: Any, place: Place) -> None:
        name = place.keys.request(request_id)
        pipeline.get(name).pttl(name).time()

    asked = (each.replies for each in answered(AllPlaces(places).ask(note)))
    # Callers without an owner may have given two requests one id, in two shards.
    return newest((task_id.decode(), until_ms(left_ms, now)) for task_id, left_ms, now in asked if task_id)


def _ended(task_id: str, reply: Reply, record: BatchRecord | None) -> dict[str, Any]:
    details = decode_details(reply.bunch)
    error = None
    if reply.status != "SUCCESS":
        told = decode_error(reply.result) if bytes(reply.result) != b"null" else None
        error = {
            "code": details.code or ("CANCELLED" if reply.status == "REVOKED" else None),
            "type": told.exc_type if told else None,
            "message": told.text if told else None,
        }
    times = {
        "admission": details.admission_ms,
        "queue": details.queue_ms,
        "batch_wait": details.batch_wait_ms,
        "transfer": details.transfer_ms,
        "compute": details.compute_ms,
        # Until the result was stored and published; the time after that is in the metadata of the answer.
        "reply": record.reply_ms if record else None,
    }
    return {
        "status": _STATES.get(reply.status, "failed"),
        "model": record.model if record else None,
        "tier": details.tier or None,
        "attempt": details.attempt,
        **_stages(times),
        "batch": _batch(record, task_id) or _batch_of(details),
        "error": error,
    }


def _recorded(record: BatchRecord, mine: Member) -> dict[str, Any]:
    """The explanation of a finished request whose result has expired."""
    times: dict[str, float | None] = {}
    if record.id:
        times = {
            "admission": mine.admission_ms if mine.admission_ms >= 0 else None,
            "queue": mine.queue_ms if mine.queue_ms >= 0 else None,
            "batch_wait": record.wait_ms,
            "transfer": round(max(0.0, record.turn_ms - record.compute_ms), 3),
            "compute": record.compute_ms,
            "reply": record.reply_ms,
        }
    status = {"OK": "completed", "CANCELLED": "cancelled"}.get(mine.code, "failed")
    exc_type, _, message = mine.error.partition(": ")
    return {
        "status": status,
        "model": record.model,
        "tier": mine.tier,
        "attempt": mine.attempt,
        **_stages(times),
        "where": "joined an identical request under way"
        if mine in record.joined
        else None
        if record.id
        else record.why,
        "batch": _batch(record, mine.id) if record.id else None,
        "error": None
        if status == "completed"
        else {"code": mine.code, "type": exc_type or None, "message": message or None},
    }


def _stages(times: Mapping[str, float | None]) -> dict[str, Any]:
    stages = [{"stage": name, "ms": times[name]} for name in STAGES if name in times]
    return {"stages": stages, "accounted_ms": round(sum(times[name] or 0.0 for name in times), 3) if times else None}


def _batch(record: BatchRecord | None, task_id: str) -> dict[str, Any] | None:
    if record is None or not record.id:
        return None
    neighbours = [each for each in record.members if each.id != task_id]
    return {
        "id": record.id,
        "size": len(record.members),
        "reason": record.reason,
        "worker": record.worker,
        "executor": record.executor,
        "model_version": record.version,
        "claimed_ms": record.claimed_ms,
        "compute_ms": record.compute_ms,
        "passes": record.passes,
        "ended": record.why or None,
        "neighbours": [
            {"task_id": each.id, "tier": each.tier, "attempt": each.attempt, "outcome": each.code}
            for each in neighbours[:_MAX_NEIGHBOURS]
        ],
    }


def _batch_of(details: Details) -> dict[str, Any] | None:
    """The batch according to the result itself, when the batch log does not have it."""
    if not details.batch_id:
        return None
    return {
        "id": details.batch_id,
        "size": details.batch_size,
        "reason": details.reason,
        "model_version": details.model_version,
        "compute_ms": details.compute_ms,
        "neighbours": [],
    }


def _attempt(record: BatchRecord, mine: Member) -> dict[str, Any]:
    return {
        "attempt": mine.attempt,
        "batch_id": record.id,
        "size": len(record.members),
        "worker": record.worker,
        "executor": record.executor,
        "claimed_ms": record.claimed_ms,
        "compute_ms": record.compute_ms,
        "ended": record.why,
    }


def _waits(places: Places, place: Place, models: Sequence[str], task_id: str) -> dict[str, Any] | None:
    """Find an unfinished request: in a lease, in a queue, or put aside."""
    redis, keys = place.redis, place.keys
    for worker, batch_id, lease in _leases(places, place):
        for entry in lease.entries:
            if _is(entry.message, task_id):
                return {
                    "status": "running",
                    "model": lease.model,
                    "tier": TIERS[entry.rank].value,
                    "attempt": _attempt_of(entry.message),
                    "where": f"in batch {batch_id} of worker {worker}",
                    "batch": {"id": batch_id, "size": _size(places, batch_id), "worker": worker, "neighbours": []},
                } | _payload(entry.message)
    for model in models:
        for tier in TIERS:
            for before, message in enumerate(_queued(redis, keys.queue(model, tier))):
                if _is(message, task_id):
                    where = f"in {keys.queue(model, tier)}, {before} before it"
                    return _waiting(model, tier.value, message, where)
        for raw, due in redis.zscan_iter(keys.delayed(model)):
            if _is(raw[1:], task_id):
                return _waiting(
                    model,
                    TIERS[raw[0] - (97 if raw[0] >= 97 else 48)].value,
                    raw[1:],
                    f"put aside until {int(due)} (epoch ms)",
                )
    return None


def _waiting(model: str, tier: str, message: bytes, where: str) -> dict[str, Any]:
    about = {"status": "queued", "model": model, "tier": tier, "attempt": _attempt_of(message), "where": where}
    return about | _payload(message)


def _payload(message: bytes) -> dict[str, Any]:
    """The size of an input that lies beside the queue; nothing for any other."""
    blob = payload_of(message)
    return {} if blob is None else {"payload_bytes": blob.size}


def _leases(places: Places, place: Place) -> Iterator[tuple[str, str, Lease]]:
    redis, keys = place.redis, place.keys
    for worker in cast("list[bytes]", redis.zrange(keys.workers(), 0, -1)):
        name = worker.decode()
        shown = name_of(places.home.redis, places.home.keys, name)
        for batch in cast("set[bytes]", redis.smembers(keys.leases(name))):
            lease = parse_lease(cast("list[bytes]", redis.lrange(keys.lease(batch.decode()), 0, -1)))
            if lease is not None:
                yield shown, batch.decode(), lease


def _size(places: Places, batch_id: str) -> int:
    """The number of requests in the leases of a batch: it has one in each place that it was claimed from."""

    def note(pipeline: Any, place: Place) -> None:
        pipeline.llen(place.keys.lease(batch_id))

    return sum(max(0, each.replies[0] - 1) for each in answered(AllPlaces(places).ask(note)))


def _queued(redis: Redis, queue: str) -> Iterator[bytes]:
    """The messages of a queue, the next to be claimed first."""
    end = redis.llen(queue)
    while end > 0:
        start = max(0, end - _CHUNK)
        yield from reversed(cast("list[bytes]", redis.lrange(queue, start, end - 1)))
        end = start


def _is(message: bytes, task_id: str) -> bool:
    header = read_fast_header(message)
    if header is not None:
        return header.task_id == task_id
    return msgspec.json.encode(task_id) in message


def _attempt_of(message: bytes) -> int | None:
    header = read_fast_header(message)
    return header.attempt + 1 if header else None
