"""Whom each path is for; with auth off, what tier a caller has."""

from __future__ import annotations

import pytest

from config.settings import Settings
from config.tiers import Tier
from tasks.protocol.caller import ANYBODY
from webapp.app import create_app, make_services
from webapp.errors import ApiError
from webapp.identity.base import Access, Identity
from webapp.identity.bearer import Bearer
from webapp.identity.jwks import KeySet
from webapp.identity.no_auth import NoAuth
from webapp.request import HttpRequest, HttpResponse
from webapp.routes import ROUTES
from webapp.routing import Route, RouteTable

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
        ("/ops/static/page.js", Access.PUBLIC),
        ("/ops/actions/pause", Access.OPERATOR),
        ("/ops/events", Access.OPERATOR),
        ("/internal/health", Access.OPERATOR),
        ("/internal/requests/an-id", Access.EITHER),
        ("/internals", Access.TENANT),
        ("/v1/inference", Access.TENANT),
        ("/whatever/comes/next", Access.TENANT),
    ],
)
def test_whom_a_path_is_for(path: str, access: Access) -> None:
    method = "POST" if path.startswith(("/v1", "/ops/actions")) else "GET"
    assert RouteTable(ROUTES).access_of(method, path) is access


def test_few_paths_are_open_to_strangers() -> None:
    assert {route.path for route in ROUTES if route.access is Access.PUBLIC} <= {
        *("/", "/health", "/healthz", "/readyz", "/openapi.json", "/docs", "/docs/static/<name>"),
        *("/v2", "/v2/health/live", "/v2/health/ready"),
        *("/ops", "/ops/static/<name>"),
    }


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_path_that_proxies_keep_to_operators_is_for_no_tenant_as_such(route: Route) -> None:
    if route.path.startswith(("/internal", "/metrics", "/ops")):
        assert route.access is not Access.TENANT


def test_a_method_is_for_its_own_callers_and_one_that_a_path_does_not_have_for_the_fewest() -> None:
    def handler(*_: object) -> HttpResponse:
        raise AssertionError("nobody calls")

    table = RouteTable(
        (Route("GET", "/a", Access.PUBLIC, handler), Route("POST", "/a", Access.OPERATOR, handler), *ROUTES)
    )
    assert [table.access_of(each, "/a") for each in ("GET", "POST", "PUT")] == [
        Access.PUBLIC, Access.OPERATOR, Access.OPERATOR,
    ]  # fmt: skip
    assert [table.access_of(each, "/") for each in ("GET", "POST")] == [Access.PUBLIC, Access.TENANT]


def test_with_auth_off_the_caller_is_nobody_in_particular() -> None:
    assert NoAuth(Settings()).identify(HttpRequest({}), Access.TENANT) is ANYBODY[Tier.PAID]
    assert NoAuth(Settings(default_tier=Tier.FREE)).identify(HttpRequest({}), Access.TENANT) is ANYBODY[Tier.FREE]
    assert ANYBODY[Tier.FREE].owner == ANYBODY[Tier.FREE].key_id == ""


def test_a_service_token_is_asked_for_wherever_it_is_set() -> None:
    token = "a-token-that-is-long-enough"
    anybody = NoAuth(Settings(service_token=token))
    for header in ({}, {"HTTP_AUTHORIZATION": "Bearer another"}, {"HTTP_AUTHORIZATION": f"Basic {token}"}):
        with pytest.raises(ApiError) as refused:
            anybody.identify(HttpRequest(header), Access.OPERATOR)
        assert refused.value.code == "UNAUTHENTICATED"
        assert anybody.identify(HttpRequest(header), Access.TENANT) is ANYBODY[Tier.PAID]
    assert anybody.identify(HttpRequest({"HTTP_AUTHORIZATION": f"Bearer {token}"}), Access.OPERATOR)


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
    """It makes no difference whether callers have to say who they are."""
    settings = Settings(auth=auth, http_host=host, service_token=token)
    identity = NoAuth(settings) if auth == "off" else Bearer(settings, None, None, KeySet(settings))
    sent = {"": nothing, "Bearer wrong": wrong, "Bearer é": wrong, f"Basic {TOKEN}": wrong, f"Bearer {TOKEN}": right}
    for header, expected in sent.items():
        call = HttpRequest({"HTTP_AUTHORIZATION": header} if header else {})
        assert refusal(identity, call) == expected, header


def refusal(identity: Identity, call: HttpRequest) -> str:
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
    call = HttpRequest({"HTTP_X_TIER": "enterprise"})
    assert NoAuth(Settings()).identify(call, Access.TENANT) is ANYBODY[Tier.ENTERPRISE]
    with pytest.raises(ApiError, match="X-Tier"):
        NoAuth(Settings()).identify(HttpRequest({"HTTP_X_TIER": "gold"}), Access.TENANT)


