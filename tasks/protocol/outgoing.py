"""Writes the task messages of a frontend: Celery protocol 2 in kombu's envelope, which any Celery worker can read.

One template with a few splices (id, expiry, reply address, body); `tasks.protocol.messages` reads them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from batching.blobs.reference import BlobRef
from batching.fast_header import NO_KEY
from config.keys import TASK_NAME
from config.native import hot_path
from tasks.client.dedup import DedupIdentity
from tasks.client.submission import Submission
from tasks.protocol.quota import Quota
from tasks.protocol.seal import Seal

_encode = msgspec.json.Encoder().encode


class Outgoing(msgspec.Struct, frozen=True):
    """One request on its way to a queue. Times are milliseconds from now, since only Redis' clock counts. With a `blob`
    its input is written, and the message has the reference.
    """

    task_id: str
    submission: Submission
    queue: str
    deadline_ms: int
    queue_limit_ms: int
    result_ttl_ms: int
    tracked: bool = True
    request_key: str = ""
    quota: Quota | None = None
    once: DedupIdentity | None = None
    blob: BlobRef | None = None


class MessageWriter:
    """Writes the messages of one frontend process; `reply_to` is the channel that it listens on."""

    def __init__(self, reply_to: str, seal: Seal | None = None) -> None:
        self.channel = reply_to
        self._reply_to = _encode(reply_to).decode()
        self._seal = seal

    def rest(self, out: Outgoing, now_epoch_s: float) -> bytes:
        """The message from the tracked mark of its fast header on; the submit script writes the part before.

        The optional fields of protocol 2 are left out: 400 bytes that would be written to disk.
        """
        task_id, asked = out.task_id, out.submission
        owner = asked.caller.owner
        value = asked.input
        if out.blob is not None:
            value = out.blob.json
        elif asked.binary:
            value = asked.input_json
        tag = NO_KEY if out.quota is None else out.quota.tag
        # The fields that scripts and workers must find again are at a fixed place.
        mark = out.once.mark if out.once is not None else ""
        marks = f'"bunch_once":"{mark}",' if mark else ""
        if owner:
            # The worker needs the owner for the ledger only.
            marks += f'"bunch_owner":{_encode(owner).decode()},'
        if self._seal is not None:
            seal = self._seal.sign(task_id, owner, mark, self.channel, asked.parameters, value)
            marks += f'"bunch_seal":"{seal}",'
        # Rounded up to whole seconds: Bunch uses the fast header, this one is for other Celery workers.
        expires = _iso_second(int(now_epoch_s + out.deadline_ms / 1000) + 1)
        # Both were validated when they were taken from the caller: nothing in them needs escaping.
        more = f',"traceparent":"{asked.traceparent}"' if asked.traceparent else ""
        if asked.client_id:
            more += f',"bunch_client":{_encode(asked.client_id).decode()}'
        if asked.tracestate:
            more += f',"tracestate":{_encode(asked.tracestate).decode()}'
        if asked.request_id:
            more += f',"request_id":"{asked.request_id}"'
        return _message_rest(
            out.tracked,
            out.result_ttl_ms,
            tag,
            task_id,
            marks,
            expires,
            int(now_epoch_s * 1000),
            more,
            value,
            asked.parameters,
            self._reply_to,
            out.queue,
        )


def message_rest(
    tracked: bool,
    ttl_ms: int,
    tag: str,
    task_id: str,
    marks: str,
    expires: str,
    sent_ms: int,
    more: str,
    input: bytes,
    parameters: bytes,
    reply_to: str,
    queue: str,
) -> bytes:
    """The message from its tracked mark on. `marks` and `more` are members of its headers, `reply_to` is JSON."""
    body = f'[[{input.decode()}],{{"parameters":{parameters.decode()}}},{{}}]'
    return (
        f'{tracked:d};{ttl_ms:09d};{tag};{task_id}",{marks}"lang":"py","task":"{TASK_NAME}",'
        f'"id":"{task_id}","expires":"{expires}",'
        f'"bunch_sent":{sent_ms}{more}}},"body":{_encode(body).decode()},'
        '"content-type":"application/json","content-encoding":"utf-8",'
        f'"properties":{{"reply_to":{reply_to},'
        f'"delivery_info":{{"exchange":"","routing_key":"{queue}"}},"priority":0,"body_encoding":"utf-8",'
        f'"delivery_tag":"{task_id}"}}}}'
    ).encode()


# The same in C, where it was compiled.
_message_rest = message_rest if hot_path is None else hot_path.message_rest


@lru_cache(maxsize=64)
def _iso_second(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat()
