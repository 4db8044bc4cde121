"""What has been asked before: requests that need no computing of their own, or must not have one.

    Idempotency-Key  the same key with the same question: the first request's id and outcome, whatever it was
                     the same key with another question: refused, 409
    `collapse`       the same question at the same time: one is computed, all who wait get what comes of it
    `cache`          the same question within five minutes: the same output, under an id of its own

`submit.lua` decides, in the step that would queue the request, so that two at once cannot both be the first. Questions
and keys are their owner's: how long another one's answer takes would tell what strangers ask.
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
# 192 bits: nobody finds two questions with one name, and it is a third shorter wherever it travels.
_QUESTION_BYTES = 24
_LARGE_BYTES = 64 * 1024


@dataclass(slots=True)
class DedupIdentity:
    """The keys under which the submit script recognises a repeated request; any of them may be empty.

    `claim` is the Redis name of its Idempotency-Key, `fingerprint` a hash of what is asked. `question` is a hash of
    what others may ask too, whose answer is kept for `keep_ms`.
    """

    claim: str = ""
    fingerprint: str = ""
    question: str = ""
    keep_ms: int = 0

    def words(self, request_key: str) -> str:
        """As the submit script takes it, in the place of the request's own name."""
        if request_key or self.claim:
            return f"{self.question}\n{request_key}\n{self.claim}\n{self.fingerprint}"
        return self.question

    @property
    def mark(self) -> str:
        """What its message says of it, for whoever has the answer."""
        return f"{self.question};{self.keep_ms}" if self.question else ""


def read_mark(header: str) -> tuple[str, int]:
    """Question, and for how long to keep its answer, of a message's header."""
    question, _, keep_ms = header.partition(";")
    return question, int(keep_ms)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The answer to a request whose Idempotency-Key has been used for the same: whose outcome it gets."""

    task_id: str


class Deduplicator:
    """Makes a request's `DedupIdentity`. Another owner's keys and questions are others.

    `asked` has the models whose answers are for others too; for requests to any other, `of` need not be called.
    """

    def __init__(self, settings: Settings, keys: Shard) -> None:
        self._keys = keys
        # Whatever makes the same words another question, but for the owner.
        self.asked: Mapping[str, bytes] = {
            name: _hash(name.encode(), model.version.encode(), model.source.encode(), _encode_sorted(model.options))
            for name, model in settings.models.items()
            if model.collapses
        }
        self._keep_ms = {
            name: settings.cache_ttl_ms if model.cache else 0
            for name, model in settings.models.items()
            if name in self.asked
        }

    def of(self, submission: Submission) -> DedupIdentity | None:
        """None for a request that stands for itself, as nearly all do."""
        key, owner = submission.idempotency_key, submission.caller.owner
        shared = None if submission.fresh else self.asked.get(submission.model)
        if shared is None and not key:
            return None
        input, parameters = canonical(submission.input), canonical(submission.parameters)
        claim = fingerprint = question = ""
        if key:
            claim = self._keys.idempotency(_hash(owner.encode(), key.encode()).hex()[:32])
            fingerprint = _hash(submission.model.encode(), input, parameters, submission.call_hash).hex()
        if shared is None:
            return DedupIdentity(claim, fingerprint)
        # One call and no lengths but two: what stands before the input has a length of its own, or ends in one.
        words = b"%b%d:%d:%b%b%b" % (shared, len(owner), len(parameters), owner.encode(), parameters, input)
        question = urlsafe_b64encode(sha256(words).digest()[:_QUESTION_BYTES]).decode()
        return DedupIdentity(claim, fingerprint, question, self._keep_ms[submission.model])


def canonical(value: bytes) -> bytes:
    """One spelling for equal values; `value` is JSON as msgspec writes it, where only the order of names is open.

    Of a large value the order counts too: to sort its names costs the event loop several times what all the rest does.
    """
    if b"{" not in value or value == b"{}" or len(value) > _LARGE_BYTES:
        return value
    return _encode_sorted(_decode(value))


def call_hash(values: Iterable[bytes]) -> bytes:
    """Of a call that becomes several requests."""
    return _hash(*map(canonical, values)).hex().encode()


def _hash(*parts: bytes) -> bytes:
    """SHA-256; the lengths keep two lists of parts apart that join to the same bytes."""
    return sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).digest()
