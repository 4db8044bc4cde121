"""`BUNCH_AUTH=off`: everybody on this machine may ask, and choose a tier."""

from __future__ import annotations

from config.settings import Settings, is_loopback
from config.tiers import TIERS
from tasks.caller import ANYBODY, Caller
from webapp.call import Call
from webapp.errors import ApiError
from webapp.identity.base import CHALLENGE, Access
from webapp.identity.operators import Operators, credential

_BY_NAME = {tier.value: ANYBODY[tier] for tier in TIERS}


class Anybody:
    """The tier is `X-Tier`, on loopback only, or the default one."""

    def __init__(self, settings: Settings) -> None:
        self._default = ANYBODY[settings.default_tier]
        self._may_choose = is_loopback(settings.http_host)
        self._operators = Operators(settings)

    def start(self) -> None:
        """Nothing to open."""

    def stop(self) -> None:
        """Nothing to close."""

    @property
    def ready(self) -> bool:
        return True

    def identify(self, call: Call, access: Access) -> Caller:
        if access is Access.OPERATOR and not self._operators.admit(credential(call)):
            raise ApiError("UNAUTHENTICATED", "send Authorization: Bearer <service token>", CHALLENGE)
        asked = call.header("HTTP_X_TIER")
        if asked is None or access is not Access.TENANT or not self._may_choose:
            return self._default
        caller = _BY_NAME.get(asked)
        if caller is None:
            raise ApiError("INVALID_HEADER", f"X-Tier must be one of {', '.join(_BY_NAME)}")
        return caller
