"""Sorts a claim into requests to run, requests whose outcome is known without the model, and early requests."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from batching.claim.lease import Entry, Verdict
from batching.claim.store import Claim
from batching.policy import RetryPolicy
from batching.ports import Codec, UnreadableMessage
from batching.request import Cancelled, Expired, Failed, Outcome, Request
from config.tiers import TIERS

logger = logging.getLogger(__name__)

_UNREADABLE_TTL_MS = 600_000
# Bound here, because access to an enum member costs a call.
_RUN = Verdict.RUN
_BY_VERDICT: dict[Verdict, Outcome] = {
    Verdict.EXPIRED: Expired(),
    Verdict.HOPELESS: Expired("its deadline would have passed before its batch was done"),
    Verdict.CANCELLED: Cancelled(),
}


class Triage:
    """Decodes the messages of a claim, and sorts them."""

    def __init__(self, model: str, codec: Codec, retry: RetryPolicy, revoked: Collection[str]) -> None:
        self._model = model
        self._codec = codec
        self._retry = retry
        self._revoked = revoked

    def sort(self, claim: Claim) -> tuple[list[Request], list[tuple[Request, Outcome]], list[tuple[Request, int]]]:
        """The requests to run, those with a known outcome, and those whose `eta` comes only in so many ms."""
        run: list[Request] = []
        settled: list[tuple[Request, Outcome]] = []
        early: list[tuple[Request, int]] = []
        fresh = self._fresh(claim)
        if all(fresh) and not self._revoked:
            # Nearly always.
            return list(fresh), settled, early  # type: ignore[arg-type]
        for entry, read in zip(claim.entries, fresh, strict=True):
            try:
                request = read or self._codec.decode(entry)
            except Exception as error:  # noqa: BLE001
                # Also for an error of our own decoder: it would be the same at each claim.
                unreadable = error if isinstance(error, UnreadableMessage) else UnreadableMessage(repr(error))
                logger.error(
                    "%s: a message cannot be read and is answered as a failure: %s: %.200r",
                    self._model,
                    unreadable,
                    entry.message,
                )
                failure = Failed(unreadable.why, "UnreadableMessage")
                settled.append((_unreadable(claim.batch_id, entry, unreadable), failure))
                continue
            outcome = self._known_outcome(request, entry, claim.view.now_ms)
            if outcome is not None:
                settled.append((request, outcome))
            elif request.eta_ms > claim.view.now_ms:
                early.append((request, request.eta_ms - claim.view.now_ms))
            else:
                run.append(request)
        return run, settled, early

    def _fresh(self, claim: Claim) -> Sequence[Request | None]:
        try:
            return self._codec.decode_fresh(claim.entries, claim.view.now_ms)
        except Exception:
            # One of them is the cause, and shows when they are read one by one.
            logger.exception("%s: a claim could not be read at once", self._model)
            return [None] * len(claim.entries)

    def _known_outcome(self, request: Request, entry: Entry, now_ms: int) -> Outcome | None:
        verdict = entry.verdict
        if 0 < request.deadline_ms <= now_ms:
            return Expired()
        if verdict is not _RUN:
            return _BY_VERDICT[verdict]
        if request.id in self._revoked:
            return Cancelled()
        if self._retry.exhausted(request.attempt, request.lost):
            return Failed(_given_up(request))
        return None


def _given_up(request: Request) -> str:
    if request.lost:
        return f"gave up: {request.lost} processes ended while computing this request"
    return f"gave up after {request.attempt - 1} deliveries"


def _unreadable(batch_id: str, entry: Entry, error: UnreadableMessage) -> Request:
    """A stand-in request, so that the message becomes a dead letter, and its caller, if known, is answered."""
    task_id = error.task_id or f"unreadable-{batch_id}-{entry.position}"
    tier, ttl_ms = TIERS[entry.rank], _UNREADABLE_TTL_MS
    return Request(
        task_id, tier, entry.position, b"null", b"{}", result_ttl_ms=ttl_ms, canvas=error.canvas, foreign=True
    )