# What came through a proxy, whichever of its fields it adds, or was asked for under a name of somebody else's.
NOT_FROM_HERE: list[dict[str, str]] = [
    {"HTTP_X_FORWARDED_FOR": "192.0.2.1"},
    {"HTTP_X_FORWARDED_PROTO": "https"},
    {"HTTP_X_FORWARDED_HOST": "localhost"},
    {"HTTP_FORWARDED": "for=127.0.0.1"},
    {"HTTP_VIA": "1.1 proxy"},
    {"HTTP_X_REAL_IP": "127.0.0.1"},
    {"HTTP_TRUE_CLIENT_IP": ""},
    {"HTTP_HOST": "rebound.example:8000"},
    {"HTTP_HOST": "10.0.0.1:80"},
    {"HTTP_HOST": "localhost.rebound.example"},
    {"HTTP_HOST": "127.0.0.1.rebound.example"},
    {"HTTP_HOST": ""},
    {"HTTP_HOST": "[::"},
]
FROM_HERE: list[dict[str, str]] = [
    *({}, {"HTTP_HOST": "127.0.0.1:8000"}, {"HTTP_HOST": "localhost"}, {"HTTP_HOST": "LocalHost:80"}),
    *({"HTTP_HOST": "[::1]:8000"}, {"HTTP_HOST": "127.9.9.9"}),
]


def answer_to(identity: Identity, access: Access, environ: dict[str, str]) -> str:
    """The refusal, or the key id and tier of whoever it was taken for."""
    try:
        caller = identity.identify(HttpRequest(environ), access)
    except ApiError as error:
        return error.code
    return f"{caller.key_id} {caller.tier.value}"


@pytest.mark.parametrize("environ", NOT_FROM_HERE)
def test_what_loopback_opens_is_shut_to_proxies_and_other_names(environ: dict[str, str]) -> None:
    anybody = NoAuth(Settings())
    for access in (Access.TENANT, Access.EITHER, Access.OPERATOR):
        assert answer_to(anybody, access, environ) == "FORBIDDEN"
        assert answer_to(anybody, access, {**environ, "HTTP_X_TIER": "enterprise"}) == "FORBIDDEN"
    settings = Settings(auth="keys")
    bearer = Bearer(settings, None, None, KeySet(settings))
    for access in (Access.EITHER, Access.OPERATOR):
        assert answer_to(bearer, access, environ) == "UNAUTHENTICATED"


@pytest.mark.parametrize("environ", FROM_HERE)
def test_programs_on_this_machine_are_served(environ: dict[str, str]) -> None:
    anybody = NoAuth(Settings())
    assert answer_to(anybody, Access.TENANT, {**environ, "HTTP_X_TIER": "free"}) == " free"
    assert answer_to(anybody, Access.EITHER, environ) == " paid"
    settings = Settings(auth="keys")
    for identity in (anybody, Bearer(settings, None, None, KeySet(settings))):
        assert answer_to(identity, Access.OPERATOR, environ) == "loopback free"


@pytest.mark.parametrize("environ", NOT_FROM_HERE)
def test_a_service_token_is_as_good_from_anywhere(environ: dict[str, str]) -> None:
    sent = {**environ, "HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}
    for access in (Access.EITHER, Access.OPERATOR):
        assert answer_to(NoAuth(Settings(service_token=TOKEN)), access, sent) == "operator free"
    assert answer_to(NoAuth(Settings(service_token=TOKEN)), Access.TENANT, sent) == "FORBIDDEN"


def test_a_proxy_that_authenticates_is_let_in_under_the_name_that_was_set() -> None:
    anybody = NoAuth(Settings(allowed_hosts="models.example, Proxy.example"))
    behind = {"HTTP_X_FORWARDED_FOR": "192.0.2.1", "HTTP_X_TIER": "enterprise"}
    for host in ("models.example", "proxy.example:443", "PROXY.EXAMPLE"):
        # Whoever is behind it does not choose a tier, and is no operator.
        assert answer_to(anybody, Access.TENANT, {**behind, "HTTP_HOST": host}) == " paid"
        assert answer_to(anybody, Access.OPERATOR, {**behind, "HTTP_HOST": host}) == "FORBIDDEN"
    for host in ("127.0.0.1", "other.example", "models.example.rebound.example"):
        assert answer_to(anybody, Access.TENANT, {**behind, "HTTP_HOST": host}) == "FORBIDDEN"


def test_operators_have_tokens_of_their_own_and_are_known_by_name() -> None:
    old, new = "the-one-that-goes-out-of-use", "the:one:that:replaces:it"
    settings = Settings(auth="keys", service_token=f"ann:{old}, ben-2:{new}")
    for identity in (NoAuth(settings), Bearer(settings, None, None, KeySet(settings))):
        for name, token in (("ann", old), ("ben-2", new)):
            for access in (Access.OPERATOR, Access.EITHER):
                assert answer_to(identity, access, {"HTTP_AUTHORIZATION": f"Bearer {token}"}) == f"{name} free"
        for wrong in (f"ann:{old}", f"ann:{new}", settings.service_token, "ann", ""):
            assert answer_to(identity, Access.OPERATOR, {"HTTP_AUTHORIZATION": f"Bearer {wrong}"}) == "UNAUTHENTICATED"
