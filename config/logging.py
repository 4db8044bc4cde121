"""Logging: one line an event, to standard error; text for people, JSON for machines, and bounded when all goes wrong.

What an event is about goes along as `extra`: `request_id`, `task_id`, `batch_id`, `model`, `tier`, `trace_id`. Both
formats show these, and whatever else was passed. Of lines that say the same again and again a few are let through and
the rest is counted: a log that fills the disk would be the next thing to break.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from config.settings import Settings

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# What identifies an event, in this order; anything else stands behind.
_FIRST = ("request_id", "task_id", "batch_id", "model", "tier", "trace_id", "code")
_LIBRARIES = frozenset({"celery", "flower", "gunicorn", "kombu", "redis", "tornado"})
_OUTAGES = frozenset(
    {("redis", "ConnectionError"), ("redis", "TimeoutError"), ("kombu", "OperationalError")}
    | {("builtins", "ConnectionError"), ("builtins", "TimeoutError")}
)
# A model's exception may quote its input: as long as a body, and with lines that look like ours.
_LONGEST = 16_384
# All that could begin a line, or talk to a terminal, but for the line feed and the tab; and what UTF-8 cannot say.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class TextFormatter(logging.Formatter):
    """The message, then `name=value` for each field. Only the first line of a record begins at the margin."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        fields = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        record.message = _bounded(record.message)
        return super().formatMessage(record) + (" ·" + fields if fields else "")

    def format(self, record: logging.LogRecord) -> str:
        text = _CONTROL.sub(_escaped, super().format(record))
        return text.replace("\n", "\n    ")

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return _bounded(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """One JSON object a line; whatever was passed as `extra` is a field of it."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{record.msecs:03.0f}",
            "level": record.levelname,
            "logger": record.name,
            "message": _bounded(record.getMessage()),
            **_fields(record),
        }
        if record.exc_info:
            fields["exception"] = _bounded(self.formatException(record.exc_info))
        try:
            return msgspec.json.encode(fields, enc_hook=str).decode()
        except UnicodeEncodeError:
            text = json.dumps(fields, default=str, ensure_ascii=False)
            return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)


class LogBudget:
    """So many of a kind in a window of time, and so many of all kinds together; the others are counted."""

    # More kinds at once than a program has log calls; beyond it, messages are made up per event, and are one kind.
    _MAX_KINDS = 1000

    def __init__(self, of_a_kind: int = 20, together: int = 400, window_s: float = 10.0) -> None:
        self._of_a_kind = of_a_kind
        self._together = together
        self._window_s = window_s
        self._began = float("-inf")
        self._total = 0
        # Per kind: let through in this window, held back since one was last let through.
        self._kinds: dict[object, list[int]] = {}

    def admit(self, kind: object, now: float) -> int | None:
        """How many like it were held back before it; None: hold it back too."""
        if now - self._began >= self._window_s:
            self._began = now
            self._total = 0
            # Who was held back keeps its count, to be told with the next.
            self._kinds = {each: [0, counts[1]] for each, counts in self._kinds.items() if counts[1]}
        counts = self._kinds.get(kind)
        if counts is None:
            if len(self._kinds) >= self._MAX_KINDS:
                kind = None
            counts = self._kinds.setdefault(kind, [0, 0])
        if counts[0] >= self._of_a_kind or self._total >= self._together:
            counts[1] += 1
            return None
        counts[0] += 1
        self._total += 1
        held_back, counts[1] = counts[1], 0
        return held_back


class BoundedLog(logging.Filter):
    """Keeps a handler within a budget. Who asks for DEBUG gets all of it."""

    def __init__(self, budget: LogBudget | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._budget = budget or LogBudget()
        self._clock = clock
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        with self._lock:
            # An exception logged as the message is a new object each time.
            message = record.msg if isinstance(record.msg, str) else type(record.msg)
            held_back = self._budget.admit((record.name, record.levelno, message), self._clock())
        if held_back:
            vars(record)["held_back"] = held_back
        return held_back is not None


class KnownOutage(logging.Filter):
    """Makes one line of what Celery and its like log with a traceback when a server is away: of a refused connection
    it says nothing that the error does not.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.name.partition(".")[0] in _LIBRARIES and _is_outage(error):
            record.msg, record.args = f"{record.getMessage()} ({type(error).__name__}: {error})", ()
            record.exc_info = record.exc_text = None
        return True


def _is_outage(error: BaseException) -> bool:
    """By name: this module is also for processes that load no client."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return bool(kinds & _OUTAGES)


def logging_config(settings: Settings) -> dict[str, Any]:
    """For `logging.config.dictConfig`."""
    return log_to_stderr(settings.log_level, settings.log_format)


def log_to_stderr(level: str | int, log_format: str) -> dict[str, Any]:
    """The same of two values, for an executor's child process, which has no settings."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"bunch": {"()": JsonFormatter if log_format == "json" else TextFormatter}},
        "filters": {"bounded": {"()": BoundedLog}, "outages": {"()": KnownOutage}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "bunch", "filters": ["bounded", "outages"]}
        },
        "root": {"level": level, "handlers": ["stderr"]},
        "loggers": {
            "gunicorn.error": {"level": level, "handlers": [], "propagate": True},
            "gunicorn.access": {"level": "WARNING", "handlers": [], "propagate": True},
        },
    }


def current_format() -> str:
    """What this process logs in, for a child of it."""
    handlers = logging.getLogger().handlers
    return "json" if any(isinstance(each.formatter, JsonFormatter) for each in handlers) else "text"


def encodable(text: str) -> str:
    """The same as UTF-8 can have it: a lone surrogate, which a model or a file's name may bring, is written out."""
    return text.encode(errors="backslashreplace").decode()


def _bounded(text: str) -> str:
    """Its beginning and its end: a traceback has what happened in its last line."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[-half:]}"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    given = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    first = {name: given.pop(name) for name in _FIRST if name in given}
    # A field that a caller had nothing for says nothing.
    named = {name: value for name, value in {**first, **given}.items() if value is not None and value != ""}
    return {name: _bounded(value) if isinstance(value, str) else value for name, value in named.items()}


def _shown(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and text else repr(text)
