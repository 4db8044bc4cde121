"""Where an action may come from; who may act is `webapp.identity.operators`' affair, before any of this runs."""

from __future__ import annotations

from webapp.errors import ApiError
from webapp.request import HttpRequest


def refuse_other_sites(call: HttpRequest) -> None:
    """A page of somebody else's must not act through an operator's browser. Raises ApiError."""
    if call.header("HTTP_SEC_FETCH_SITE") not in {None, "same-origin", "none"}:
        raise ApiError("FORBIDDEN", "actions are taken from the operations page itself")
