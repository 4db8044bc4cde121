"""Identifies operators: those with a service token, or programs on this machine if no token is set.

| `BUNCH_HTTP_HOST` | `BUNCH_SERVICE_TOKEN` | operators are                           |
|-------------------|-----------------------|-----------------------------------------|
| loopback          | unset                 | programs on this machine: `Loopback`    |
| any               | set                   | those who send it, or one of several    |
| not loopback      | unset                 | nobody                                  |

The same rule holds for `/metrics`, `/internal/*`, and all of `/ops` except the empty page. `BUNCH_AUTH`, which is about
callers, does not change it.
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
    """Make the caller for an operator, who sees everybody's requests; `name` is logged with each action."""
    return Caller(name, "", Tier.FREE)


LOCAL = operator("loopback")


class Operators:
    """`admit` is for operators' endpoints, `named` for endpoints that callers may use too."""

    def __init__(self, settings: Settings) -> None:
        self._by_token = bool(settings.service_token)
        self._tokens = [(token.encode(), operator(name)) for name, token in settings.service_tokens.items()]
        self._loopback = Loopback(settings)

    def admit(self, call: HttpRequest) -> Caller | None:
        """The operator who sent the request; None if no operator did."""
        return self.named(call) or (LOCAL if not self._by_token and self._loopback.has(call) else None)

    def named(self, call: HttpRequest) -> Caller | None:
        """The operator whose service token the request has."""
        text = credential(call).encode("latin-1")
        found = None
        # All of them each time, so that the time does not tell which one was nearly right.
        for token, caller in self._tokens:
            if hmac.compare_digest(token, text):
                found = caller
        return found

    def refusal(self) -> ApiError:
        """The error for a request that is not admitted."""
        if self._by_token or not self._loopback.listens:
            return ApiError("UNAUTHENTICATED", "send Authorization: Bearer <service token>", CHALLENGE)
        return ApiError(
            "FORBIDDEN",
            "under another host name, or through a proxy, a service token is needed: set BUNCH_SERVICE_TOKEN",
        )


def credential(call: HttpRequest) -> str:
    """The text after `Bearer`; empty when there is none."""
    header = call.header("HTTP_AUTHORIZATION")
    if header is None:
        return ""
    if header.startswith("Bearer "):
        return header[7:].strip()
    scheme, _, text = header.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else "?"
