"""`Authorization: Bearer …`: an API key, a token, or the operators' own.

    service token? ─yes─▶ OPERATOR            at an operator's endpoint alone
        │ no
    has the form of a key? ─yes─▶ KeyRing     a dictionary and one hash
        │ no
    TokenVerifier                             remembered, or one signature

Everything else is 401, in the same words whatever was wrong, and the more of them come from one address the longer they
take.
"""

from __future__ import annotations

import hmac
from time import monotonic

import gevent

from config.settings import Settings, is_loopback
from config.tiers import Tier
from tasks.caller import Caller
from webapp.call import Call
from webapp.errors import ApiError
from webapp.identity.base import Access
from webapp.identity.jwks import KeySet
from webapp.identity.keyring import KeyRing
from webapp.identity.penalties import LONGEST_PAUSE_S, Penalties
from webapp.identity.tokens import TokenVerifier

OPERATOR = Caller("operator", "", Tier.FREE)
"""Who has the service token, or is on the machine where none is asked for: sees everybody's requests."""

# More refusals than these are not held back but sent away: holding them costs memory.
MAX_HELD_BACK = 200
_CHALLENGE = (("WWW-Authenticate", 'Bearer realm="bunch"'),)


class Bearer:
    """Keys and tokens, as far as the settings take them."""

    def __init__(self, settings: Settings, ring: KeyRing | None, tokens: TokenVerifier | None, jwks: KeySet) -> None:
        self._ring = ring
        self._tokens = tokens
        self._jwks = jwks
        self._service_token = settings.service_token.encode()
        # Whoever runs the machine may look, unless there is a token for it.
        self._operators_only_by_token = bool(settings.service_token) or not is_loopback(settings.http_host)
        self._penalties = Penalties()
        self._held_back = 0

    def start(self) -> None:
        if self._ring is not None:
            self._ring.start()
        self._jwks.start()

    def stop(self) -> None:
        if self._ring is not None:
            self._ring.stop()
        self._jwks.stop()

    @property
    def ready(self) -> bool:
        """Whether there is anything to check credentials with."""
        return (self._ring is None or self._ring.loaded) and (self._tokens is None or self._jwks.loaded)

    def identify(self, call: Call, access: Access) -> Caller:
        text = _credential(call)
        if access is not Access.TENANT and self._is_operator(text, access):
            return OPERATOR
        caller = self._tenant(text)
        if caller is None:
            raise self._refusal(call, text)
        if access is Access.OPERATOR:
            raise ApiError("FORBIDDEN", "this is for operators, who send the service token")
        return caller

    def _is_operator(self, text: str, access: Access) -> bool:
        if not self._operators_only_by_token:
            return access is Access.OPERATOR or not text
        return bool(self._service_token) and hmac.compare_digest(self._service_token, text.encode("latin-1"))

    def _tenant(self, text: str) -> Caller | None:
        if not text:
            return None
        caller = None if self._ring is None else self._ring.find(text)
        if caller is None and self._tokens is not None and text.count(".") == 2:
            caller = self._tokens.find(text)
        return caller

    def _refusal(self, call: Call, text: str) -> ApiError:
        if not text:
            return ApiError("UNAUTHENTICATED", "send Authorization: Bearer <API key or token>", _CHALLENGE)
        self._hold_back(call)
        return ApiError("UNAUTHENTICATED", "the credential is not valid", _CHALLENGE)

    def _hold_back(self, call: Call) -> None:
        pause_s = self._penalties.pause(call.header("REMOTE_ADDR") or "", monotonic())
        if not pause_s:
            return
        if self._held_back >= MAX_HELD_BACK:
            raise ApiError("RATE_LIMITED", "too many wrong credentials; try again later", retry_after_s=LONGEST_PAUSE_S)
        self._held_back += 1
        try:
            gevent.sleep(pause_s)
        finally:
            self._held_back -= 1


def _credential(call: Call) -> str:
    """What stands behind `Bearer`; empty when there is nothing."""
    header = call.header("HTTP_AUTHORIZATION")
    if header is None:
        return ""
    scheme, _, text = header.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else "?"
