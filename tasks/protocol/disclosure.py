"""The one rule for who may read the reason of a failure, applied where results are made, so that every API follows it.

    Rejected (InputRejected, InvalidInput) ─────────────────────▶ the caller, always: it is written for the caller
    Failed, our own words ───────────────────────────────────────▶ the caller
            the model's words about this one input ──ERROR_DETAIL─▶ the caller, or operators alone
            about a call with several inputs, an API's answer ────▶ operators alone

Operators find the reason in the log, the dead letter, the trace and the batch log. Results in Redis, replies, Celery's
errbacks and task events have what the caller may read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from batching.request import Failed, Words

HIDDEN = "the model failed; its operator finds the reason under this request's id"
# Shorter values of a header are no secrets, and occur in any text.
_SHORTEST_SECRET = 6


class Disclosure:
    """The rule of one worker.

    Args:
        error_detail: the setting; None: callers are told if no credential is required.
        auth: the setting. A request with an owner came through a frontend that requires a credential, whatever this
            worker's own setting is.
    """

    def __init__(self, error_detail: Literal["caller", "operator"] | None = "operator", auth: str = "off") -> None:
        self._always = error_detail == "caller"
        self._strangers = self._always or (error_detail is None and auth == "off")

    def told(self, failed: Failed, owner: str) -> tuple[str, str | None]:
        """Message and traceback as the caller `owner` may read them."""
        if failed.words is Words.OURS:
            return failed.message, failed.traceback
        if failed.words is Words.INPUT and (self._always if owner else self._strangers):
            return failed.message, failed.traceback
        return failed.public or HIDDEN, None


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """`text` without `secrets`: values of headers, which an API or a client library may repeat in its errors."""
    words = {word for secret in secrets for word in secret.split() if len(word) >= _SHORTEST_SECRET}
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, "…")
    return text
