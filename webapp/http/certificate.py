"""The parts of a client certificate that name its holder."""

from __future__ import annotations

import ssl
from typing import Any, NamedTuple

CERTIFICATE = "bunch.client_certificate"
"""The key of a verified `ClientCertificate` in the environ."""


class ClientCertificate(NamedTuple):
    """A certificate that the handshake has verified. `expires_at` is epoch seconds.

    `names` are the subject's alternative names as (kind, name), in their order: `("URI", "spiffe://…")`,
    `("DNS", …)`, `("email", …)`. `units` are the organizational units of the subject.
    """

    common_name: str
    units: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    expires_at: float

    @classmethod
    def of(cls, peer: dict[str, Any]) -> ClientCertificate:
        """Make it from what `getpeercert()` returns."""
        subject = [pair for group in peer.get("subject", ()) for pair in group]
        return cls(
            next((value for key, value in subject if key == "commonName"), ""),
            tuple(value for key, value in subject if key == "organizationalUnitName"),
            tuple((kind, name) for kind, name in peer.get("subjectAltName", ()) if isinstance(name, str)),
            float(ssl.cert_time_to_seconds(peer["notAfter"])),
        )
