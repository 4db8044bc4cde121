"""The scripts of this package and their arguments, described as in `batching.script_args`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from batching.scripts import LuaScript, folder_of
from tasks.client.admission_codes import Status


class FlushKeys(NamedTuple):
    flush: str
    arrivals: str


class ModelKeys(NamedTuple):
    bell: str
    capacity: str
    pace: str
    edition: str


class TierKeys(NamedTuple):
    """The keys of each tier, after those of its model."""

    queue: str
    held: str


class DedupKeys(NamedTuple):
    """At the end, if any request may be a repeat: prefixes of key names."""

    asked: str
    joined: str
    cached: str


class FlushArgs(NamedTuple):
    """Before the messages: a `FlushHeader` in MessagePack, as one word costs Redis less than each field as a word."""

    header: bytes


class FlushHeader(NamedTuple):
    """The header of a flush. Rows and rules are arrays in the order of their tuples."""

    channel: str
    rules: RuleArgs
    shares: Sequence[float]
    depth_limits: Sequence[int]
    classes: Sequence[ClassRow]
    runs: Sequence[RunRow]
    asks: bool


class RuleArgs(NamedTuple):
    """The same for each flush of a process."""

    form: str
    headroom: float
    max_memory: float
    ageing_ms: int
    aged_share: float


class ClassRow(NamedTuple):
    """The common fields of the requests of one model, tier and quota."""

    model: int
    rank: int
    threshold: int
    quota: int
    interval_us: int
    burst: int
    tag: str
    tier: str
    kept: bool


class RunRow(NamedTuple):
    """The common fields of neighbours: the `number` of their class; `messages` follow, of `words` words each."""

    number: int
    deadline_ms: int
    queue_limit_ms: int
    words: int
    messages: int


class QuotaKeys(NamedTuple):
    """The keys of charge.lua and client.lua."""

    quota: str


class ChargeArgs(NamedTuple):
    interval_us: int
    burst: int


class OwnerKeys(NamedTuple):
    owners: str


class OwnerArgs(NamedTuple):
    owner: str
    most: int
    keep_ms: int


class ClientArgs(NamedTuple):
    interval_us: int
    burst: int
    requests: int


class OweKeys(NamedTuple):
    callbacks: str
    callback: str
    bell: str


class OweArgs(NamedTuple):
    task_id: str
    look_ms: int
    keep_ms: int
    now: int


class DueKeys(NamedTuple):
    callbacks: str


class DueArgs(NamedTuple):
    lease_ms: int
    most: int


class CancelKeys(NamedTuple):
    result: str
    cancelled: str


class CancelArgs(NamedTuple):
    task_id: str
    channel: str
    stateless_ms: int


class HangUpKeys(NamedTuple):
    cancelled: str


class HangUpArgs(NamedTuple):
    keep_ms: int


class RecogniseKeys(NamedTuple):
    """`leases` and `lease` are names without what they are of, `joined` is a prefix. Then queues, and the `delayed` of
    each model.
    """

    workers: str
    leases: str
    lease: str
    joined: str


class RecogniseArgs(NamedTuple):
    queues: int


class ReplayKeys(NamedTuple):
    dead: str
    letter: str
    result: str
    queue: str
    bell: str


class ReplayArgs(NamedTuple):
    task_id: str
    time_ms: int
    result_ttl_ms: int
    message: bytes


class BatchLogKeys(NamedTuple):
    record: str
    size: str


class BatchLogArgs(NamedTuple):
    age_ms: int
    max_bytes: int


class KeyTableKeys(NamedTuple):
    table: str
    version: str


class KeyTableArgs(NamedTuple):
    version: str


class LedgerKeys(NamedTuple):
    ledger: str
    rows: str


class LedgerArgs(NamedTuple):
    max_rows: int
    added: int
    rows: bytes


class EntryRow(NamedTuple):
    entry_id: str
    rows: int


class CountKeys(NamedTuple):
    sums: str
    flush: str
    second: str


class CountArgs(NamedTuple):
    flush: int
    answered: str


class Increment(NamedTuple):
    field: str
    amount: str


_FOLDER = folder_of(__file__)
_SUBMIT_ROWS = (ModelKeys, TierKeys, DedupKeys, FlushHeader, RuleArgs, ClassRow, RunRow)


def _submit(*thresholds: str) -> LuaScript:
    parts = ("gcra", *thresholds, "dedup_marks", "dedup", "judge")
    return LuaScript("submit", _FOLDER, parts, (FlushKeys,), (FlushArgs,), _SUBMIT_ROWS, (Status,))


SUBMIT = _submit("pressure", "capacity", "later")
# Without thresholds the functions that need the capacity are never called, and are left out.
SUBMIT_WITHOUT_THRESHOLDS = _submit()
CHARGE = LuaScript("charge", _FOLDER, ("gcra",), (QuotaKeys,), (ChargeArgs,))
CLIENT = LuaScript("client", _FOLDER, ("gcra",), (QuotaKeys,), (ClientArgs,))
NUMBER = LuaScript("number", _FOLDER, keys=(OwnerKeys,), args=(OwnerArgs,))
OWE = LuaScript("owe", _FOLDER, keys=(OweKeys,), args=(OweArgs,))
DUE = LuaScript("due", _FOLDER, keys=(DueKeys,), args=(DueArgs,))
CANCEL = LuaScript("cancel", _FOLDER, keys=(CancelKeys,), args=(CancelArgs,))
HANG_UP = LuaScript("hang_up", _FOLDER, keys=(HangUpKeys,), args=(HangUpArgs,))
RECOGNISE = LuaScript("recognise", _FOLDER, keys=(RecogniseKeys,), args=(RecogniseArgs,))
REPLAY = LuaScript("replay", _FOLDER, ("message",), (ReplayKeys,), (ReplayArgs,))
JOURNAL = LuaScript("batch_log", _FOLDER, keys=(BatchLogKeys,), args=(BatchLogArgs,))
PUBLISH_KEYS = LuaScript("publish_keys", _FOLDER, keys=(KeyTableKeys,), args=(KeyTableArgs,))
RECORD = LuaScript("record", _FOLDER, keys=(LedgerKeys,), args=(LedgerArgs,))
FORGET = LuaScript("forget", _FOLDER, keys=(LedgerKeys,), rows=(EntryRow,))
COUNT = LuaScript("count", _FOLDER, keys=(CountKeys,), args=(CountArgs,), rows=(Increment,))
ALL = (
    SUBMIT,
    SUBMIT_WITHOUT_THRESHOLDS,
    CHARGE,
    CLIENT,
    NUMBER,
    OWE,
    DUE,
    CANCEL,
    HANG_UP,
    RECOGNISE,
    REPLAY,
    JOURNAL,
    PUBLISH_KEYS,
    RECORD,
    FORGET,
    COUNT,
)
