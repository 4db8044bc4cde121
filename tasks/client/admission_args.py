"""The admission rules of one process as arguments of `submit.lua`, made once since every flush needs them."""

from __future__ import annotations

import math

from batching.fast_header import NO_KEY
from batching.policy import AGED_SHARE, DEFAULT_SHARES
from config.keys import Shard
from config.settings import Settings
from config.tiers import TIERS
from tasks.protocol.outgoing import Outgoing
from tasks.script_args import SUBMIT, SUBMIT_WITHOUT_THRESHOLDS, ClassRow, DedupKeys, ModelKeys, RuleArgs, TierKeys

_NO_QUOTA = (0, 0, 0, NO_KEY)


class AdmissionArgs:
    """The submit script of one process, with its constant arguments and key names."""

    def __init__(self, settings: Settings, keys: Shard) -> None:
        self.shares = DEFAULT_SHARES
        self.script = (SUBMIT_WITHOUT_THRESHOLDS if settings.admission == "off" else SUBMIT).text
        self.general = RuleArgs(
            form=settings.admission,
            headroom=settings.capacity_percent / 100,
            max_memory=settings.max_memory_percent / 100,
            ageing_ms=settings.ageing_ms,
            aged_share=AGED_SHARE,
        )
        self._depth_limits = {name: model.max_queue_depth for name, model in settings.models.items()}
        self._kept = {name for name, model in settings.models.items() if model.cache and settings.cache_ttl_ms > 0}
        # For a flush in which some requests may be repeats.
        self.known_keys = DedupKeys(asked=keys.asked(), joined=keys.joined(), cached=keys.cached())
        self._keys = {name: _keys_of(name, keys) for name in settings.models}
        thresholds = _of_one_shard(settings, keys)
        self._ranks = {
            # What has gathered while a model was not loaded is no overload: its requests have their deadlines only.
            queue: (rank, -1 if threshold is None or model.on_demand else threshold)
            for name, model in settings.models.items()
            for rank, (queue, threshold) in enumerate(zip(keys.queues(name), thresholds, strict=True), 1)
        }

    @property
    def rules(self) -> RuleArgs:
        return self.general

    def depth_limit(self, model: str) -> int:
        return self._depth_limits[model]

    def keys_of(self, model: str) -> tuple[str, ...]:
        return self._keys[model]

    def of_class(self, out: Outgoing, model: int, quotas: dict[str, int]) -> ClassRow:
        """The common row of the requests of one class in a flush.

        Args:
            model: the number of its model in the flush.
            quotas: maps each key of the flush to its number.
        """
        quota = out.quota
        rank, threshold = self._ranks[out.queue]
        tier = "" if out.once is None else TIERS[rank - 1].value
        kept = out.submission.model in self._kept
        if quota is None:
            return ClassRow(model, rank, threshold, *_NO_QUOTA, tier, kept)
        number = quotas.setdefault(quota.key_id, len(quotas) + 1)
        limits = (number, quota.interval_us, quota.burst, quota.tag)
        return ClassRow(model, rank, threshold, *limits, tier, kept)


def _of_one_shard(settings: Settings, keys: Shard) -> list[int | None]:
    """The tiers' thresholds for the queues of one shard.

    As a time to drain the queue they are the same in each, since a worker tells each shard the rate that it can count
    on. As a number of requests they are shared out evenly.
    """
    shards = settings.shard_count if keys.tag and settings.admission == "depth" else 1
    return [None if each is None else math.ceil(each / shards) for each in settings.shed_thresholds()]


def _keys_of(model: str, keys: Shard) -> tuple[str, ...]:
    names: list[str] = [
        *ModelKeys(
            bell=keys.bell(model), capacity=keys.capacity(model), pace=keys.pace(model), edition=keys.edition(model)
        )
    ]
    assert len(TIERS) == len(DEFAULT_SHARES)
    for queue in keys.queues(model):
        names += TierKeys(queue=queue, held=keys.held(queue))
    return tuple(names)
