"""What has been asked before: requests that need no computing of their own, or must not have one.

    Idempotency-Key  the same key with the same question: the first request's id and outcome, whatever it was
                     the same key with another question: refused, 409

`submit.lua` decides, in the step that would queue the request, so that two at once cannot both be the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from config.keys import Shard

_decode = msgspec.json.decode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True)
class Once:
    """By what the submit script knows a request again.

    `claim` is the Redis name of its Idempotency-Key, `fingerprint` a hash of what is asked; both empty without a key.
    """

    claim: str = ""
    fingerprint: str = ""

    def words(self, request_key: str) -> str:
        """As the submit script takes it, in the place of the request's own name."""
        return f"{request_key}\n{self.claim}\n{self.fingerprint}"


@dataclass(frozen=True, slots=True)
class Repeated:
    """The answer to a request whose Idempotency-Key has been used for the same: whose outcome it gets."""

    task_id: str


class Recogniser:
    """Makes a request's `Once`. Another owner's keys are other keys."""

    def __init__(self, keys: Shard) -> None:
        self._keys = keys

    def of(
        self, model: str, input: bytes, parameters: bytes, owner: str, idempotency_key: str, call: bytes = b""
    ) -> Once | None:
        """None for a request that stands for itself, as nearly all do.

        Args:
            call: whatever else must be the same for a key to be used again, hashed.
        """
        if not idempotency_key:
            return None
        claim = self._keys.idempotency(_hash(owner.encode(), idempotency_key.encode())[:32])
        return Once(claim, _hash(model.encode(), canonical(input), canonical(parameters), call))


def canonical(value: bytes) -> bytes:
    """One spelling for equal values; `value` is JSON as msgspec writes it, where only the order of names is open."""
    return _encode_sorted(_decode(value)) if b"{" in value else value


def call_hash(values: Iterable[bytes]) -> bytes:
    """Of a call that becomes several requests."""
    return _hash(*map(canonical, values)).encode()


def _hash(*parts: bytes) -> str:
    """SHA-256 in hex; the lengths keep two lists of parts apart that join to the same bytes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()
