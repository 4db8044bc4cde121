"""API keys: `bunch_<tier>_<id>_<secret>`.

The prefix lets a person, and a scanner of leaked secrets, recognise a key. The id finds the record without touching the
secret. The secret is 256 random bits that nobody can guess, so a plain SHA-256 of it can be stored; a slow hash would
protect nothing more. The tier in the text is for people; the tier of the record is the one that counts.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from typing import Annotated

import msgspec

from config.tiers import Tier
from tasks.protocol.caller import Caller

_ALPHABET = string.ascii_letters + string.digits
_ID_LENGTH = 12
# 43 letters and digits: 256 bits.
_SECRET_LENGTH = 43
_FORM = re.compile(rf"bunch_[a-z]+_([0-9a-z]{{{_ID_LENGTH}}})_([0-9A-Za-z]{{{_SECRET_LENGTH}}})")
MAX_LENGTH = 128
OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""The form of an owner's name. It has no colon: a colon marks the owners that tokens name."""

Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key as a frontend knows it. `expires_at` is epoch seconds, 0 for never; `digest` is the SHA-256 of its
    secret.
    """

    id: str
    digest: Digest
    owner: str
    tier: Tier
    rpm: int | None = None
    burst: int | None = None
    expires_at: float = 0.0

    def caller(self) -> Caller:
        return Caller(self.id, self.owner, self.tier, self.rpm, self.burst)

    def opens_with(self, secret: str) -> bool:
        return hmac.compare_digest(self.digest, digest_of(secret))


def new_key(tier: Tier) -> tuple[str, str, bytes]:
    """Return a new key's id, its whole text, which is shown only once, and the digest to store."""
    key_id = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(_ID_LENGTH))
    secret = "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))
    return key_id, f"bunch_{tier.value}_{key_id}_{secret}", digest_of(secret)


def split_key(text: str) -> tuple[str, str] | None:
    """Return id and secret of a text that has the form of a key, else None."""
    found = _FORM.fullmatch(text) if len(text) <= MAX_LENGTH else None
    return (found[1], found[2]) if found else None


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


NOBODY = ApiKey(id="", digest=digest_of(secrets.token_hex(32)), owner="", tier=Tier.FREE)
"""The key that an unknown id is compared with, so that the comparison takes as long as for a known one."""
