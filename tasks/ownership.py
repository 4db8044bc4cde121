"""Whose request it is, said by its task id itself.

    3f2a9                            the time, roughly
         1c4-07be-8d15-a6e0-9b           62 random bits
                              1c60d2f47a the last ten digits: a hash of the owner and of what is before them

Whoever asks about an id is asked whose it would have to be: nothing is stored, nothing is looked up, and every process
knows the same. A stranger's id is answered like one that never was. With auth off, all behind the time is random.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

_TAG = 10


def owned_id(task_id: str, owner: str) -> str:
    """A new id, made `owner`'s."""
    head = task_id[:-_TAG]
    return head + _tag(head, owner)


def belongs_to(task_id: str, owner: str) -> bool:
    """Whether `owner` may know of it; without an owner (auth is off, or an operator asks) everybody's can be seen."""
    if not owner:
        return True
    head, tag = task_id[:-_TAG], task_id[-_TAG:]
    return hmac.compare_digest(_tag(head, owner).encode(), tag.encode())


def _tag(head: str, owner: str) -> str:
    digest = _begun(owner).copy()
    digest.update(head.encode())
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _begun(owner: str) -> hashlib.blake2s:
    """The same few owners ask over and over."""
    return hashlib.blake2s(f"{owner}\0".encode(), digest_size=_TAG // 2, person=b"bunchid")
