"""Flower, which on loopback answers under this machine's names alone: `python -m cli.run.guarded_flower flower …`.

A page of another site can give its own name the address 127.0.0.1, and then read what a browser on this machine may.
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
    """Under which names it is served; none: any, where who asks needs a password."""
    if not is_loopback(settings.flower_host):
        return frozenset()
    return _LOCAL | {settings.flower_host} | settings.host_names


class GuardedFlower(Flower):
    """Refuses requests for other names, whatever they ask for."""

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
