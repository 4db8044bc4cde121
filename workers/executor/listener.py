"""Listeners of an executor: what they raise must not end the thread that supervises it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def guarded(listener: Callable[..., None] | None, name: str) -> Callable[..., None]:
    """The same listener, whose errors are logged with the executor's name; without one, does nothing."""

    def tell(*about: Any) -> None:
        if listener is not None:
            try:
                listener(*about)
            except Exception:
                logger.exception("%s: a listener failed", name)

    return tell
