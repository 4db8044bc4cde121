"""The seal of a frontend on its messages: only sealed messages may name owners and shared answers.

    {"headers":{"bunch":"1;…;<id>","bunch_once":…,"bunch_owner":…,"bunch_seal":"<24 hex>",…},"body":…,…}

A keyed hash (BLAKE2b, 96 bits) of the task id, the owner, the question, the reply address and the input. Any Celery
client that may push to a queue can name owners and questions in a message of its own; without the seal a worker would
store its result as another caller's answer.
"""

from __future__ import annotations

import hashlib
from hmac import compare_digest

from config.secrets.message_keys import fingerprint, message_keys
from config.settings import Settings

_DIGEST = 12


class Seal:
    """Signs with the first key, and accepts signatures of every key."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        # Prepared once: hashing the key would double the cost for a short message.
        self._begun = [hashlib.blake2b(key=key, digest_size=_DIGEST) for key in keys]
        self.fingerprint = fingerprint(keys)

    def sign(self, task_id: str, owner: str, once: str, reply_to: str, parameters: bytes, input: bytes) -> str:
        """The seal of a message with these contents."""
        return _digest(self._begun[0], _content(task_id, owner, once, reply_to, parameters, input))

    def fits(
        self, seal: str, task_id: str, owner: str, once: str, reply_to: str, parameters: bytes, input: bytes
    ) -> bool:
        """True if one of our frontends has sealed a message with these contents."""
        content = _content(task_id, owner, once, reply_to, parameters, input)
        given = seal.encode()
        return any(compare_digest(_digest(begun, content).encode(), given) for begun in self._begun)


def seal_of(settings: Settings) -> Seal | None:
    """The seal of these settings; None where nothing is signed. Raises SettingsError."""
    keys = message_keys(settings)
    return Seal(keys) if keys else None


def _digest(begun: hashlib.blake2b, content: bytes) -> str:
    digest = begun.copy()
    digest.update(content)
    return digest.hexdigest()


def _content(task_id: str, owner: str, once: str, reply_to: str, parameters: bytes, input: bytes) -> bytes:
    """The signed bytes. Each part has its length in front, so that two messages never have the same bytes."""
    lengths = f"{len(task_id)},{len(owner)},{len(once)},{len(reply_to)},{len(parameters)}:"
    return f"{lengths}{task_id}{owner}{once}{reply_to}".encode() + parameters + input
