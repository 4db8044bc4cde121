"""The interface of identification, and the access rule of each path."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from tasks.protocol.caller import Caller
from webapp.request import HttpRequest


class Access(Enum):
    """The callers that a path is for. `EITHER`: callers see their own data there, operators see everything."""

    PUBLIC = auto()
    TENANT = auto()
    OPERATOR = auto()
    EITHER = auto()


_PUBLIC = frozenset({"/", "/healthz", "/readyz", "/openapi.json", "/ops"})
# A browser loads the page itself without a credential; its data and actions are for operators only.
_PAGE = "/ops/static/"
_OPERATOR = ("/internal", "/metrics", "/ops")
_EITHER = "/internal/requests/"


def access_of(path: str) -> Access:
    """The access rule, by the beginning of the path; a new path is closed until it is opened here."""
    if path in _PUBLIC or path.startswith(_PAGE):
        return Access.PUBLIC
    if path.startswith(_EITHER):
        return Access.EITHER
    if any(path == each or path.startswith(each + "/") for each in _OPERATOR):
        return Access.OPERATOR
    return Access.TENANT


CHALLENGE = (("WWW-Authenticate", 'Bearer realm="bunch"'),)
"""Header fields that a 401 must have."""


class Identity(Protocol):
    """Identifies callers. `start` and `stop` are called in the serving process."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    @property
    def ready(self) -> bool:
        """True if callers can be identified yet."""

    def identify(self, call: HttpRequest, access: Access) -> Caller:
        """Raises ApiError UNAUTHENTICATED or FORBIDDEN, which do not say what exactly was wrong."""
