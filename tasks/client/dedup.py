"""Deduplication: requests that need no computation of their own, or must not have one.

    Idempotency-Key  the same key with the same request: the first one's id and outcome, whatever it was
                     the same key with a different request: refused, 409
    `collapse`       identical requests at the same time: one is computed, all that wait get its outcome
    `cache`          an identical request within five minutes: the same output, under an id of its own

`submit.lua` decides, in the same step that queues the request, so that of two at once only one is the first. Requests
and keys are compared within one owner only: otherwise the time of an answer would tell what others have asked.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from config.keys import Shard
from config.settings import Settings
from tasks.client.submission import Submission

_decode = msgspec.json.decode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
# 192 bits: no two requests with the same hash can be found, and it is a third shorter in every message.
_QUESTION_BYTES = 24
_LARGE_BYTES = 64 * 1024


@dataclass(slots=True)
class DedupIdentity:
    """The keys under which the submit script recognises a repeated request; any of them may be empty.

    `claim` is the Redis name of its Idempotency-Key, `fingerprint` a hash of the request. `question` is a hash of the
    parts that identical requests share; the answer to it is kept for `keep_ms`.
    """

    claim: str = ""
    fingerprint: str = ""
    question: str = ""
    keep_ms: int = 0

    def words(self, request_key: str) -> str:
        """The form that the submit script takes, in place of the request's own name."""
        if request_key or self.claim:
            return f"{self.question}\n{request_key}\n{self.claim}\n{self.fingerprint}"
        return self.question

    @property
    def mark(self) -> str:
        """The mark in its message, for the worker that has the answer."""
        return f"{self.question};{self.keep_ms}" if self.question else ""


def read_mark(header: str) -> tuple[str, int]:
    """The question, and how long to keep its answer in ms, from a message's header."""
    question, _, keep_ms = header.partition(";")
    return question, int(keep_ms)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The reply for a request whose Idempotency-Key was used for the same request: the id whose outcome it gets."""

    task_id: str


class Deduplicator:
    """Makes a request's `DedupIdentity`, which differs for each owner.

    `asked` has the models whose answers may be shared; for requests to any other, `of` need not be called.
    """

    def __init__(self, settings: Settings, keys: Shard) -> None:
        self._keys = keys
        # Everything that distinguishes identical inputs, except the owner.
        self.asked: Mapping[str, bytes] = {
            name: _hash(name.encode(), model.version.encode(), model.source.encode(), _encode_sorted(model.options))
            for name, model in settings.models.items()
            if model.collapses
        }
        self._fetched = {name for name, model in settings.models.items() if model.takes_bytes}
        self._keep_ms = {
            name: settings.cache_ttl_ms if model.cache else 0
            for name, model in settings.models.items()
            if name in self.asked
        }

    def of(self, submission: Submission, digest: str = "") -> DedupIdentity | None:
        """The identity of a request; None for one that is never shared, as most are. `digest` is the hash of a large
        input, which stands for it.
        """
        key, owner = submission.idempotency_key, submission.caller.owner
        shared = None if submission.fresh else self.asked.get(submission.model)
        if submission.model in self._fetched and not submission.binary and b'"sha256":"' not in submission.input:
            # What a URL leads to may be another thing the next time.
            shared = None
        if shared is None and not key:
            return None
        # Bytes are their own spelling.
        input = submission.input if submission.binary or digest else canonical(submission.input)
        # No value has the hash of another one's place: the mark stands where a value has nothing, or a digit.
        mark, input = (b"#", digest.encode()) if digest else (b"", input)
        parameters = canonical(submission.parameters)
        claim = fingerprint = question = ""
        if key:
            claim = self._keys.idempotency(_hash(owner.encode(), key.encode()).hex()[:32])
            fingerprint = _hash(
                (submission.asked or submission.model).encode(), input, parameters, submission.call_hash + mark
            ).hex()
        if shared is None:
            return DedupIdentity(claim, fingerprint)
        # One call, and two lengths: everything before the input has a length of its own, or ends in one.
        words = b"%b%b%d:%d:%b%b%b" % (shared, mark, len(owner), len(parameters), owner.encode(), parameters, input)
        question = urlsafe_b64encode(sha256(words).digest()[:_QUESTION_BYTES]).decode()
        return DedupIdentity(claim, fingerprint, question, self._keep_ms[submission.model])


def canonical(value: bytes) -> bytes:
    """One spelling for equal values. `value` is JSON from msgspec, where only the order of names may differ.

    In a large value a different order counts as different: to sort its names would block the event loop for too long.
    """
    if b"{" not in value or value == b"{}" or len(value) > _LARGE_BYTES:
        return value
    return _encode_sorted(_decode(value))


def call_hash(values: Iterable[bytes | tuple[bytes, str]]) -> bytes:
    """The hash of a call that becomes several requests. A value is JSON, or bytes with their media type."""
    parts: list[bytes] = []
    for each in values:
        parts += (canonical(each),) if isinstance(each, bytes) else (each[0], each[1].encode())
    return _hash(*parts).hex().encode()


def _hash(*parts: bytes) -> bytes:
    """SHA-256 of the parts with their lengths, so that two lists never join to the same bytes."""
    return sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).digest()
