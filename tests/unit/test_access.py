"""Whom each path is for; with auth off, what tier a caller has."""

from __future__ import annotations

import pytest

from config.settings import Settings
from config.tiers import Tier
from tasks.caller import ANYBODY
from webapp.app import ROUTES, create_app, make_services
from webapp.call import Call
from webapp.errors import ApiError
from webapp.identity.anybody import Anybody
from webapp.identity.base import Access, Identity, access_of
from webapp.identity.bearer import Bearer
from webapp.identity.jwks import KeySet

TOKEN = "a-token-that-is-long-enough"


@pytest.mark.parametrize(
    ("path", "access"),
    [
        ("/healthz", Access.PUBLIC),
        ("/readyz", Access.PUBLIC),
        ("/openapi.json", Access.PUBLIC),
        ("/metrics", Access.OPERATOR),
        # The page itself, which knows nothing; its figures and actions are another matter.
        ("/ops", Access.PUBLIC),
        ("/ops/static/<name>", Access.PUBLIC),
        ("/ops/actions/<name>", Access.OPERATOR),
        ("/ops/events", Access.OPERATOR),
        ("/internal/health", Access.OPERATOR),
        ("/internal/requests/<request_id>", Access.EITHER),
        ("/internals", Access.TENANT),
        ("/v1/inference", Access.TENANT),
        ("/whatever/comes/next", Access.TENANT),
    ],
)
def test_whom_a_path_is_for(path: str, access: Access) -> None:
    assert access_of(path) is access


def test_few_paths_are_open_to_strangers() -> None:
    assert {path for _, path, _ in ROUTES if access_of(path) is Access.PUBLIC} <= {
        *("/healthz", "/readyz", "/openapi.json", "/docs", "/ops", "/ops/static/<name>"),
    }


def test_with_auth_off_the_caller_is_nobody_in_particular() -> None:
    assert Anybody(Settings()).identify(Call({}), Access.TENANT) is ANYBODY[Tier.PAID]
    assert Anybody(Settings(default_tier=Tier.FREE)).identify(Call({}), Access.TENANT) is ANYBODY[Tier.FREE]
    assert ANYBODY[Tier.FREE].owner == ANYBODY[Tier.FREE].key_id == ""


def test_a_service_token_is_asked_for_wherever_it_is_set() -> None:
    token = "a-token-that-is-long-enough"
    anybody = Anybody(Settings(service_token=token))
    for header in ({}, {"HTTP_AUTHORIZATION": "Bearer another"}, {"HTTP_AUTHORIZATION": f"Basic {token}"}):
        with pytest.raises(ApiError) as refused:
            anybody.identify(Call(header), Access.OPERATOR)
        assert refused.value.code == "UNAUTHENTICATED"
        assert anybody.identify(Call(header), Access.TENANT) is ANYBODY[Tier.PAID]
    assert anybody.identify(Call({"HTTP_AUTHORIZATION": f"Bearer {token}"}), Access.OPERATOR)


@pytest.mark.parametrize("auth", ["off", "keys"])
@pytest.mark.parametrize(
    ("host", "token", "nothing", "wrong", "right"),
    [
        ("127.0.0.1", "", "", "", ""),
        ("127.0.0.1", TOKEN, "UNAUTHENTICATED", "UNAUTHENTICATED", ""),
        ("10.0.0.1", TOKEN, "UNAUTHENTICATED", "UNAUTHENTICATED", ""),
        ("10.0.0.1", "", "UNAUTHENTICATED", "UNAUTHENTICATED", "UNAUTHENTICATED"),
    ],
)
def test_who_is_an_operator(auth: str, host: str, token: str, nothing: str, wrong: str, right: str) -> None:
    """Whether callers have to say who they are makes no difference."""
    settings = Settings(auth=auth, http_host=host, service_token=token)
    identity = Anybody(settings) if auth == "off" else Bearer(settings, None, None, KeySet(settings))
    sent = {"": nothing, "Bearer wrong": wrong, "Bearer é": wrong, f"Basic {TOKEN}": wrong, f"Bearer {TOKEN}": right}
    for header, expected in sent.items():
        call = Call({"HTTP_AUTHORIZATION": header} if header else {})
        assert refusal(identity, call) == expected, header


def refusal(identity: Identity, call: Call) -> str:
    try:
        identity.identify(call, Access.OPERATOR)
    except ApiError as error:
        return error.code
    return ""


@pytest.mark.parametrize("auth", ["off", "keys"])
@pytest.mark.parametrize(("token", "status"), [("", 404), (TOKEN, 401)])
def test_the_same_rule_holds_for_what_the_page_does(auth: str, token: str, status: int) -> None:
    """Through the whole application, which asks Redis for none of this: an action that there is not."""
    app = create_app(make_services(Settings(auth=auth, service_token=token, redis_url="redis://127.0.0.1:1/0")))
    answer = app.test_client().post("/ops/actions/nothing", json={})
    assert answer.status_code == status
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    assert app.test_client().post("/ops/actions/nothing", json={}, headers=headers).status_code == 404


def test_on_loopback_it_may_choose_its_tier() -> None:
    call = Call({"HTTP_X_TIER": "enterprise"})
    assert Anybody(Settings()).identify(call, Access.TENANT) is ANYBODY[Tier.ENTERPRISE]
    assert Anybody(Settings(http_host="10.0.0.1")).identify(call, Access.TENANT) is ANYBODY[Tier.PAID]
    with pytest.raises(ApiError, match="X-Tier"):
        Anybody(Settings()).identify(Call({"HTTP_X_TIER": "gold"}), Access.TENANT)
