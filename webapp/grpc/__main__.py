"""The role `grpc`: `manage.py grpc` becomes this process."""

from __future__ import annotations

import asyncio
import logging.config
import sys


def main() -> None:
    """Serve until TERM, or until INT."""
    from gevent import monkey

    # Before anything keeps a reference to what they replace. Threads, locks and epoll stay the system's, which gRPC and
    # asyncio need.
    monkey.patch_socket()
    monkey.patch_ssl()
    # redis-py polls before it reads with a timeout.
    monkey.patch_select(aggressive=False)
    from config.logging import logging_config
    from config.process import descriptors
    from config.process.memory import settle_heap
    from config.settings import load_settings
    from webapp.grpc.server import MAX_CALLS, Server

    settings = load_settings()
    logging.config.dictConfig(logging_config(settings))
    descriptors.raise_limit(MAX_CALLS + descriptors.RESERVED)
    server = Server(settings)
    settle_heap()
    sys.exit(asyncio.run(server.serve()))


if __name__ == "__main__":
    main()
