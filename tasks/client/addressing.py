"""The way of a submission to its queue: the queue, its times, its caller's quota, what makes it a repeat."""

from __future__ import annotations

import math

from batching.blobs.reference import BlobRef
from config.keys import Shard
from config.settings import Settings
from config.tiers import Tier
from tasks.client.dedup import Deduplicator
from tasks.client.submission import Submission, scoped
from tasks.protocol.outgoing import Outgoing
from tasks.protocol.quota import Quotas


class Addressing:
    """The addresses of one process's requests in one shard."""

    def __init__(self, settings: Settings, keys: Shard) -> None:
        self._settings = settings
        self._keys = keys
        # With the time limit in it, in milliseconds. What waits for its model to be loaded has its deadline only.
        self._queues = {
            (name, tier): (
                keys.queue(name, tier),
                math.inf if model.on_demand else settings.queue_timeout_of(tier),
            )
            for name, model in settings.models.items()
            for tier in Tier
        }
        self.quotas = Quotas(settings)
        self._recogniser = Deduplicator(settings, keys)
        self._sync_result_ttl_ms = min(settings.sync_result_ttl_ms, settings.result_ttl_ms)

    def may_repeat(self, submission: Submission) -> bool:
        """Return whether another request may have the answer, or get this one's."""
        asked = submission.model in self._recogniser.asked and not submission.fresh
        return asked or bool(submission.idempotency_key)

    def of(self, task_id: str, submission: Submission, timeout_s: float, blob: BlobRef | None = None) -> Outgoing:
        model, caller = submission.model, submission.caller
        request_id, key = submission.request_id, submission.idempotency_key
        once = None
        if key or model in self._recogniser.asked:
            once = self._recogniser.of(submission, blob.digest if blob is not None else "")
        timeout_ms = max(1, int(timeout_s * 1000))
        queue, limit_ms = self._queues[model, caller.tier]
        return Outgoing(
            task_id,
            submission,
            queue,
            timeout_ms,
            timeout_ms if timeout_ms < limit_ms else int(limit_ms),
            self._sync_result_ttl_ms
            if submission.waits and not key
            else max(self._settings.result_ttl_ms, submission.keep_ms),
            not submission.waits or bool(request_id or key),
            self._keys.request(scoped(request_id, caller.owner)) if request_id else "",
            self.quotas.of(caller),
            once,
            blob,
        )

    def asking(self, task_id: str, submission: Submission, timeout_s: float) -> Outgoing:
        """The same without what makes it a repeat, or names it: to ask whether it would be admitted."""
        timeout_ms = max(1, int(timeout_s * 1000))
        queue, limit_ms = self._queues[submission.model, submission.caller.tier]
        limit_ms = min(timeout_ms, limit_ms)
        return Outgoing(
            task_id, submission, queue, timeout_ms, int(limit_ms), 0, quota=self.quotas.of(submission.caller)
        )
