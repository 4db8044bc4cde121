"""Who may look at the operations page, and act there."""

from __future__ import annotations

import pytest

from config.settings import Settings
from webapp.call import Call
from webapp.errors import ApiError
from webapp.ops import gate


def call(**headers: str) -> Call:
    return Call({f"HTTP_{name}": value for name, value in headers.items()})


def refusal(settings: Settings, call: Call) -> str:
    try:
        gate.admit(settings, call)
    except ApiError as error:
        return error.code
    return ""


def test_on_loopback_without_auth_nobody_is_asked() -> None:
    assert refusal(Settings(), call()) == ""


def test_elsewhere_it_takes_the_service_token() -> None:
    settings = Settings(http_host="10.0.0.1", service_token="s3cret")
    assert refusal(settings, call()) == "UNAUTHENTICATED"
    assert refusal(settings, call(AUTHORIZATION="Bearer wrong")) == "UNAUTHENTICATED"
    assert refusal(settings, call(AUTHORIZATION="Basic s3cret")) == "UNAUTHENTICATED"
    assert refusal(settings, call(AUTHORIZATION="Bearer s3cret")) == ""
    assert refusal(settings, call(AUTHORIZATION="Bearer é")) == "UNAUTHENTICATED"


def test_without_a_token_to_be_had_nobody_gets_in() -> None:
    assert refusal(Settings(http_host="10.0.0.1"), call(AUTHORIZATION="Bearer ")) == "FORBIDDEN"


def test_a_token_that_is_set_is_asked_for_on_loopback_too() -> None:
    assert refusal(Settings(service_token="s3cret"), call()) == "UNAUTHENTICATED"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_cannot_act(site: str) -> None:
    with pytest.raises(ApiError):
        gate.refuse_other_sites(call(SEC_FETCH_SITE=site))
    gate.refuse_other_sites(call(SEC_FETCH_SITE="same-origin"))
    gate.refuse_other_sites(call())
