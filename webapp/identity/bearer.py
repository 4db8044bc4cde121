"""`Authorization: Bearer …`: an API key, a token, or the operators' service token; or a client certificate.

    service token? ─yes─▶ OPERATOR            at an operator's endpoint alone
        │ no
    has the form of a key? ─yes─▶ KeyRing     a dictionary and one hash
        │ no
    TokenVerifier                             remembered, or one signature

    no credential, or only certificates are accepted? ─▶ CertificateHolders

Everything else is 401, with the same text whatever was wrong. The more of them come from one address, the longer they
take.
"""

from __future__ import annotations

from time import monotonic

import gevent

from config.settings import Settings
from tasks.protocol.caller import Caller
from webapp.errors import ApiError
from webapp.identity.base import CHALLENGE, Access
from webapp.identity.certificates import CertificateHolders
from webapp.identity.client_address import ClientAddress
from webapp.identity.jwks import KeySet
from webapp.identity.keyring import KeyRing
from webapp.identity.operators import Operators, credential
from webapp.identity.throttle import LONGEST_PAUSE_S, Throttle
from webapp.identity.tokens import TokenVerifier
from webapp.request import HttpRequest

# Further refusals are sent at once instead of held back: holding them costs memory.
MAX_HELD_BACK = 200


class Bearer:
    """Identifies callers by keys, tokens and certificates, as far as the settings accept them."""

    def __init__(
        self,
        settings: Settings,
        ring: KeyRing | None,
        tokens: TokenVerifier | None,
        jwks: KeySet,
        holders: CertificateHolders | None = None,
    ) -> None:
        self._ring = ring
        self._tokens = tokens
        self._jwks = jwks
        self._holders = holders
        self._without_text = holders is not None and ring is None and tokens is None
        self._operators = Operators(settings)
        self._client_address = ClientAddress(settings)
        self._penalties = Throttle()
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
        """True if there is anything to check credentials with."""
        return (self._ring is None or self._ring.loaded) and (self._tokens is None or self._jwks.loaded)

    def identify(self, call: HttpRequest, access: Access) -> Caller:
        if access is not Access.TENANT:
            # A caller's credential at a path that is for both identifies that caller.
            found = self._operators.admit(call) if access is Access.OPERATOR else self._operators.named(call)
            if found is None and access is Access.EITHER and not call.header("HTTP_AUTHORIZATION"):
                found = self._operators.admit(call)
            if found is not None:
                return found
        text = credential(call)
        caller = self._tenant(text)
        if caller is None and self._holders is not None and (not text or self._without_text):
            # A credential that is not valid is refused, whatever certificate comes with it.
            caller = self._holders.find(call)
        if caller is None:
            raise self._refusal(call, text)
        if access is Access.OPERATOR:
            raise ApiError("FORBIDDEN", "only operators may use this: send the service token")
        return caller

    def recognised(self, call: HttpRequest) -> Caller | None:
        ring, text = self._ring, credential(call)
        if self._holders is not None and (not text or self._without_text):
            return self._holders.find(call)
        # A token may need its issuer's keys, which are at another host.
        return ring.find(text) if ring is not None and ring.loaded and text else None

    def _tenant(self, text: str) -> Caller | None:
        if not text:
            return None
        caller = None if self._ring is None else self._ring.find(text)
        if caller is None and self._tokens is not None and text.count(".") == 2:
            caller = self._tokens.find(text)
        return caller

    def _refusal(self, call: HttpRequest, text: str) -> ApiError:
        # Where only certificates are accepted no text is right, so there is nothing to guess.
        if not text or self._without_text:
            return ApiError("UNAUTHENTICATED", self._wanted(), CHALLENGE)
        self._hold_back(call)
        return ApiError("UNAUTHENTICATED", "the credential is not valid", CHALLENGE)

    def _wanted(self) -> str:
        if self._without_text:
            return "connect with a client certificate that names you, of an authority that is trusted here"
        also = "" if self._holders is None else ", or connect with a client certificate"
        return f"send Authorization: Bearer <API key or token>{also}"

    def _hold_back(self, call: HttpRequest) -> None:
        pause_s = self._penalties.pause(self._client_address(call), monotonic())
        if not pause_s:
            return
        if self._held_back >= MAX_HELD_BACK:
            raise ApiError("RATE_LIMITED", "too many wrong credentials; try again later", retry_after_s=LONGEST_PAUSE_S)
        self._held_back += 1
        try:
            gevent.sleep(pause_s)
        finally:
            self._held_back -= 1
