"""Logging: text for people, JSON lines for machines; one handler, to standard error."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from config.settings import Settings

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line; whatever was passed as `extra` is a field of it."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def logging_config(settings: Settings) -> dict[str, Any]:
    """For `logging.config.dictConfig`."""
    formatter: dict[str, Any] = (
        {"()": "config.logging.JsonFormatter"} if settings.log_format == "json" else {"format": _TEXT}
    )
    level = settings.log_level
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"bunch": formatter},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "bunch"}},
        "root": {"level": level, "handlers": ["stderr"]},
        "loggers": {
            "gunicorn.error": {"level": level, "handlers": [], "propagate": True},
            "gunicorn.access": {"level": "WARNING", "handlers": [], "propagate": True},
        },
    }
