"""The frontend: one Flask app, with a fast lane for the hot routes in front of it.

    environ ─▶ wsgi_app ─┬─ (method, path) of a fast route ────▶ handler ─▶ start_response
                         └─ Flask: routing, everything else ─▶ handler ─▶ flask.Response

A plain request on a connection that is kept may not get here: `webapp.api.short_inference`.

Both lanes identify the caller and call the same handlers: `handler(services, call, **path) -> HttpResponse`. The
routes are `webapp.routes`. Flask has the fast ones as well, so there is one app and one URL map; Flask's own dispatch
costs more than the whole rest of a hot request.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import flask
import gevent
from redis.exceptions import RedisError
from werkzeug.exceptions import HTTPException, NotFound

from config.settings import Settings, load_settings
from config.shards import Places, open_places
from tasks.accounts.ledger import LedgerBuffer, LedgerStream
from tasks.client.client_limit import ClientLimit
from tasks.client.sharded_client import AnyClient, make_client
from tasks.errors import BunchError, RateLimited
from tasks.fleet.liveness import Liveness
from tasks.fleet.process_register import Presence
from tasks.fleet.queue_reader import QueueReader
from tasks.fleet.registry_reader import Fleet
from tasks.observability.batch_log import BatchLog
from tasks.observability.history import History
from tasks.observability.metrics import MetricsFlusher, SharedMetrics
from tasks.observability.slow_log import SlowLog
from tasks.protocol.caller import Caller
from tasks.protocol.outgoing import Outgoing
from tasks.protocol.traceparent import trace_id
from webapp.api.kserve.signature import signatures_of
from webapp.api.short_inference import make_short_path
from webapp.binary_inputs import BinaryInputs, has_binary_body
from webapp.body_budget import COUNTED_BYTES, BodyBudget
from webapp.callbacks import Callbacks
from webapp.cors import Cors
from webapp.errors import ApiError, bunch_error_answer
from webapp.fallback import FallbackModels
from webapp.http.short_path import ShortPath
from webapp.identity import make_identity
from webapp.identity.base import Access
from webapp.inference_body import require_welcome
from webapp.input_schemas import declared_by
from webapp.model_tasks import ModelTasks
from webapp.model_versions import ModelVersions
from webapp.observability.door_ledger import DoorLedger
from webapp.observability.door_log import DoorRecord
from webapp.observability.metrics import RequestTallies, every_second
from webapp.readiness import Readiness
from webapp.request import STATUS_LINES, HttpRequest, HttpResponse, HttpStream
from webapp.routes import ROUTES
from webapp.routing import Handler, Route, RouteTable
from webapp.services import Services

logger = logging.getLogger(__name__)

# Errors of a request that are known only once its body has been read.
_REFUSED = frozenset(
    {"INVALID_JSON", "INVALID_INPUT", "INVALID_HEADER", "UNKNOWN_MODEL", "UNSUPPORTED_MEDIA_TYPE", "PAYLOAD_TOO_LARGE"}
)
# Longer integers cost the square of their length to parse and to print (Python's smallest limit).
_MAX_INT_DIGITS = 640


class BunchApp(flask.Flask):
    """Flask with the fast lane. `services` is set by `create_app`."""

    services: Services

    def start(self, role: str = "web") -> None:
        """Start this process's services: after the fork and the monkey-patching, before the first request."""
        services = self.services
        sys.set_int_max_str_digits(_MAX_INT_DIGITS)
        if services.settings.otlp_endpoint:
            # Imported here: only where spans are exported, and in the process whose thread exports them.
            from webapp.observability.tracing import RequestTracer

            services.tracer = RequestTracer(services.settings)
        services.identity.start()
        services.client.start()
        services.versions.start()
        if services.ledger is not None:
            services.ledger.start()
        self._flusher = MetricsFlusher(services.redis)
        counting = (
            [services.tallies.hand_over, self._flusher.flush, services.history.take_if_due]
            if services.settings.metrics == "on"
            else []
        )
        if services.record is not None:
            counting.append(services.record.flush)
        self._presence = Presence(services.redis, role, lambda: services.settings.models)
        self._flushing = gevent.spawn(
            every_second, [*services.versions.chores, *counting, services.slow.flush, self._presence.beat]
        )
        self._liveness = Liveness(Path(services.settings.state_dir), role)
        self._liveness.start()

    def stopping(self) -> None:
        """The process begins to stop; accepted requests are still answered."""

    def refuse(self) -> None:
        """Refuse all waiting callers, shortly before the time for draining is over, while answers still reach them."""
        self.services.client.refuse()

    def stop(self) -> None:
        self._liveness.stop()
        self._flushing.kill()
        with contextlib.suppress(RedisError):
            self._presence.leave()
        self.services.client.stop()
        self.services.direct.close()
        self.services.identity.stop()
        if self.services.ledger is not None:
            self.services.ledger.stop()
        if self.services.tracer is not None:
            self.services.tracer.stop()

    def wsgi_app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        found = self.services.routes.fast.get((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        if found is None:
            return super().wsgi_app(environ, start_response)
        handler, access = found
        answer = answered(handler, access, self.services, HttpRequest(environ))
        start_response(STATUS_LINES[answer.status], answer.header_list())
        return (answer.body,)

    def short_path(self, environ: dict[str, Any]) -> ShortPath | None:
        """Called by `webapp.server` for a connection whose next requests have this environ but for their bodies."""
        return make_short_path(self.services, environ)

    def body_limit(self, environ: dict[str, Any]) -> int:
        """Called by `webapp.server` for a body that is longer than a body of JSON may be."""
        settings = self.services.settings
        call = HttpRequest(environ)
        route = self.services.routes.find(call.method, call.path)
        takes = route is not None and (route.binary or bool(route.takes)) and has_binary_body(call)
        return settings.largest_body_bytes if takes else settings.max_body_bytes

    def before_body(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes] | None:
        """Called by `webapp.server` before it receives the rest of a body: it answers strangers, and requests to public
        paths that take no body, without it.
        """
        call = HttpRequest(environ)
        access = self.services.routes.access_of(call.method, call.path)
        if access is Access.PUBLIC:
            return self.wsgi_app({**environ, "wsgi.input": BytesIO(), "CONTENT_LENGTH": "0"}, start_response)
        try:
            self.services.large.admit(self.services.identity.identify(call, access))
            route = self.services.routes.find(call.method, call.path)
            if route is not None and route.binary:
                require_welcome(self.services, call)
        except (BunchError, ApiError) as error:
            answer = _refusal(error, call, self.services)
            start_response(STATUS_LINES[answer.status], answer.header_list())
            return (answer.body,)
        return None


def answered(handler: Handler, access: Access, services: Services, call: HttpRequest) -> HttpResponse:
    """Identify the caller and run a handler; every error becomes an answer in the contract's form."""
    tracer = services.tracer
    if tracer is None:
        return _answered(handler, access, services, call)
    span = tracer.begin(call)
    answer = _answered(handler, access, services, call)
    if span is not None:
        tracer.end(span, answer)
    return answer


def _answered(handler: Handler, access: Access, services: Services, call: HttpRequest) -> HttpResponse:
    caller: Caller | None = None
    try:
        if access is not Access.PUBLIC:
            call.caller = caller = services.identity.identify(call, access)
        return handler(services, call)
    except (BunchError, ApiError) as error:
        if call.turn is not None:
            # Others need not wait for what is asked of Redis here.
            call.turn.end()
        if caller is not None and error.code in _REFUSED and call.body_bytes >= COUNTED_BYTES:
            return _counted(error, services, call, caller)
        return _refusal(error, call, services)
    except Exception:
        extra = {"request_id": call.request_id, "trace_id": trace_id(call.traceparent), "path": call.path}
        logger.exception("unexpected error in a request", extra=extra)
        envelope = services.routes.envelope_of(call.method, call.path)
        return envelope("INTERNAL", "internal error; the server's log has it under this request id", call.request_id)
    finally:
        if call.turn is not None:
            call.turn.leave()


def _refusal(error: BunchError | ApiError, call: HttpRequest, services: Services) -> HttpResponse:
    envelope = services.routes.envelope_of(call.method, call.path)
    if isinstance(error, BunchError):
        return bunch_error_answer(error, call.request_id, envelope)
    about = (error.code, error.message, call.request_id)
    return envelope(*about, retry_after_s=error.retry_after_s, headers=error.headers)


def _counted(error: BunchError | ApiError, services: Services, call: HttpRequest, caller: Caller) -> HttpResponse:
    """Count a large body that was refused for its content, which cost as much as if it had been served."""
    try:
        services.large.refused(caller)
    except RateLimited as limited:
        error = limited
    return _refusal(error, call, services)


def create_app(services: Services, app: BunchApp | None = None) -> BunchApp:
    """Make the WSGI application over `services`, or make `app` that; call `start` in the process that serves."""
    app = app or BunchApp("webapp", static_folder=None)
    app.services = services
    # `/v1//inference` is a different, unknown path; Flask would redirect it.
    app.url_map.merge_slashes = False
    app.before_request(_refuse_leading_slashes)
    for route in services.routes:
        endpoint = f"{route.method} {route.path}"
        app.add_url_rule(route.path, endpoint, _view(services, route), methods=[route.method], strict_slashes=True)
    app.register_error_handler(HTTPException, partial(_http_error, services))
    app.after_request(_with_request_id)
    origins = services.settings.origins
    if origins:
        app.wsgi_app = Cors(app.wsgi_app, origins, services.routes)  # type: ignore[method-assign]
    return app


def _view(services: Services, route: Route) -> Callable[..., flask.Response]:
    """A Flask view of a route; its handler gets the parts of the path by their names."""

    def view(**path: str) -> flask.Response:
        handler = partial(route.handler, **path)
        return _response(answered(handler, route.access, services, HttpRequest(flask.request.environ)))

    return view


def _response(answer: HttpResponse) -> flask.Response:
    body = answer.chunks if isinstance(answer, HttpStream) else answer.body
    return flask.Response(body, answer.status, answer.header_list())


def _refuse_leading_slashes() -> None:
    """Refuse a path with two leading slashes: Werkzeug strips them, so `//internal/` would pass a proxy's rule."""
    if flask.request.environ["PATH_INFO"].startswith("//"):
        raise NotFound


def _with_request_id(response: flask.Response) -> flask.Response:
    """Add the request id, also to Flask's own answers such as OPTIONS."""
    if "X-Request-Id" not in response.headers:
        response.headers["X-Request-Id"] = HttpRequest(flask.request.environ).request_id
    return response


def _http_error(services: Services, error: HTTPException) -> flask.Response:
    """Flask's own refusals: an unknown path, or a method that the path does not have."""
    call = HttpRequest(flask.request.environ)
    envelope = services.routes.envelope_of(call.method, call.path)
    if error.code == 405:
        allowed = ", ".join(sorted(getattr(error, "valid_methods", None) or ()))
        message = f"{flask.request.method} is not allowed here; use {allowed}"
        return _response(envelope("METHOD_NOT_ALLOWED", message, call.request_id, headers=(("Allow", allowed),)))
    if error.code == 404:
        return _response(envelope("NOT_FOUND", "there is nothing at this path; see /openapi.json", call.request_id))
    return _response(envelope("INVALID_INPUT", error.description or str(error), call.request_id))


def make_services(
    settings: Settings,
    places: Places | None = None,
    routes: Sequence[Route] = ROUTES,
    make_client: Callable[..., AnyClient] = make_client,
) -> Services:
    """Make the objects of one frontend process, without starting them."""
    places = places or open_places(settings)
    redis = places.home.redis
    fleet = Fleet(redis, lease_ttl_s=settings.lease_ttl_s)
    waiting = QueueReader(places, fleet)
    shared = SharedMetrics(redis)
    ledger = DoorLedger(LedgerBuffer(LedgerStream(redis))) if settings.keeps_ledger else None
    batch_log = BatchLog(redis, max_bytes=settings.explain_max_bytes)
    record = DoorRecord(batch_log) if settings.explain == "on" else None
    told = [each.answered for each in (ledger, record) if each is not None]

    def answered(out: Outgoing) -> None:
        for each in told:
            each(out)

    client = make_client(settings, places, on_answered=answered)
    tasks = ModelTasks(settings)
    return Services(
        settings=settings,
        redis=redis,
        places=places,
        client=client,
        fleet=fleet,
        waiting=waiting,
        metrics=shared,
        tallies=RequestTallies(settings),
        history=History(places, fleet, waiting, shared, tuple(settings.models)),
        slow=SlowLog(redis),
        direct=FallbackModels(settings),
        identity=make_identity(settings, redis),
        readiness=Readiness(places, fleet, settings.models),
        large=BodyBudget(client.charge),
        clients=ClientLimit(settings, redis),
        callbacks=Callbacks(settings, places, client),
        routes=RouteTable(routes, tuple(settings.models)),
        tasks=tasks,
        versions=ModelVersions(settings, redis),
        signatures=signatures_of(settings, tasks),
        binary=BinaryInputs(settings),
        declared=declared_by(settings),
        ledger=ledger,
        record=record,
    )


def __getattr__(name: str) -> BunchApp:
    """Make `webapp.app:application` when gunicorn asks for it; `config/gunicorn.py` starts it in each worker."""
    if name == "application":
        app = globals()["application"] = create_app(make_services(load_settings()))
        return app
    raise AttributeError(name)
