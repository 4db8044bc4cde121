"""Settings of authentication, and of the database of keys and ledger; part of `config.settings.Settings`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from config.errors import Problem
from config.secrets.masking import masked_url
from config.tiers import Tier

RSA, ELLIPTIC, SHARED = "RS256", "ES256", "HS256"
ALGORITHMS = (RSA, ELLIPTIC, SHARED)
_MIN_TOKEN = 16
# RFC 7518, 3.2: a key at least as long as the hash.
_MIN_SECRET_BYTES = 32
_TOKEN = re.compile(r"[!-~]+")
# These characters separate several tokens.
_LISTS = frozenset(":,")
_OPERATOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_DATABASE = re.compile(r"(sqlite|postgresql(\+psycopg)?|postgres)://")


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of authentication. `auth` names the accepted kinds of credentials; settings of the other kinds are
    ignored.
    """

    auth: Literal["off", "keys", "jwt", "mtls", "keys,jwt", "keys,mtls", "jwt,mtls", "keys,jwt,mtls"] = "off"
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
    def service_tokens(self) -> dict[str, str]:
        """Operators' names and tokens, from `name:token,name:token`. A token without a name belongs to `operator`."""
        if not self.service_token:
            return {}
        if not _LISTS.intersection(self.service_token):
            return {"operator": self.service_token}
        pairs = (each.partition(":") for each in self.service_token.split(","))
        return {name.strip(): token.strip() for name, _, token in pairs}

    @property
    def takes_keys(self) -> bool:
        return "keys" in self.auth

    @property
    def takes_tokens(self) -> bool:
        return "jwt" in self.auth

    @property
    def takes_certificates(self) -> bool:
        return "mtls" in self.auth

    @property
    def keeps_ledger(self) -> bool:
        return self.ledger_retention_days > 0

    @property
    def needs_database(self) -> bool:
        return self.takes_keys or self.keeps_ledger

    @property
    def token_algorithms(self) -> tuple[str, ...]:
        """The accepted algorithms: `jwt_algorithms`, or those that a key is set for."""
        if self.jwt_algorithms:
            return tuple(each.strip() for each in self.jwt_algorithms.split(","))
        return ((RSA, ELLIPTIC) if self.jwt_jwks else ()) + ((SHARED,) if self.jwt_secret else ())


def listed(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated setting, without blanks and empty ones."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def contradictions(settings: AuthSettings) -> Iterator[Problem]:
    """Authentication settings that contradict each other. No secret is shown."""
    yield from _operator_problems(settings)
    if settings.database_url and not _DATABASE.match(settings.database_url):
        yield Problem("BUNCH_DATABASE_URL", "…", "must start with sqlite:// or postgresql://")
    if settings.takes_tokens:
        yield from _token_problems(settings)


def _operator_problems(settings: AuthSettings) -> Iterator[Problem]:
    tokens = settings.service_tokens
    parts = settings.service_token.split(",") if tokens else []
    if len(parts) != len(tokens) or not all(map(_OPERATOR.fullmatch, tokens)) or not all(tokens.values()):
        yield Problem(
            "BUNCH_SERVICE_TOKEN",
            "…",
            "write several tokens as name:token,name:token; each name once, of letters, digits, . - and _",
        )
    elif not all(_TOKEN.fullmatch(each) and len(each) >= _MIN_TOKEN for each in tokens.values()):
        yield Problem("BUNCH_SERVICE_TOKEN", "…", f"must be at least {_MIN_TOKEN} printable characters without spaces")


def _token_problems(settings: AuthSettings) -> Iterator[Problem]:
    if not settings.jwt_jwks and not settings.jwt_secret:
        yield Problem("BUNCH_AUTH", settings.auth, "verifying tokens needs BUNCH_JWT_JWKS or BUNCH_JWT_SECRET")
    unknown = [each for each in settings.token_algorithms if each not in ALGORITHMS]
    if unknown:
        yield Problem(
            "BUNCH_JWT_ALGORITHMS",
            settings.jwt_algorithms,
            f"must be a comma-separated list of {', '.join(ALGORITHMS)}",
        )
    if settings.jwt_algorithms:
        if SHARED in settings.token_algorithms and not settings.jwt_secret:
            yield Problem("BUNCH_JWT_ALGORITHMS", settings.jwt_algorithms, f"{SHARED} needs BUNCH_JWT_SECRET")
        if {RSA, ELLIPTIC} & set(settings.token_algorithms) and not settings.jwt_jwks:
            yield Problem("BUNCH_JWT_ALGORITHMS", settings.jwt_algorithms, "RS256 and ES256 need BUNCH_JWT_JWKS")
    yield from _secret_problems(settings.jwt_secret)
    yield from _source_problems(settings)


def _secret_problems(secret: str) -> Iterator[Problem]:
    if secret and len(secret.encode()) < _MIN_SECRET_BYTES:
        yield Problem(
            "BUNCH_JWT_SECRET", "…", f"must be at least {_MIN_SECRET_BYTES} bytes long: a shorter secret can be guessed"
        )
    if "-----BEGIN" in secret:
        yield Problem("BUNCH_JWT_SECRET", "…", "is a PEM key, not a shared secret; public keys go into BUNCH_JWT_JWKS")


def _source_problems(settings: AuthSettings) -> Iterator[Problem]:
    url = urlsplit(settings.jwt_jwks)
    if url.scheme not in {"http", "https"} or is_loopback(url.hostname or ""):
        return
    if url.scheme == "http":
        shown = masked_url(settings.jwt_jwks)
        yield Problem(
            "BUNCH_JWT_JWKS", shown, "must be https://: whoever can change the keys in transit can act as anybody"
        )
    for name in ("jwt_issuer", "jwt_audience"):
        if not getattr(settings, name):
            yield Problem(
                f"BUNCH_{name.upper()}",
                "",
                "must be set when BUNCH_JWT_JWKS is on another host: its keys also sign tokens for other services",
            )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
