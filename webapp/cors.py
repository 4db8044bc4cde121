"""Cross-origin requests: the web pages of other sites that may call the API from a browser.

    OPTIONS, or any request ──Origin: allowed?──▶ the application ──▶ its answer, and who may read it

No page may unless `BUNCH_CORS_ORIGINS` names its origin. Without that no answer has any of these headers, and a browser
shows the page no answer. It does not even send a JSON body, since for its type it asks first. A body without a type it
sends unasked, so an endpoint that takes one refuses those of other sites (`from_another_site`). Named origins may use
the callers' endpoints; the operators' endpoints are for the page that is served here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from webapp.request import HttpRequest
from webapp.routing import RouteTable

# Header fields that a page may send and may read in addition to the default ones, and how long a browser may cache
# both lists.
_SENT = (
    "Authorization, Cache-Control, Callback-URL, Content-Type, Idempotency-Key, Inference-Header-Content-Length, "
    "Prefer, X-Request-Id, X-Tier, X-Timeout-Ms, traceparent, tracestate, "
    # OpenAI's client for browsers sends these.
    "OpenAI-Organization, OpenAI-Project, X-Stainless-Arch, X-Stainless-Lang, X-Stainless-OS, "
    "X-Stainless-Package-Version, X-Stainless-Retry-Count, X-Stainless-Runtime, X-Stainless-Runtime-Version, "
    "X-Stainless-Timeout"
)
_READ = (
    "Bunch-Metadata, Inference-Header-Content-Length, Location, Preference-Applied, RateLimit, RateLimit-Policy, "
    "Retry-After, Server-Timing, X-Request-Id, retry-after-ms, x-should-retry"
)
_REMEMBERED_S = 600

WSGIApp = Callable[[dict[str, Any], Any], Iterable[bytes]]


def from_another_site(call: HttpRequest, origins: frozenset[str]) -> bool:
    """True if a page sends this whose site is not this server's, and not among `origins`."""
    origin = call.header("HTTP_ORIGIN")
    if origin is not None and (origin in origins or "*" in origins):
        return False
    site = call.header("HTTP_SEC_FETCH_SITE")
    if site is not None:
        return site not in {"same-origin", "none"}
    # Browsers say where it comes from only to addresses that nobody can read along; to others they send the origin.
    return origin is not None and origin.partition("://")[2] != call.header("HTTP_HOST")


class Cors:
    """A WSGI application around another; `origins` in browsers' form, or `*`."""

    def __init__(self, app: WSGIApp, origins: frozenset[str], routes: RouteTable) -> None:
        self._app = app
        self._routes = routes
        self._origins = origins

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if not self._routes.open_to_pages(environ["PATH_INFO"]):
            return self._app(environ, start_response)
        added = self._headers(environ)

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            methods = [("Access-Control-Allow-Methods", value) for name, value in headers if name == "Allow"]
            # `Allow` is in the answer to OPTIONS, and in a 405.
            return start_response(status, [*headers, *added, *(methods if len(added) > 1 else ())], exc_info)

        return self._app(environ, start)

    def _headers(self, environ: dict[str, Any]) -> list[tuple[str, str]]:
        origin = environ.get("HTTP_ORIGIN")
        # Caches must not use the answer to one origin for another.
        headers = [("Vary", "Origin")]
        if origin is None or not (origin in self._origins or "*" in self._origins):
            return headers
        headers += [("Access-Control-Allow-Origin", origin), ("Access-Control-Expose-Headers", _READ)]
        if environ["REQUEST_METHOD"] == "OPTIONS":
            headers += [("Access-Control-Allow-Headers", _SENT), ("Access-Control-Max-Age", str(_REMEMBERED_S))]
        return headers
