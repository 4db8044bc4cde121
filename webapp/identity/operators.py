"""Who runs the machine: whoever has a service token, or is on the machine where there is none.

| `BUNCH_HTTP_HOST` | `BUNCH_SERVICE_TOKEN` | operators are                           |
|-------------------|-----------------------|-----------------------------------------|
| loopback          | unset                 | programs on this machine: `Loopback`    |
| any               | set                   | those who send it, or one of several    |
| not loopback      | unset                 | nobody                                  |

The one rule for `/metrics`, `/internal/*`, and all of `/ops` but the empty page. `BUNCH_AUTH`, which is about callers,
changes nothing in it.
"""

from __future__ import annotations

import hmac

from config.settings import Settings
from config.tiers import Tier
from tasks.protocol.caller import Caller
from webapp.errors import ApiError
from webapp.identity.base import CHALLENGE
from webapp.identity.loopback import Loopback
from webapp.request import HttpRequest


def operator(name: str) -> Caller:
    """Sees everybody's requests; `name` is in the log of what it does."""
    return Caller(name, "", Tier.FREE)


LOCAL = operator("loopback")


class Operators:
    """`admit` is asked at operators' endpoints, `named` where callers are admitted too."""

    def __init__(self, settings: Settings) -> None:
        self._by_token = bool(settings.service_token)
        self._tokens = [(token.encode(), operator(name)) for name, token in settings.service_tokens.items()]
        self._loopback = Loopback(settings)

    def admit(self, call: HttpRequest) -> Caller | None:
        """The operator who calls; None for whoever is none."""
        return self.named(call) or (LOCAL if not self._by_token and self._loopback.has(call) else None)

    def named(self, call: HttpRequest) -> Caller | None:
        """Whose service token the call has."""
        text = credential(call).encode("latin-1")
        found = None
        # All of them each time: how long it takes says nothing about which was nearly right.
        for token, caller in self._tokens:
            if hmac.compare_digest(token, text):
                found = caller
        return found

    def refusal(self) -> ApiError:
        """For whoever is not admitted."""
        if self._by_token or not self._loopback.listens:
            return ApiError("UNAUTHENTICATED", "send Authorization: Bearer <service token>", CHALLENGE)
        return ApiError(
            "FORBIDDEN",
            "under another host name, or through a proxy, a service token is needed: set BUNCH_SERVICE_TOKEN",
        )


def credential(call: HttpRequest) -> str:
    """What stands behind `Bearer`; empty when there is nothing."""
    header = call.header("HTTP_AUTHORIZATION")
    if header is None:
        return ""
    if header.startswith("Bearer "):
        return header[7:].strip()
    scheme, _, text = header.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else "?"
