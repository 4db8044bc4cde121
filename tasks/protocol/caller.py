"""The caller of a request, as identification makes it and admission and results use it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from config.tiers import TIERS, Tier

CLIENT_ID = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$(?!\n)"
"""The form of a client id. It has no control characters, since logs and the ledger show it."""
MAX_CLIENT_ID = 128
_client_id = re.compile(CLIENT_ID)


def valid_client_id(text: str) -> str:
    """Return `text`, or an empty string if it is no valid client id."""
    return text if len(text) <= MAX_CLIENT_ID and _client_id.search(text) else ""


@dataclass(frozen=True, slots=True)
class Caller:
    """One identified caller.

    `key_id` names the credential, which rate limits count for. `owner` names who it belongs to, which decides what a
    caller may see: two keys of one owner see each other's requests. Both are safe in a Redis key and a log line. Both
    are empty for the callers of a server with auth off, who have no limits and share everything. `rpm` (requests a
    minute) and `burst` are the credential's own; None: those of its tier.
    """

    key_id: str
    owner: str
    tier: Tier
    rpm: int | None = None
    burst: int | None = None


ANYBODY: dict[Tier, Caller] = {tier: Caller("", "", tier) for tier in TIERS}
"""With auth off, all callers of a tier are one caller."""
