"""Who may look and act: with auth off on a loopback address whoever is there, else who has the service token."""

from __future__ import annotations

import hmac

from config.settings import Settings, is_loopback
from webapp.call import Call
from webapp.errors import ApiError


def needs_token(settings: Settings) -> bool:
    return bool(settings.service_token) or settings.auth != "off" or not is_loopback(settings.http_host)


def admit(settings: Settings, call: Call) -> None:
    """Raises ApiError."""
    if not needs_token(settings):
        return
    if not settings.service_token:
        raise ApiError("FORBIDDEN", "the operations page needs a service token here: set BUNCH_SERVICE_TOKEN")
    scheme, _, given = (call.header("HTTP_AUTHORIZATION") or "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), settings.service_token.encode()):
        raise ApiError("UNAUTHENTICATED", "this needs the service token: Authorization: Bearer …")


def refuse_other_sites(call: Call) -> None:
    """A page of somebody else's must not act through an operator's browser. Raises ApiError."""
    site = call.header("HTTP_SEC_FETCH_SITE")
    if site not in {None, "same-origin", "none"}:
        raise ApiError("FORBIDDEN", "actions are taken from the operations page itself")
