"""Identification of callers. Both lanes call the same `Identity` before any handler runs (`webapp.app.answered`).

HttpRequest ──Authorization, certificate──▶ Identity ──▶ Caller (key, owner, tier, limits)
                                 └ refused: 401, or 403 for a known caller at an operator's endpoint
"""

from __future__ import annotations

from redis import Redis

from config.settings import Settings
from tasks.accounts.key_table import KeyTableStore
from webapp.identity.base import Identity
from webapp.identity.no_auth import NoAuth


def make_identity(settings: Settings, redis: Redis) -> Identity:
    """Make the identification that `BUNCH_AUTH` names, without starting it."""
    if settings.auth == "off":
        return NoAuth(settings)
    # An installation without the extra `accounts` has no library for tokens.
    from webapp.identity.bearer import Bearer
    from webapp.identity.certificates import CertificateHolders
    from webapp.identity.jwks import KeySet
    from webapp.identity.keyring import KeyRing
    from webapp.identity.tokens import TokenVerifier

    jwks = KeySet(settings)
    ring = KeyRing(KeyTableStore(redis)) if settings.takes_keys else None
    tokens = TokenVerifier(settings, jwks) if settings.takes_tokens else None
    holders = CertificateHolders(settings) if settings.takes_certificates else None
    return Bearer(settings, ring, tokens, jwks, holders)
