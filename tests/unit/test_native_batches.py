"""The functions of `config/native/batches.c`, which do for a whole batch what Python does for each request."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import hiredis
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching import outcome_rows
from batching.blobs.reference import reference_to
from batching.claim import lease
from batching.claim.lease import Entry, Verdict, entries_of
from batching.claim.store import Settled
from batching.coalescing import Coalesced
from batching.policy import Reason
from batching.ports import BatchInfo, UnreadableMessage
from batching.request import Cancelled, Failed, Ok, Outcome, Rejected, Request
from config import redis
from config.native import hot_path
from config.tiers import TIERS, Tier
from tasks.client.submission import NO_PARAMETERS, Submission
from tasks.observability.batch_log import BatchRecord, OkRecord
from tasks.observers import batch_log
from tasks.observers.batch_log import BatchLogObserver
from tasks.protocol import messages, results
from tasks.protocol.caller import Caller
from tasks.protocol.messages import read_fresh, read_message
from tasks.protocol.outgoing import MessageWriter, Outgoing
from tasks.protocol.results import CeleryCodec
from tasks.protocol.seal import Seal

pytestmark = pytest.mark.skipif(hot_path is None, reason="SKIPPED: the hot path was not compiled here; make says why")

NOW_MS = 1_795_965_780_000
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=5,
).map(msgspec.json.encode)
SEAL = Seal((b"k" * 32,))
INFO = BatchInfo("b1", "m", "v", 3, Reason.FULL, NOW_MS, compute_s=0.25)


def message(input: bytes = b'"a"', *, times: bytes = b"00;0;", owner: str = "", seal: Seal | None = None) -> bytes:
    caller = Caller("", owner, Tier.PAID)
    out = Outgoing("0b1f2d3a-2c", Submission("m", caller, input, 1.0), "bunch.m.paid", 1000, 1000, 5000)
    head = b'{"headers":{"bunch":"1;%d;%d;%d;' % (NOW_MS + 5000, NOW_MS + 4000, NOW_MS - 20)
    return head + times + MessageWriter("bunch:reply:x", seal).rest(out, (NOW_MS - 25) / 1000)


def entry(raw: bytes, position: int = 1, verdict: Verdict = Verdict.RUN) -> Entry:
    return Entry(position, 1, verdict, raw)


def read_alone(of: Entry, seal: Seal | None) -> object:
    """The request as Python's reader has it, or why there is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "_read_plain", None)
        try:
            return msgspec.structs.asdict(read_message(of, 60_000, seal=seal))
        except UnreadableMessage as error:
            return str(error)


def same_or_left(entries: tuple[Entry, ...], seal: Seal | None) -> list[Request | None]:
    """Assert that what was read is what Python reads; None for what is left to it."""
    found = read_fresh(entries, NOW_MS, seal)
    for each, request in zip(entries, found, strict=True):
        assert request is None or msgspec.structs.asdict(request) == read_alone(each, seal)
    return found


@given(st.lists(JSON, max_size=6), st.sampled_from(["", "someone", 'a "quoted" owner', "ä"]), st.booleans())
def test_a_claim_is_read_as_message_by_message(inputs: list[bytes], owner: str, sealed: bool) -> None:
    seal = SEAL if sealed else None
    raw = [message(each, owner=owner, seal=seal) for each in inputs]
    same_or_left(tuple(entry(each, n) for n, each in enumerate(raw, 1)), seal)


def test_the_plain_ones_are_read_in_c() -> None:
    """Otherwise the comparison would be one of Python with itself."""
    raw = [b'"a"', b"1", b'{"a":[1,2]}', '"ä\\n"'.encode()]
    assert all(same_or_left(tuple(entry(message(each), n) for n, each in enumerate(raw)), None))
    assert all(same_or_left((entry(message(owner="me", seal=SEAL)),), SEAL))


@pytest.mark.parametrize(
    "odd",
    [
        entry(message(), verdict=Verdict.CANCELLED),
        entry(message(), verdict=Verdict.EXPIRED),
        entry(message(times=b"01;0;")),
        entry(message(times=b"00;1;")),
        entry(message(b"1,2")),
        entry(message(b"tru")),
        entry(b"{}"),
        entry(b""),
        Entry(1, 9, Verdict.RUN, message()),
    ],
)
def test_others_are_left_to_python_and_their_neighbours_are_not(odd: Entry) -> None:
    first, left, last = read_fresh((entry(message(), 1), odd, entry(message(b"2"), 3)), NOW_MS)
    assert first is not None
    assert last is not None
    assert left is None
    assert (first.position, last.position, last.input) == (1, 3, b"2")


