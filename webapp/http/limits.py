"""Limits on the memory and time that one client may use in a web worker."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Sizes in bytes, times in seconds. Raises `ValueError` naming the first invalid field.

    The gunicorn configuration sets them on the worker, before it starts:

        def post_fork(server, worker):
            worker.limits = ServerLimits(body_bytes=settings.max_body_bytes)

    Three of them also exist as gunicorn settings, which then take precedence (see `with_gunicorn`).
    """

    request_line_bytes: int = 8192
    header_count: int = 100
    # The whole head: request line, headers and the blank line.
    header_bytes: int = 64 * 1024
    body_bytes: int = 1024 * 1024
    # From accepting a connection to the end of its TLS handshake.
    handshake_time_s: float = 10.0
    # From a request's first byte to the end of its head; also from accepting a connection to its first byte.
    header_time_s: float = 10.0
    # From the end of the head to the end of the body.
    body_time_s: float = 30.0
    # Between two requests. 0: close every connection after its first response.
    idle_time_s: float = 75.0
    # Disconnect a client that reads nothing of its response for this long.
    send_time_s: float = 30.0
    # All requests that are still arriving, over all connections.
    arriving_bytes: int = 64 * 1024 * 1024
    # How long to keep reading and discarding after the last response on a refused or stopped connection: as long as
    # data comes within each `linger_s`, but no longer than `linger_most_s`. Closing at once would answer bytes in
    # flight with a reset, and a client then loses the response that it has not read yet; many clients read nothing
    # before they have sent everything.
    linger_s: float = 2.0
    linger_most_s: float = 30.0
    # During a shutdown, how long an idle connection is kept for a request that may be on its way.
    drain_idle_s: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name not in _MAY_BE_ZERO):
                raise ValueError(f"ServerLimits.{field.name} is {value!r}: it must be above 0")
        if self.request_line_bytes > self.header_bytes:
            raise ValueError(
                f"ServerLimits.request_line_bytes ({self.request_line_bytes}) is part of the head:"
                f" header_bytes ({self.header_bytes}) must not be below it"
            )
        if self.arriving_bytes < 4 * self.body_bytes:
            raise ValueError(
                f"ServerLimits.arriving_bytes ({self.arriving_bytes}) must be at least four times body_bytes"
                f" ({self.body_bytes}): a body that is still arriving counts twice"
            )

    def with_gunicorn(self, cfg: Any) -> ServerLimits:
        """Return these limits with gunicorn's own `limit_request_line`, `limit_request_fields` and `keepalive`.

        gunicorn's defaults are 4094 bytes, 100 headers and 2 s. To get the limits above, a configuration must set
        `limit_request_line = 8190` (gunicorn's maximum; 0 means "ours") and `keepalive = 75`.
        """
        return replace(
            self,
            request_line_bytes=cfg.limit_request_line or self.request_line_bytes,
            header_count=cfg.limit_request_fields,
            idle_time_s=float(cfg.keepalive),
        )


_MAY_BE_ZERO = frozenset({"idle_time_s", "linger_s", "drain_idle_s"})
