"""Client certificates as credentials: what a certificate of a trusted authority names, owns the requests.

    SAN  URI ▷ DNS ▷ email, else the subject's CN  ─▶ owner, as `mtls:<name>`
    subject's OU that is a tier's name             ─▶ tier, else `BUNCH_DEFAULT_TIER`

The TLS handshake has verified the certificate (`config.front_tls`); its end is checked again with each request, since a
connection may outlive it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from time import time

from config.settings import Settings
from config.tiers import TIERS
from tasks.protocol.caller import Caller
from webapp.http.certificate import ClientCertificate
from webapp.request import HttpRequest

_KINDS = ("URI", "DNS", "email")
_TIER_BY_NAME = {tier.value: tier for tier in TIERS}
# As the owners that tokens name: safe in the ledger and in a Redis key.
_OWNER = re.compile(r"[!-~]{1,120}")
_MAX_REMEMBERED = 10_000


class CertificateHolders:
    """Identifies callers by their certificates. `clock` gives epoch seconds."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time) -> None:
        self._default_tier = settings.default_tier
        self._clock = clock
        self._known: dict[ClientCertificate, Caller | None] = {}

    def find(self, call: HttpRequest) -> Caller | None:
        """The holder of the connection's certificate; None without one, or if it names nobody or has expired."""
        certificate = call.certificate
        if certificate is None or certificate.expires_at <= self._clock():
            return None
        if certificate not in self._known:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[certificate] = self._holder(certificate)
        return self._known[certificate]

    def _holder(self, certificate: ClientCertificate) -> Caller | None:
        name = _name_of(certificate)
        if not _OWNER.fullmatch(name):
            return None
        tier = next((_TIER_BY_NAME[unit] for unit in certificate.units if unit in _TIER_BY_NAME), self._default_tier)
        # The prefix separates them from the owners of keys and of tokens.
        owner = f"mtls:{name}"
        return Caller(hashlib.sha256(owner.encode()).hexdigest()[:16], owner, tier)


def _name_of(certificate: ClientCertificate) -> str:
    """The first alternative name of the best kind, or the common name, which no alternative name looks like."""
    for wanted in _KINDS:
        for kind, name in certificate.names:
            if kind == wanted:
                return name.lower() if kind == "DNS" else name
    return f"CN={certificate.common_name}" if certificate.common_name else ""
