"""Logging to standard error, one line per event, as text for people or JSON for machines, and rate-limited.

The subject of an event is passed as `extra`: `request_id`, `task_id`, `batch_id`, `model`, `tier`, `trace_id`. Both
formats show these and all other fields. When a line repeats, a few are logged and the rest is counted: a log that fills
the disk would cause the next failure.
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
# Fields that identify an event, in this order; the others follow.
_FIRST = ("request_id", "task_id", "batch_id", "model", "tier", "trace_id", "code")
_LIBRARIES = frozenset({"celery", "flower", "gunicorn", "kombu", "redis", "tornado"})
_OUTAGES = frozenset(
    {("redis", "ConnectionError"), ("redis", "TimeoutError"), ("kombu", "OperationalError")}
    | {("builtins", "ConnectionError"), ("builtins", "TimeoutError")}
)
# A model's exception may quote its input, which may be large and may contain lines that look like log records.
_LONGEST = 16_384
# All characters that could begin a line or control a terminal, except line feed and tab; and those that UTF-8 cannot
# encode.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class TextFormatter(logging.Formatter):
    """The message, then `name=value` for each field. Only the first line of a record starts in the first column."""

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
    """One JSON object per line; every field passed as `extra` is a field of it."""

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
    """A limit on log records per kind and in total within a window of time; the others are counted."""

    # More than the number of log calls in the program. Beyond it, messages are made up per event and count as one kind.
    _MAX_KINDS = 1000

    def __init__(self, of_a_kind: int = 20, together: int = 400, window_s: float = 10.0) -> None:
        self._of_a_kind = of_a_kind
        self._together = together
        self._window_s = window_s
        self._began = float("-inf")
        self._total = 0
        # For each kind: records passed in this window, and records held back since the last one passed.
        self._kinds: dict[object, list[int]] = {}

    def admit(self, kind: object, now: float) -> int | None:
        """The number of records of this kind that were held back before this one; None: hold this one back too."""
        if now - self._began >= self._window_s:
            self._began = now
            self._total = 0
            # Held-back counts are kept, to be reported with the next record.
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
    """A filter that keeps a handler within a budget. DEBUG records always pass."""

    def __init__(self, budget: LogBudget | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._budget = budget or LogBudget()
        self._clock = clock
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        with self._lock:
            # An exception that is logged as the message is a new object each time.
            message = record.msg if isinstance(record.msg, str) else type(record.msg)
            held_back = self._budget.admit((record.name, record.levelno, message), self._clock())
        if held_back:
            vars(record)["held_back"] = held_back
        return held_back is not None


class KnownOutage(logging.Filter):
    """Reduces the tracebacks that Celery and its libraries log while a server is away to one line: for a refused
    connection they say no more than the error does.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.name.partition(".")[0] in _LIBRARIES and _is_outage(error):
            record.msg, record.args = f"{record.getMessage()} ({type(error).__name__}: {error})", ()
            record.exc_info = record.exc_text = None
        return True


def _is_outage(error: BaseException) -> bool:
    """Compares names, because this module is also used by processes that load no client."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return bool(kinds & _OUTAGES)


def logging_config(settings: Settings) -> dict[str, Any]:
    """The dictionary for `logging.config.dictConfig`."""
    return log_to_stderr(settings.log_level, settings.log_format)


def log_to_stderr(level: str | int, log_format: str) -> dict[str, Any]:
    """The same for a level and a format, for an executor's process, which has no settings."""
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
    """The log format of this process, to be passed to its children."""
    handlers = logging.getLogger().handlers
    return "json" if any(isinstance(each.formatter, JsonFormatter) for each in handlers) else "text"


def encodable(text: str) -> str:
    """`text` in a form that UTF-8 can encode: lone surrogates, which a model or a file name may contain, are
    escaped.
    """
    return text.encode(errors="backslashreplace").decode()


def _bounded(text: str) -> str:
    """The beginning and the end of a long text; the last line of a traceback has the error."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[-half:]}"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    given = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    first = {name: given.pop(name) for name in _FIRST if name in given}
    # Empty fields are left out.
    named = {name: value for name, value in {**first, **given}.items() if value is not None and value != ""}
    return {name: _bounded(value) if isinstance(value, str) else value for name, value in named.items()}


def _shown(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and text else repr(text)
