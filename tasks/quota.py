"""What a caller's key may ask for."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from batching.policy import MINUTE_US
from batching.stamp import NO_KEY


@dataclass(frozen=True, slots=True)
class Quota:
    """`rpm` requests a minute, up to `burst` of them at once, for one key.

    `tag` stands for the key in messages, where every byte is in everybody's way; two keys with the same one, which is
    one chance in four billion, share their places in the queues and nothing else.
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
    def interval_us(self) -> float:
        return MINUTE_US / self.rpm
