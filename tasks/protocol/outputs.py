"""Outputs that lie beside their results: a result has a reference in the place of a large output (`batching.blobs`)."""

from __future__ import annotations

import msgspec
from msgspec import structs

from batching.blobs.local_files import LocalFiles
from batching.blobs.reference import LONGEST, MARK, SHORTEST, BlobRef, NotAReferenceError, is_ours, read_reference
from batching.blobs.store import BlobStore, RedisBlobs, open_blobs
from batching.claim.payloads import Payloads
from batching.claim.store import Keep
from batching.ports import UnreadableMessage
from config.allowed_hosts import RefHosts
from config.settings import ModelSettings, Settings
from config.shards import Place, Places
from tasks.protocol.ids import place_of
from tasks.protocol.messages import read_payload
from tasks.protocol.results import BytesReply, Reply
from tasks.referenced_inputs import ReferencedInputs


def reference_in(reply: Reply) -> BlobRef | None:
    """The reference that stands for the output of a reply; None if the output itself is there."""
    # Most outputs are shorter than a reference, and need not be looked at.
    if not SHORTEST <= len(reply.result) <= LONGEST or reply.status != "SUCCESS":
        return None
    value = bytes(reply.result)
    try:
        return read_reference(value) if is_ours(value) else None
    except NotAReferenceError:
        # A plain Celery client's: whatever a model of ours returns that looks like one lies beside its result.
        return None


def with_output(reply: Reply, blobs: BlobStore, *, as_bytes: bool = False) -> Reply:
    """The reply with its output; `as_bytes`: a `BytesReply`, if that is bytes. Raises BlobGoneError, RedisError."""
    ref = reference_in(reply)
    if ref is None:
        return reply
    value = bytes(blobs.get(ref))
    if ref.form == "json":
        return structs.replace(reply, result=msgspec.Raw(value))
    found = BytesReply(reply.task_id, reply.status, date_done=reply.date_done, bunch=reply.bunch, data=value)
    return found if as_bytes else found.in_json()


def payload_of(message: bytes) -> BlobRef | None:
    """The reference to the payload of a queued message; None if it has its input in itself."""
    if MARK not in message:
        return None
    try:
        return read_reference(read_payload(message)[0])
    except (UnreadableMessage, NotAReferenceError):
        return None


class PlacedBlobs:
    """The stores of all places. Without settings, each is in the Redis of its place."""

    def __init__(self, places: Places, settings: Settings | None = None) -> None:
        self._places = places
        self._settings = settings
        self._stores: dict[Place, RedisBlobs] = {}

    def of(self, task_id: str) -> BlobStore:
        """The store with the payloads of a request."""
        place = place_of(self._places, task_id)
        store = self._stores.get(place)
        if store is None:
            settings = self._settings
            where = (place.redis, place.keys)
            made = RedisBlobs(*where) if settings is None else open_blobs(settings, *where)
            store = self._stores.setdefault(place, made)
        return store


def payloads_of(settings: Settings, places: Places, files: LocalFiles, model: ModelSettings) -> Payloads:
    """The payloads of the batches of a model. Only a model that takes bytes gets what a caller refers to."""
    hosts = RefHosts(settings.ref_hosts)
    fetcher = ReferencedInputs(hosts, settings.blob_max_bytes) if model.takes_bytes else None
    return Payloads.of(settings, PlacedBlobs(places, settings).of, files, Keep().age_ms, fetcher)
