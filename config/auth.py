"""The settings of who may ask, and of the database that remembers who did; part of `config.settings.Settings`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from config.errors import Problem
from config.tiers import Tier

RSA, ELLIPTIC, SHARED = "RS256", "ES256", "HS256"
ALGORITHMS = (RSA, ELLIPTIC, SHARED)
# Fields that are never shown, whatever is wrong with them; a URL may hold a password.
SECRET_FIELDS = frozenset(
    {"flower_basic_auth", "jwt_secret", "service_token", "database_url", "redis_url", "broker_url"}
)
_MIN_TOKEN = 16
# RFC 7518, 3.2: a key of the hash's size at least.
_MIN_SECRET_BYTES = 32
_TOKEN = re.compile(r"[!-~]+")
_DATABASE = re.compile(r"(sqlite|postgresql(\+psycopg)?|postgres)://")


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`auth` says which credentials are taken; what belongs to the others is ignored."""

    auth: Literal["off", "keys", "jwt", "keys,jwt"] = "off"
    service_token: str = ""
    jwt_algorithms: str = ""
    jwt_jwks: str = ""
    jwt_jwks_refresh_ms: Annotated[int, msgspec.Meta(ge=1000)] = 300_000
    jwt_secret: str = ""
    jwt_audience: str = ""
    jwt_issuer: str = ""
    jwt_tier_claim: str = "tier"
    jwt_owner_claim: str = "sub"
    jwt_default_tier: Tier = Tier.FREE
    jwt_leeway_ms: Annotated[int, msgspec.Meta(ge=0, le=300_000)] = 0
    database_url: str = ""
    ledger_retention_days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 0

    @property
    def takes_keys(self) -> bool:
        return "keys" in self.auth

    @property
    def takes_tokens(self) -> bool:
        return "jwt" in self.auth

    @property
    def keeps_ledger(self) -> bool:
        return self.ledger_retention_days > 0

    @property
    def needs_database(self) -> bool:
        return self.takes_keys or self.keeps_ledger

    @property
    def token_algorithms(self) -> tuple[str, ...]:
        """As set; else those that there is a key for."""
        if self.jwt_algorithms:
            return tuple(each.strip() for each in self.jwt_algorithms.split(","))
        return ((RSA, ELLIPTIC) if self.jwt_jwks else ()) + ((SHARED,) if self.jwt_secret else ())


def shown(field: str, value: object) -> object:
    """A bad value of a known setting, as it may be printed."""
    return "…" if field in SECRET_FIELDS else value


def shown_of_unknown(value: object) -> object:
    """The name may be a secret's, misspelt; a number is none."""
    return value if str(value).isdigit() else "…"


def contradictions(settings: AuthSettings) -> Iterator[Problem]:
    """What does not fit together; no secret is named."""
    token = settings.service_token
    if token and not (_TOKEN.fullmatch(token) and len(token) >= _MIN_TOKEN):
        yield Problem("BUNCH_SERVICE_TOKEN", "…", f"must be {_MIN_TOKEN} or more printable characters without spaces")
    if settings.database_url and not _DATABASE.match(settings.database_url):
        yield Problem("BUNCH_DATABASE_URL", "…", "must start with sqlite:// or postgresql://")
    if settings.takes_tokens:
        yield from _token_problems(settings)


def _token_problems(settings: AuthSettings) -> Iterator[Problem]:
    if not settings.jwt_jwks and not settings.jwt_secret:
        yield Problem("BUNCH_AUTH", settings.auth, "set BUNCH_JWT_JWKS or BUNCH_JWT_SECRET to check tokens with")
    unknown = [each for each in settings.token_algorithms if each not in ALGORITHMS]
    if unknown:
        yield Problem(
            "BUNCH_JWT_ALGORITHMS", settings.jwt_algorithms, f"must be some of {', '.join(ALGORITHMS)}, with commas"
        )
    if settings.jwt_algorithms:
        if SHARED in settings.token_algorithms and not settings.jwt_secret:
            yield Problem("BUNCH_JWT_ALGORITHMS", settings.jwt_algorithms, f"{SHARED} needs BUNCH_JWT_SECRET")
        if {RSA, ELLIPTIC} & set(settings.token_algorithms) and not settings.jwt_jwks:
            yield Problem("BUNCH_JWT_ALGORITHMS", settings.jwt_algorithms, "RS256 and ES256 need BUNCH_JWT_JWKS")
    if settings.jwt_secret and len(settings.jwt_secret.encode()) < _MIN_SECRET_BYTES:
        yield Problem("BUNCH_JWT_SECRET", "…", f"must be {_MIN_SECRET_BYTES} bytes or more: shorter ones are guessed")
    if "-----BEGIN" in settings.jwt_secret:
        yield Problem("BUNCH_JWT_SECRET", "…", "is a PEM key, not a shared secret; public keys go into BUNCH_JWT_JWKS")
    url = urlsplit(settings.jwt_jwks)
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        yield Problem("BUNCH_JWT_JWKS", settings.jwt_jwks, "must be https://: who can change the keys can be anybody")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
