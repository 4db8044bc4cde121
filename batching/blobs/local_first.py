"""The blobs of a process that shares memory with others: what lies there is not fetched from Redis.

    write_near ──▶ shared memory, if its readers are on this machine
    put ─────────▶ Redis, unless it is `near`: for a caller who is gone with its frontend
    get ─────────▶ shared memory, else Redis
    release ─────▶ both

Which processes are on this machine is what the folder says: each of them has a mark in it (`LocalFiles`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from urllib.parse import urlsplit

from blake3 import blake3

from batching.blobs.local_files import LocalFiles, LocalPayload
from batching.blobs.reference import BlobRef, Form, reference_to
from batching.blobs.store import BlobGoneError, BlobStore, Usage
from config.redis_bytes import Buffer
from config.settings import Settings

# Below it, mapping a file costs more than reading it.
_PASSED_ON_BYTES = 32 * 1024


class ElsewhereError(BlobGoneError):
    """`ElsewhereError(why)`: the payload is in the memory of another machine, or is gone."""


class LocalFirst:
    """`BlobStore` over another one and shared memory."""

    def __init__(self, blobs: BlobStore, files: LocalFiles | None = None) -> None:
        self._blobs = blobs
        self.files = files or LocalFiles("", 0)

    def write_near(
        self,
        blob_id: str,
        value: bytes | memoryview,
        form: Form,
        ttl_ms: int,
        *,
        near: bool,
        alone: bool = False,
        hashed: bool = False,
    ) -> BlobRef:
        """The reference to a payload, which is written to shared memory if its readers are `near`. Unless the reference
        says that it is near, it must be `put` as well. `alone`: nobody will miss it who is not gone with this machine,
        and all its readers are near. `hashed`: its hash is needed even so.
        """
        size = value.nbytes if isinstance(value, memoryview) else len(value)
        if near and alone:
            # Nobody but this process can have written the file with this number, so it need not be the hash.
            number = blake3(value).hexdigest() if hashed else secrets.token_hex(32)
            if self.files.put(blob_id, number, value, ttl_ms / 1000):
                return BlobRef(blob_id, size, number, form, near=True)
        ref = reference_to(blob_id, value, form)
        if near:
            self.files.put(blob_id, ref.digest, value, ttl_ms / 1000)
        return ref

    def put(self, ref: BlobRef, value: Buffer, ttl_ms: int) -> None:
        self._blobs.put(ref, value, ttl_ms)

    def get(self, ref: BlobRef) -> Buffer | LocalPayload:
        payload = self.files.get(ref.id, ref.digest, ref.size)
        if payload is not None:
            return payload if ref.size >= _PASSED_ON_BYTES else bytes(payload)
        try:
            return self._blobs.get(ref)
        except BlobGoneError as error:
            if ref.near is not True:
                raise
            raise ElsewhereError(f"{error}; it was in the memory of another machine") from error

    def release(self, blob_ids: Sequence[str]) -> int:
        self.files.release(blob_ids)
        return self._blobs.release(blob_ids)

    def extend(self, blob_id: str, ttl_ms: int, *, keep: bool) -> bool:
        if self._blobs.extend(blob_id, ttl_ms, keep=keep):
            return True
        found = self.files.find(blob_id)
        if found is None:
            return False
        digest, payload = found
        self._blobs.put(BlobRef(blob_id, len(payload), digest), bytes(payload), ttl_ms)
        return self._blobs.extend(blob_id, ttl_ms, keep=keep)

    def usage(self) -> Usage:
        return self._blobs.usage()


def files_of(settings: Settings) -> LocalFiles:
    """The folder of an installation; in collocated mode there is none, since all is in one process."""
    urls = (settings.redis_url, settings.blob_url)
    most_bytes = 0 if settings.mode == "collocated" else settings.shared_memory_bytes
    return LocalFiles("\n".join(map(_server_of, urls)), most_bytes)


def _server_of(url: str) -> str:
    """The address alone: roles may have users and passwords of their own."""
    parts = urlsplit(url)
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}"
