"""Errors of Redis, by what they mean for whoever made the call. One table for all who decide whether to repeat it.

ANEW    this connection, or its server, is not the primary's any more       connect anew (with Sentinel: wherever it
                                                                            now says), and send the same id again
LATER   the server is there, and cannot serve yet                           pause, at most a second, and repeat
FULL    the server takes no writes now                                      callers: 503 with Retry-After; workers
                                                                            keep their outcomes, and repeat
SCRIPT  the server does not have the script                                 load it, and repeat
NEVER   the server refuses this call for what it is                         do not repeat
"""

from __future__ import annotations

from enum import Enum, auto

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError


class Meaning(Enum):
    ANEW = auto()
    LATER = auto()
    FULL = auto()
    SCRIPT = auto()
    NEVER = auto()


# `MasterDownError` is a `ClusterDownError`, `BusyLoadingError` a ConnectionError, which otherwise means ANEW: refused,
# reset, no sentinel answers.
_BY_CLASS: tuple[tuple[type[Exception], Meaning], ...] = (
    (NoScriptError, Meaning.SCRIPT),
    (ReadOnlyError, Meaning.ANEW),
    (BusyLoadingError, Meaning.LATER),
    (TryAgainError, Meaning.LATER),
    (MovedError, Meaning.ANEW),
    # Its slot is being moved, and it could not be sent on (`config.cluster`).
    (AskError, Meaning.LATER),
    (ClusterDownError, Meaning.LATER),
    (OutOfMemoryError, Meaning.FULL),
    (NoPermissionError, Meaning.NEVER),
)
# Errors that redis-py has no class for, and those inside a script: before version 7 the server's word is in the middle.
_BY_WORD = {
    "READONLY": Meaning.ANEW,
    "UNBLOCKED": Meaning.ANEW,
    "LOADING": Meaning.LATER,
    "MASTERDOWN": Meaning.LATER,
    "BUSY": Meaning.LATER,
    "UNKILLABLE": Meaning.LATER,
    "NOREPLICAS": Meaning.FULL,
    "OOM": Meaning.FULL,
    "MISCONF": Meaning.FULL,
}


def meaning_of(error: BaseException) -> Meaning:
    """The meaning of an error that a call of redis-py raised."""
    for kind, meaning in _BY_CLASS:
        if isinstance(error, kind):
            return meaning
    if type(error) is ResponseError:
        text = str(error)
        return next((meaning for word, meaning in _BY_WORD.items() if word in text), Meaning.NEVER)
    return Meaning.ANEW if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError) else Meaning.LATER


def will_repeat(error: BaseException) -> bool:
    """Return whether Redis would refuse the call in the same way each time, for example because of a key's type."""
    return meaning_of(error) is Meaning.NEVER
