"""Rate limits of a caller's key."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from batching.fast_header import NO_KEY
from batching.policy import Gcra
from config.settings import Settings
from tasks.protocol.caller import Caller

_MAX_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class Quota:
    """`rpm` requests a minute, and up to `burst` of them at once, for one key.

    `tag` stands for the key in messages, where each byte counts. Two keys have the same tag with a chance of one in
    four billion; then they share their places in the queues and nothing else.
    """

    key_id: str
    rpm: int
    burst: int
    tag: str

    @classmethod
    def of(cls, key_id: str, rpm: int, burst: int) -> Quota:
        tag = f"{zlib.crc32(key_id.encode()):08x}"
        return cls(key_id, rpm, burst, "00000001" if tag == NO_KEY else tag)

    @property
    def interval_us(self) -> int:
        return Gcra.per_minute(self.rpm, self.burst).interval_us


class Quotas:
    """The quota of each caller: the key's own limits, or those of its tier."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # By credential, together with its caller: the rights of a key or token can change.
        self._known: dict[str, tuple[Caller, Quota]] = {}

    def of(self, caller: Caller) -> Quota | None:
        """The quota of a caller; None without a key, since such a caller has no limits."""
        if not caller.key_id:
            return None
        known = self._known.get(caller.key_id)
        if known is None or (known[0] is not caller and known[0] != caller):
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[caller.key_id] = known = (caller, self._make(caller))
        return known[1]

    def _make(self, caller: Caller) -> Quota:
        rpm = self._settings.rpm_of(caller.tier) if caller.rpm is None else caller.rpm
        burst = max(1, rpm * self._settings.burst_ms // 60_000) if caller.burst is None else caller.burst
        return Quota.of(caller.key_id, rpm, burst)
