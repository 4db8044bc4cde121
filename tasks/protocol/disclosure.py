"""Who is told what of a failure: one rule, applied where a result is made, so that it holds for every door.

    Rejected (InputRejected, InvalidInput) ─────────────────────▶ the caller, always: it is written for the caller
    Failed, our own words ───────────────────────────────────────▶ the caller
            the model's words about this one input ──ERROR_DETAIL─▶ the caller, or operators alone
            about a call with several inputs, an API's answer ────▶ operators alone

Operators read all of it in the log, the dead letter, the trace and the record of the batch. Results in Redis, replies,
Celery's errbacks and task events have what the caller is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from batching.request import Failed, Words

HIDDEN = "the model failed; its operator finds the reason under this request's id"
# Shorter words of a header are no secrets, and stand in any text.
_SHORTEST_SECRET = 6


class Disclosure:
    """The rule of one worker.

    Args:
        error_detail: the setting; None: callers are told where nobody is asked for a credential.
        auth: the setting. A request that has an owner came through a frontend that asks for one, whatever this worker's
            own setting says.
    """

    def __init__(self, error_detail: Literal["caller", "operator"] | None = "operator", auth: str = "off") -> None:
        self._always = error_detail == "caller"
        self._strangers = self._always or (error_detail is None and auth == "off")

    def told(self, failed: Failed, owner: str) -> tuple[str, str | None]:
        """Message and traceback as the caller who is `owner` may read them."""
        if failed.words is Words.OURS:
            return failed.message, failed.traceback
        if failed.words is Words.INPUT and (self._always if owner else self._strangers):
            return failed.message, failed.traceback
        return failed.public or HIDDEN, None


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """`text` without the words of `secrets`: values of headers that an API may repeat, or a client library name."""
    words = {word for secret in secrets for word in secret.split() if len(word) >= _SHORTEST_SECRET}
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, "…")
    return text
