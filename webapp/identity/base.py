"""What a frontend asks of identification, and what each path wants to know."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from tasks.protocol.caller import Caller
from webapp.request import HttpRequest


class Access(Enum):
    """Whom a path is for. `EITHER`: tenants see what is theirs there, operators everything."""

    PUBLIC = auto()
    TENANT = auto()
    OPERATOR = auto()
    EITHER = auto()


_PUBLIC = frozenset({"/", "/healthz", "/readyz", "/openapi.json", "/ops"})
# A browser asks for the page itself without a credential; its figures and its actions are the operators'.
_PAGE = "/ops/static/"
_OPERATOR = ("/internal", "/metrics", "/ops")
_EITHER = "/internal/requests/"


def access_of(path: str) -> Access:
    """By the path's beginning, so that whatever is added later is closed to strangers until somebody opens it."""
    if path in _PUBLIC or path.startswith(_PAGE):
        return Access.PUBLIC
    if path.startswith(_EITHER):
        return Access.EITHER
    if any(path == each or path.startswith(each + "/") for each in _OPERATOR):
        return Access.OPERATOR
    return Access.TENANT


CHALLENGE = (("WWW-Authenticate", 'Bearer realm="bunch"'),)
"""What a 401 has to carry."""


class Identity(Protocol):
    """`start` and `stop` belong to the process that serves."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    @property
    def ready(self) -> bool:
        """Whether callers can be told apart yet."""

    def identify(self, call: HttpRequest, access: Access) -> Caller:
        """Raises ApiError: UNAUTHENTICATED or FORBIDDEN, which do not say what exactly was wrong."""
