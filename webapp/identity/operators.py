"""Who runs the machine: whoever has the service token, or is on the machine where there is none.

| `BUNCH_HTTP_HOST` | `BUNCH_SERVICE_TOKEN` | operators are           |
|-------------------|-----------------------|-------------------------|
| loopback          | unset                 | everybody who gets here |
| any               | set                   | those who send it       |
| not loopback      | unset                 | nobody                  |

The one rule for `/metrics`, `/internal/*`, and all of `/ops` but the empty page. `BUNCH_AUTH`, which is about callers,
changes nothing in it.
"""

from __future__ import annotations

import hmac

from config.settings import Settings, is_loopback
from config.tiers import Tier
from tasks.caller import Caller
from webapp.call import Call

OPERATOR = Caller("operator", "", Tier.FREE)
"""Sees everybody's requests."""


class Operators:
    """`by_token`: whether the token is asked for at all."""

    def __init__(self, settings: Settings) -> None:
        self._token = settings.service_token.encode()
        self.by_token = bool(settings.service_token) or not is_loopback(settings.http_host)

    def admit(self, text: str) -> bool:
        """Whether whoever sends `text` as a credential, or nothing, may do what operators do."""
        return not self.by_token or self.include(text)

    def include(self, text: str) -> bool:
        """Whether `text` is the token; nothing is, where none is set."""
        return bool(self._token) and hmac.compare_digest(self._token, text.encode("latin-1"))


def credential(call: Call) -> str:
    """What stands behind `Bearer`; empty when there is nothing."""
    header = call.header("HTTP_AUTHORIZATION")
    if header is None:
        return ""
    if header.startswith("Bearer "):
        return header[7:].strip()
    scheme, _, text = header.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else "?"
