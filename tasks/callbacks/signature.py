"""The signature of a pushed result: `Bunch-Signature: t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<body>">`."""

from __future__ import annotations

import hashlib
import hmac

HEADER = "Bunch-Signature"


def signature_of(secret: str, body: bytes, now_s: int) -> str:
    """The header's value. The time is signed too, so that a receiver can refuse an old message that is sent again."""
    mac = hmac.new(secret.encode(), b"%d.%b" % (now_s, body), hashlib.sha256)
    return f"t={now_s},v1={mac.hexdigest()}"
