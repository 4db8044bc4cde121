"""The admission rules of one process as `submit.lua` takes them: made once, since they go with each flush."""

from __future__ import annotations

from batching.policy import AGED_SHARE, DEFAULT_SHARES
from batching.stamp import NO_KEY
from config.keys import Shard
from config.settings import Settings
from config.tiers import TIERS
from tasks.messages import Outgoing

_NO_QUOTA = (0, 0, 0, NO_KEY)


class Rules:
    """Constant arguments, key names and parts of the submit script."""

    def __init__(self, settings: Settings, keys: Shard) -> None:
        self.shares = DEFAULT_SHARES
        # Without thresholds nothing asks what the fleet can do; who does not ask need not build the functions.
        thresholds_parts = () if settings.admission == "off" else ("pressure", "capacity", "later")
        self.parts = ("gcra", *thresholds_parts, "question", "once")
        self.general: tuple[object, ...] = (
            settings.admission,
            settings.capacity_percent / 100,
            settings.max_memory_percent / 100,
            settings.ageing_ms,
            AGED_SHARE,
            *self.shares,
        )
        self._depth_limits = {name: model.max_queue_depth for name, model in settings.models.items()}
        self._kept = {name for name, model in settings.models.items() if model.cache and settings.cache_ttl_ms > 0}
        # Of a flush in which some may have been asked before.
        self.known_keys = (keys.asked(), keys.joined(), keys.cached())
        self._keys = {name: _keys_of(name, keys) for name in settings.models}
        thresholds = settings.shed_thresholds()
        self._ranks = {
            queue: (rank + 1, -1 if thresholds[rank] is None else thresholds[rank])
            for name in settings.models
            for rank, queue in enumerate(keys.queues(name))
        }

    def depth_limit(self, model: str) -> int:
        return self._depth_limits[model]

    def keys_of(self, model: str) -> tuple[str, ...]:
        return self._keys[model]

    def of_class(self, out: Outgoing, quotas: dict[str, int]) -> tuple[object, ...]:
        """What the requests of one class have in common; `quotas` gives each key of a flush its number."""
        quota = out.quota
        rank, threshold = self._ranks[out.queue]
        tier = "" if out.once is None else TIERS[rank - 1].value
        kept = int(out.model in self._kept)
        if quota is None:
            return (rank, threshold, *_NO_QUOTA, tier, kept)
        number = quotas.setdefault(quota.key_id, len(quotas) + 1)
        return (rank, threshold, number, quota.interval_us, quota.burst, quota.tag, tier, kept)


def _keys_of(model: str, keys: Shard) -> tuple[str, ...]:
    names = [keys.bell(model), keys.capacity(model), keys.pace(model), keys.edition(model)]
    assert len(TIERS) == len(DEFAULT_SHARES)
    for queue in keys.queues(model):
        names += (queue, keys.held(queue))
    return tuple(names)
