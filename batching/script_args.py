"""The scripts of this package and what they are given: the names of their KEYS and ARGV, in order.

`batching.scripts` puts the numbers of these fields into the text of a script, so a name is declared once and costs
nothing when the script runs. What each value means stands in the head of the script of that name. `…Keys` name keys,
`…Args` the arguments in front; the others are rows, which repeat behind those.
"""

from __future__ import annotations

from typing import NamedTuple

from batching.scripts import LuaScript


class LookKeys(NamedTuple):
    """Of a look at one shard, in front of its queues."""

    delayed: str


class LookArgs(NamedTuple):
    queues: int


class PeekArgs(NamedTuple):
    queues: int


class ClaimKeys(NamedTuple):
    lease: str
    leases: str
    workers: str
    cancelled: str
    share: str
    delayed: str
    bell: str


class ClaimArgs(NamedTuple):
    batch_id: str
    worker_id: str
    model: str
    size: int
    ageing_ms: int
    aged_share: float
    margin_ms: int
    max_bytes: int
    takes: str
    least: int
    calm_ms: int


class FinishKeys(NamedTuple):
    lease: str
    leases: str
    dead: str


class AnswerKeys(NamedTuple):
    """Behind `FinishKeys`, where an outcome is something to others."""

    cached: str
    kept: str
    edition: str
    asked: str
    joined: str
    cancelled: str
    bell: str


class FinishArgs(NamedTuple):
    batch_id: str
    last: int
    max_dead: int
    max_dead_age_ms: int
    channels: int
    common: int


class OutcomeRun(NamedTuple):
    """Fields that neighbouring outcomes share; `outcomes` of them follow, with `words` words each."""

    ttl_ms: int
    channel: int
    record: bytes
    announce: int
    words: int
    position: int
    outcomes: int


class OutcomeWords(NamedTuple):
    """One outcome; the last word only where it is something to others."""

    task_id: str
    result: bytes
    asked: str


class AnswerArgs(NamedTuple):
    """At the end, where an outcome is something to others."""

    max_bytes: int
    claimed_ms: int
    tiers: str


class PutAsideKeys(NamedTuple):
    lease: str
    leases: str
    delayed: str


class PutAsideArgs(NamedTuple):
    batch_id: str
    last: int
    attempt: int


class Pause(NamedTuple):
    position: int
    pause_ms: int


class GiveBackKeys(NamedTuple):
    lease: str
    leases: str
    bell: str


class GiveBackArgs(NamedTuple):
    batch_id: str
    blame: int
    losses: int


class GatherArgs(NamedTuple):
    queues: int
    lists: int
    max_moved: int


class BeatKeys(NamedTuple):
    workers: str
    about: str


class BeatArgs(NamedTuple):
    worker_id: str
    about: bytes
    lease_ttl_ms: int


class ForgetWorkerKeys(NamedTuple):
    workers: str
    leases: str
    about: str


class ForgetWorkerArgs(NamedTuple):
    worker_id: str
    silent_ms: int


class BlobKeys(NamedTuple):
    """The account of blobs, for each script of theirs."""

    blobs: str
    sizes: str
    kept: str
    bytes: str


class OneBlobKeys(NamedTuple):
    blob: str


class BlobReserveArgs(NamedTuple):
    id: str
    size: int
    ttl_ms: int
    max_bytes: int
    max_memory: float


class BlobExtendArgs(NamedTuple):
    id: str
    ttl_ms: int
    keep: int
    max_kept_bytes: int


LOOK = LuaScript("look", parts=("delayed", "message"), args=(LookArgs,))
PEEK = LuaScript("peek", parts=("delayed",), args=(PeekArgs,))
CLAIM = LuaScript("claim", parts=("delayed", "message", "lease", "tiers", "fair"), keys=(ClaimKeys,), args=(ClaimArgs,))
FINISH = LuaScript(
    "finish",
    parts=("lease", "reply", "dedup_marks", "coalescing"),
    keys=(FinishKeys, AnswerKeys),
    args=(FinishArgs,),
    rows=(OutcomeRun, OutcomeWords, AnswerArgs),
)
PUT_ASIDE = LuaScript(
    "put_aside", parts=("delayed", "message", "lease"), keys=(PutAsideKeys,), args=(PutAsideArgs,), rows=(Pause,)
)
GIVE_BACK = LuaScript("give_back", parts=("message", "lease"), keys=(GiveBackKeys,), args=(GiveBackArgs,))
GATHER = LuaScript("gather", args=(GatherArgs,))
BEAT = LuaScript("beat", keys=(BeatKeys,), args=(BeatArgs,))
FORGET_WORKER = LuaScript("forget_worker", keys=(ForgetWorkerKeys,), args=(ForgetWorkerArgs,))
BLOB_RESERVE = LuaScript("blob_reserve", parts=("blobs",), keys=(BlobKeys,), args=(BlobReserveArgs,))
BLOB_RELEASE = LuaScript("blob_release", parts=("blobs",), keys=(BlobKeys,))
BLOB_EXTEND = LuaScript("blob_extend", parts=("blobs",), keys=(BlobKeys, OneBlobKeys), args=(BlobExtendArgs,))
BLOB_USAGE = LuaScript("blob_usage", parts=("blobs",), keys=(BlobKeys,))
ALL = (
    LOOK,
    PEEK,
    CLAIM,
    FINISH,
    PUT_ASIDE,
    GIVE_BACK,
    GATHER,
    BEAT,
    FORGET_WORKER,
    BLOB_RESERVE,
    BLOB_RELEASE,
    BLOB_EXTEND,
    BLOB_USAGE,
)