def test_a_request_past_its_deadline_is_left_to_python() -> None:
    assert read_fresh((entry(message()),), NOW_MS + 4999)[0] is not None
    assert read_fresh((entry(message()),), NOW_MS + 5000) == [None]


def test_a_message_without_the_seal_is_left_to_python_which_refuses_it() -> None:
    forged = (entry(message()), entry(message(owner="me")), entry(message(seal=Seal((b"j" * 32,)))))
    assert read_fresh(forged, NOW_MS, SEAL) == [None] * 3
    assert all("no seal" in str(read_alone(each, SEAL)) for each in forged)


def test_a_reference_is_read_and_one_to_anothers_payload_is_left_to_python() -> None:
    own, others = reference_to("0b1f2d3a-2c", b"x", "json"), reference_to("0b1f2d3a-2d", b"x", "json")
    read, left = read_fresh((entry(message(own.json)), entry(message(others.json))), NOW_MS)
    assert read is not None
    assert read.blob == own
    assert left is None


@given(st.integers(0, 2**32), st.booleans())
def test_damaged_messages_are_never_taken_for_something_else(seed: int, sealed: bool) -> None:
    chance = random.Random(seed)
    seal = SEAL if sealed else None
    raw = bytearray(message(b'["a \\"word\\"",{"b":[1.5,null]}]', owner="me" if sealed else "", seal=seal))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(raw))
        piece = chance.choice([b"", b'"', b"\\", b"{", b"]", b",", b"0", b"\x00", b"\xc3", b" "])
        raw[at : at + chance.choice([0, 1, 1, 2, 30])] = piece
    same_or_left((entry(bytes(raw)), entry(message(seal=seal), 2)), seal)


REQUESTS = st.builds(
    Request,
    id=TEXT,
    tier=st.sampled_from(TIERS),
    position=st.integers(1, 200),
    input=st.just(b"1"),
    parameters=st.just(NO_PARAMETERS),
    attempt=st.integers(1, 5),
    enqueued_ms=st.sampled_from([0, NOW_MS - 7, NOW_MS + 7]),
    sent_ms=st.sampled_from([0, NOW_MS - 9, NOW_MS + 9]),
    result_ttl_ms=st.sampled_from([0, 1000, 2000]),
    reply_to=st.sampled_from(["", "bunch:reply:a", "bunch:reply:b", "elsewhere"]),
    tracked=st.booleans(),
    request_id=TEXT,
    question=st.sampled_from(["", "", "q"]),
    sealed=st.booleans(),
    foreign=st.booleans(),
)
OUTCOMES = st.sampled_from(
    [Ok(b"1"), Ok(b'"\xc3\xa4"'), Ok(b"[]", b'"a":1'), Rejected("no"), Failed("bad", traceback="t"), Cancelled()]
)
PAIRS = st.lists(st.tuples(REQUESTS, OUTCOMES | st.just(Ok(b"2"))), max_size=8)


@given(PAIRS)
def test_results_of_a_batch_are_those_of_its_requests(pairs: list[tuple[Request, Outcome]]) -> None:
    codec = CeleryCodec(1000)
    made = codec.encode_all(pairs, INFO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "_results", None)
        assert codec.encode_all(pairs, INFO) == made
    assert made == [codec.encode(request, outcome, INFO) for request, outcome in pairs]


def test_plain_results_are_written_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CeleryCodec, "encode", None)
    request = Request("i", Tier.FREE, 1, b"1", b"{}", reply_to="bunch:reply:a")
    assert CeleryCodec(1000).encode_all([(request, Ok(b"1", b'"a":1'))], INFO)[0].reply_to == "bunch:reply:a"


ASKED = Coalesced("q", "m", 1, 0, True, 1, 0)
SETTLED = st.builds(
    Settled,
    position=st.integers(1, 12),
    task_id=TEXT,
    ttl_ms=st.sampled_from([0, 1000, 100_000]),
    reply_to=st.sampled_from(["", "bunch:reply:a", "bunch:reply:b"]),
    result=st.binary(max_size=4),
    dead_letter=st.sampled_from([b"", b"", b"{}"]),
    announce=st.booleans(),
    asked=st.sampled_from([None, None, None, None, ASKED]),
    foreign=st.booleans(),
)


@given(st.lists(SETTLED, max_size=8), st.booleans(), st.sampled_from([0, 3]))
def test_rows_of_a_batch_are_the_same(outcomes: list[Settled], in_order: bool, first: int) -> None:
    if in_order:
        outcomes = [msgspec.structs.replace(each, position=first + n) for n, each in enumerate(outcomes, 1)]
    found = outcome_rows.outcome_rows(outcomes, first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome_rows, "_outcome_words", None)
        assert outcome_rows.outcome_rows(outcomes, first) == found
    assert list(found.channels.values()) == list(range(1, len(found.channels) + 1))


