"""Flower that answers only under this machine's names on loopback: `python -m cli.run.guarded_flower flower …`.

Otherwise a page of another site could resolve its own name to 127.0.0.1 and read what a browser on this machine can
(DNS rebinding).
"""

from __future__ import annotations

from typing import Any

import flower.command
from celery.__main__ import main
from flower.app import Flower
from tornado.httputil import HTTPServerRequest
from tornado.web import ErrorHandler

from config.settings import Settings, is_loopback, load_settings

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})


def answered_names(settings: Settings) -> frozenset[str]:
    """The host names that it answers to; empty: any, where it asks for a password."""
    if not is_loopback(settings.flower_host):
        return frozenset()
    return _LOCAL | {settings.flower_host} | settings.host_names


class GuardedFlower(Flower):
    """Refuses requests for other host names, whatever the path."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._names = answered_names(load_settings())
        super().__init__(*args, **options)

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        if self._names and request.host_name not in self._names:
            return self.get_handler_delegate(request, ErrorHandler, {"status_code": 403})
        return super().find_handler(request, **options)


if __name__ == "__main__":
    flower.command.Flower = GuardedFlower
    main()
