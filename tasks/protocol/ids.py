"""Task ids that carry a tag of their owner.

    3f2a9                            the time, roughly
         1c4-07be-8d15-a6e0-9b           62 random bits
                              1c60d2f47a the last ten digits: a hash of the owner and of what is before them

A process that is asked about an id computes the tag: nothing is stored, nothing is looked up, and every process gets
the same result. Another owner's id is answered like an unknown one. With auth off, everything after the time is random.

With several shards the id also tells its shard, and the variant digit is `b`: two of the random digits are its number.
                         1c4-07be-8d15-a6e0-9b
                                   ──  └ a: one shard; b: these two digits are its number
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache

from config.shards import Place, Places

_TAG = 10
# The form that `new_id` makes: a step every four seconds, which repeats after 48 days.
_OURS = re.compile(r"([0-9a-f]{5})[0-9a-f]{3}-[0-9a-f]{4}-8[0-9a-f]{3}-[ab][0-9a-f]{3}-[0-9a-f]{12}")
# The places of the shard's number, and of the digit that says that there is one.
_NUMBER, _VARIANT = slice(15, 17), 19
_STEP_MS = 4000
_STEPS = 1 << 20
# How far a frontend's clock may be ahead.
_AHEAD_MS = 600_000


def _make_ids(block: int = 256) -> Iterator[str]:
    """Random ids in the form of a UUID of version 8; the first five digits count up every four seconds for 48 days.

    Ids made at the same time are thus close together in an index, like those of RFC 9562's version 7. But 48 bits of
    time would leave too few random bits beside an owner's tag. One system call makes 256 ids.
    """
    while True:
        random = os.urandom(16 * block).hex()
        moment = f"{int(time.time()) >> 2 & 0xFFFFF:05x}"
        for start in range(0, 32 * block, 32):
            h = random[start : start + 32]
            yield f"{moment}{h[5:8]}-{h[8:12]}-8{h[13:16]}-a{h[17:20]}-{h[20:]}"


_ids = _make_ids()


def new_id() -> str:
    return next(_ids)


def _forget_ids() -> None:
    """Drop the block after a fork: a child must not reuse its parent's random bytes."""
    global _ids  # noqa: PLW0603 - the generator is this process's, and this is the one place that replaces it
    _ids = _make_ids()


os.register_at_fork(after_in_child=_forget_ids)


def sharded_id(task_id: str, number: int) -> str:
    """Return a new id of that shard; `number` is below 256. An owner's tag covers it, so it comes first."""
    return f"{task_id[:15]}{number:02x}{task_id[17:_VARIANT]}b{task_id[_VARIANT + 1 :]}"


def shard_of(task_id: str) -> int | None:
    """The number of the shard that an id of ours tells; None for any other id."""
    if task_id[_VARIANT : _VARIANT + 1] != "b" or _OURS.fullmatch(task_id) is None:
        return None
    return int(task_id[_NUMBER], 16)


def place_of(places: Places, task_id: str) -> Place:
    """The place of a request: the shard that its id tells, or the home, where any other maker's ids are."""
    return places.numbered(shard_of(task_id))


def owned_id(task_id: str, owner: str) -> str:
    """Return a new id that belongs to `owner`."""
    head = task_id[:-_TAG]
    return head + _tag(head, owner)


def belongs_to(task_id: str, owner: str) -> bool:
    """True if `owner` may know of the id; an empty owner (auth off, or an operator) may know of every id."""
    if not owner:
        return True
    head, tag = task_id[:-_TAG], task_id[-_TAG:]
    return hmac.compare_digest(_tag(head, owner).encode(), tag.encode())


def made_at_ms(task_id: str, now_ms: float) -> float | None:
    """The time at which one of our ids was made, to four seconds; None if over 48 days ago, or for any other id."""
    found = _OURS.fullmatch(task_id)
    if found is None:
        return None
    newest = (now_ms + _AHEAD_MS) // _STEP_MS
    return (newest - (newest - int(found[1], 16)) % _STEPS) * _STEP_MS


def until_ms(left_ms: int, now: tuple[int, int]) -> float:
    """The Redis time in ms at which a key ends that has so much left. Redis 6.2 has no PEXPIRETIME."""
    seconds, micros = now
    return seconds * 1000 + micros / 1000 + left_ms


def newest(named: Iterable[tuple[str, float]]) -> str:
    """The id that was made last, of some with the time in ms until which they are kept; empty if there are none.

    Ids tell the time to four seconds. Of those of the same step, which is how a caller repeats a request, the one that
    is kept for longer came later. A time and not what is left of it, since shards are not read at the same moment.
    """
    now_ms = time.time() * 1000
    return max(named, key=lambda each: (made_at_ms(each[0], now_ms) or 0, each[1]), default=("", 0))[0]


def _tag(head: str, owner: str) -> str:
    digest = _begun(owner).copy()
    digest.update(head.encode())
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _begun(owner: str) -> hashlib.blake2s:
    """The hash of an owner, cached: the same few owners come again and again."""
    return hashlib.blake2s(f"{owner}\0".encode(), digest_size=_TAG // 2, person=b"bunchid")
