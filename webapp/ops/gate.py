"""Where an action may come from; who may act is `webapp.identity.operators`' affair, before any of this runs."""

from __future__ import annotations

from urllib.parse import urlsplit

from config.settings import Settings, is_loopback
from webapp.call import Call
from webapp.errors import ApiError
from webapp.identity.operators import Operators


def refuse_other_sites(settings: Settings, call: Call) -> None:
    """A page of somebody else's must not act through an operator's browser. Raises ApiError."""
    site = call.header("HTTP_SEC_FETCH_SITE")
    if site not in {None, "same-origin", "none"}:
        raise ApiError("FORBIDDEN", "actions are taken from the operations page itself")
    host = call.header("HTTP_HOST")
    # Where no token is asked for, a name of somebody's own that resolves to this machine would be the same origin;
    # and what a proxy passes on comes from anywhere.
    if host is not None and not Operators(settings).by_token and not is_loopback(_hostname(host)):
        raise ApiError("FORBIDDEN", "under this name, actions need a service token: set BUNCH_SERVICE_TOKEN")


def _hostname(host: str) -> str:
    """Without its port; empty when it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
