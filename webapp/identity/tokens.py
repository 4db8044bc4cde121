"""JSON Web Tokens: verified once, then remembered until they expire.

Verifying a signature costs a frontend as much as the rest of a request. A token is remembered by its hash, at most
until its own `exp`, and no longer than the keys that verified it are in use.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import time
from typing import Any

import jwt

from config.auth import AuthSettings
from config.tiers import TIERS, Tier
from tasks.protocol.caller import Caller
from webapp.identity.jwks import KeySet

MAX_LENGTH = 8192
MAX_REMEMBERED = 10_000
_TIER_BY_NAME = {tier.value: tier for tier in TIERS}
# The characters of an owner's name that are safe in the ledger and in a Redis key.
_OWNER = re.compile(r"[!-~]{1,120}")


class TokenVerifier:
    """Verifies tokens. `clock` gives epoch seconds."""

    def __init__(self, settings: AuthSettings, keys: KeySet, clock: Callable[[], float] = time) -> None:
        self._settings = settings
        self._keys = keys
        self._clock = clock
        self._algorithms = settings.token_algorithms
        self._leeway_s = settings.jwt_leeway_ms / 1000
        self._known: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()
        keys.on_change = self._known.clear

    def find(self, text: str) -> Caller | None:
        """The caller of a token; None whatever is wrong with it."""
        if len(text) > MAX_LENGTH:
            return None
        digest = hashlib.sha256(text.encode()).digest()
        known = self._known.get(digest)
        if known is not None:
            if self._clock() < known[0]:
                return known[1]
            del self._known[digest]
            return None
        try:
            claims = self._claims(text)
            caller = self._caller(claims)
            until = float(claims["exp"]) + self._leeway_s
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            return None
        if caller is not None:
            self._known[digest] = (until, caller)
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return caller

    def _claims(self, text: str) -> Mapping[str, Any]:
        header = jwt.get_unverified_header(text)
        algorithm = header.get("alg")
        # The algorithm must be allowed *and* have a key of its own type: the token does not choose how it is verified.
        if algorithm not in self._algorithms:
            raise jwt.InvalidAlgorithmError
        key = self._keys.find(algorithm, str(header.get("kid", "")))
        if key is None:
            raise jwt.InvalidKeyError
        settings = self._settings
        claims: Mapping[str, Any] = jwt.decode(
            text,
            key,
            algorithms=[algorithm],
            audience=settings.jwt_audience or None,
            issuer=settings.jwt_issuer or None,
            leeway=self._leeway_s,
            # `iat` is the time of issue, by a clock that may be ahead of ours; `nbf` is the start of validity.
            options={"require": ["exp", settings.jwt_owner_claim], "verify_iat": False},
        )
        return claims

    def _caller(self, claims: Mapping[str, Any]) -> Caller | None:
        settings = self._settings
        owner = claims[settings.jwt_owner_claim]
        named = claims.get(settings.jwt_tier_claim)
        tier = settings.jwt_default_tier if named is None else _tier(named)
        if tier is None or not isinstance(owner, str) or not _OWNER.fullmatch(owner):
            return None
        # The colon separates the issuer's subjects from the operator's own names for owners of keys.
        name = f"jwt:{owner}"
        return Caller(hashlib.sha256(name.encode()).hexdigest()[:16], name, tier)


def _tier(named: object) -> Tier | None:
    return _TIER_BY_NAME.get(named) if isinstance(named, str) else None
