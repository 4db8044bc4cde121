"""Checks that an action comes from the operations page itself; `webapp.identity.operators` has checked the operator."""

from __future__ import annotations

from webapp.errors import ApiError
from webapp.request import HttpRequest


def refuse_other_sites(call: HttpRequest) -> None:
    """Refuse requests of other sites' pages through an operator's browser. Raises ApiError."""
    if call.header("HTTP_SEC_FETCH_SITE") not in {None, "same-origin", "none"}:
        raise ApiError("FORBIDDEN", "actions are taken from the operations page itself")
