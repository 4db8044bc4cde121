"""`BUNCH_AUTH=off`: every program on this machine may send requests and choose a tier."""

from __future__ import annotations

from config.settings import Settings
from config.tiers import TIERS
from tasks.protocol.caller import ANYBODY, Caller
from webapp.errors import ApiError
from webapp.identity.base import Access
from webapp.identity.loopback import Loopback
from webapp.identity.operators import Operators
from webapp.request import HttpRequest

_BY_NAME = {tier.value: ANYBODY[tier] for tier in TIERS}


class NoAuth:
    """Callers are programs on this machine, whose `X-Tier` counts, and callers of `BUNCH_ALLOWED_HOSTS`."""

    def __init__(self, settings: Settings) -> None:
        self._default = ANYBODY[settings.default_tier]
        self._loopback = Loopback(settings)
        self._operators = Operators(settings)

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    @property
    def ready(self) -> bool:
        return True

    def recognised(self, call: HttpRequest) -> Caller | None:
        if not self._loopback.has(call):
            return None
        asked = call.header("HTTP_X_TIER")
        return self._default if asked is None else _BY_NAME.get(asked)

    def identify(self, call: HttpRequest, access: Access) -> Caller:
        if access is not Access.TENANT:
            found = self._operators.admit(call) if access is Access.OPERATOR else self._operators.named(call)
            if found is not None:
                return found
            if access is Access.OPERATOR:
                raise self._operators.refusal()
        local = self._loopback.has(call)
        if not local and not self._loopback.serves(call):
            raise ApiError(
                "FORBIDDEN",
                "BUNCH_AUTH=off serves only this machine, under its own names and not through a proxy; "
                "set BUNCH_AUTH=keys, or set BUNCH_ALLOWED_HOSTS to the host name that an authenticating proxy uses",
            )
        asked = call.header("HTTP_X_TIER")
        if asked is None or access is not Access.TENANT or not local:
            return self._default
        caller = _BY_NAME.get(asked)
        if caller is None:
            raise ApiError("INVALID_HEADER", f"X-Tier must be one of {', '.join(_BY_NAME)}")
        return caller
