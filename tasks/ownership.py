"""Whose request it is, said by its task id itself.

    3f2a91c4-07be-4d15-a     the first 18 random digits: 72 bits
                         6e0-9b1c…  the last 12: a hash of the owner and of what is before them

Whoever asks about an id is asked whose it would have to be: nothing is stored, nothing is looked up, and every process
knows the same. A stranger's id is answered like one that never was. With auth off, ids are random throughout.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

_TAG = 12


def owned_id(task_id: str, owner: str) -> str:
    """A random id, made `owner`'s."""
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