def recorded(pairs: list[tuple[Request, Outcome]]) -> list[BatchRecord]:
    observer = BatchLogObserver(None, lambda: "w", clock=lambda: 1.0)  # type: ignore[arg-type]
    observer.claimed([request for request, _ in pairs], INFO)
    observer.finished(pairs, INFO)
    return list(observer._noted)


@given(PAIRS)
def test_a_record_has_the_same_members(pairs: list[tuple[Request, Outcome]]) -> None:
    pairs = [(msgspec.structs.replace(request, position=n), end) for n, (request, end) in enumerate(pairs, 1)]
    found = recorded(pairs)
    assert all(isinstance(each, OkRecord) for each in found) == all(isinstance(end, Ok) for _, end in pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_log, "_members", None)
        assert msgspec.json.decode(msgspec.json.encode(recorded(pairs))) == msgspec.json.decode(
            msgspec.json.encode(found)
        )


@given(st.lists(TEXT | st.binary(max_size=9) | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)))
def test_a_command_is_packed_as_hiredis_packs_it(words: list[Any]) -> None:
    assert hot_path.packed(tuple(words)) == hiredis.pack_command(tuple(words))


@pytest.mark.parametrize("odd", [True, bytearray(b"a"), memoryview(b"a"), None])
def test_other_words_are_left_to_hiredis(odd: object) -> None:
    assert hot_path.packed(("SET", odd)) is None
    assert hot_path.packed(["SET"]) is None


def test_half_of_a_surrogate_pair_is_an_error() -> None:
    with pytest.raises(UnicodeEncodeError):
        redis.pack_command(("SET", "\ud800"))


@given(st.lists(st.sampled_from([b"a", b"{}", b"\0", b""]), max_size=6), st.sampled_from([0, 7]), st.integers(0, 2**32))
def test_entries_are_the_same(raw: list[bytes], first: int, seed: int) -> None:
    chance = random.Random(seed)
    marks = b"".join(b"%d%c" % (chance.randrange(3), chance.choice(b"-xhc")) for _ in raw)
    found = entries_of(marks, raw, first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "_entries", None)
        assert entries_of(marks, raw, first) == found


def test_wrong_arguments_are_errors_not_crashes() -> None:
    request = Request("i", Tier.FREE, 1, b"1", b"{}")
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (hot_path.read_fresh, (1,)),
        (hot_path.read_fresh, ([], 1, False, *messages._FRESH)),
        (hot_path.read_fresh, ((), "1", False, *messages._FRESH)),
        (hot_path.read_fresh, ((), 1, False, 5, *messages._FRESH[1:])),
        (hot_path.results, ((), Request, Ok, Settled, {}, "", 1, b"", "")),
        (hot_path.results, ([], Request, Ok, Settled, {}, "", 1, "", "")),
        (hot_path.members, ([], Request)),
        (hot_path.members, ([], 7, Ok, {}, 1)),
        (hot_path.outcome_words, ([], Settled, "1")),
        (hot_path.entries, (Entry, "text", [], 0, {}, b"")),
        (hot_path.entries, (Entry, b"", [], 2**80, {}, b"")),
    ]
    for call, args in calls:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            call(*args)
    for odd in (1, (request,), (request, 1), (1, Ok(b"1"))):
        about = (Request, Ok, Settled, {Tier.FREE: "free"}, "bunch:reply:", 1, b"d", "")
        assert hot_path.results([odd], *about) == [None]
        assert hot_path.members([odd], Request, Ok, {Tier.FREE: 0}, 1) is None
    assert hot_path.outcome_words([1], Settled, 0) is None
    assert hot_path.entries(Entry, b"0", [b"a"], 0, {}, b"\0") is None


def test_nothing_is_kept() -> None:
    """A reference too many would keep each request for ever, one too few would end the process."""
    raw = message()
    entries = (entry(raw), entry(b"{}", 2))
    pairs: list[tuple[Request, Outcome]] = [(Request("i" * 40, Tier.PAID, 1, b"1", b"{}"), Ok(b"1234", b'"a":1'))]
    request, output = pairs[0]
    watched = [raw, entries[0], request, output, request.id, Tier.PAID, Request, Ok, Settled, NO_PARAMETERS]

    def run() -> None:
        read_fresh(entries, NOW_MS)
        outcome_rows.outcome_rows(CeleryCodec(1000).encode_all(pairs, INFO))
        recorded(pairs)
        hot_path.packed((raw, request.id))
        entries_of(b"1-1-", [raw, b"\0"])

    run()
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(50):
        run()
    assert [sys.getrefcount(each) for each in watched] == before
