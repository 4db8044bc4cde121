"""The interface of identification, and the access rules that an endpoint may have."""

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


CHALLENGE = (("WWW-Authenticate", 'Bearer realm="bunch"'),)
"""Header fields that a 401 must have."""


class Identity(Protocol):
    """Identifies callers. `start` and `stop` are called in the serving process."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    @property
    def ready(self) -> bool:
        """True if callers can be identified yet."""

    def recognised(self, call: HttpRequest) -> Caller | None:
        """The caller of a request to an endpoint for tenants, at once; None if only `identify` can tell."""

    def identify(self, call: HttpRequest, access: Access) -> Caller:
        """Raises ApiError UNAUTHENTICATED or FORBIDDEN, which do not say what exactly was wrong."""
