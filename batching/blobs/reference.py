"""The reference that stands in a message or a result in the place of a large value.

    {"$blob":{"id":"…","size":5242880,"blake3":"…","form":"bytes"}}

`form` says what the blob has: `json`, the text of the value; or `bytes`, the value itself, which is bytes. A reference
is data that anybody may write, so a reader checks that it may name this blob, and that the blob is what it says. The
hash is BLAKE3, which takes a quarter of the time of SHA-256; a plain Celery client may give `sha256` in its place.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from typing import Annotated, Literal

import msgspec
from blake3 import blake3

Form = Literal["json", "bytes"]

# Redis takes no larger value, unless it is configured to.
LARGEST_BYTES = 512 * 1024 * 1024
ID = r"[A-Za-z0-9._-]{8,128}"
# Blobs that a plain Celery client has written itself: no other's message may name one of a frontend, nor the reverse.
CLIENT_PREFIX = "client-"

Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]

# Of a reference as JSON, with an id of 128 characters and some white space.
LONGEST = 512
# With an id and a size as short as they may be.
SHORTEST = 100

# No digit of a number that is hexadecimal.
_SHARED = "s"

MARK = b"$blob"
OURS = b'{"$blob":'
_MAY_BEGIN = (b"{", b" ", b"\n", b"\t", b"\r")

# With any white space, as kombu's JSON has some.
_BEGINS = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"\$blob"[ \t\r\n]*:')


class BlobRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A blob by its name, with what it is to be: the number of its bytes, and one hash of them in hexadecimal.

    One that is `near` is in the shared memory of one machine alone, with a number in place of the hash.
    """

    id: Annotated[str, msgspec.Meta(pattern=rf"\A{ID}\Z")]
    size: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_BYTES)]
    blake3: Digest | msgspec.UnsetType = msgspec.UNSET
    form: Form = "json"
    near: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    sha256: Digest | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if (self.blake3 is msgspec.UNSET) == (self.sha256 is msgspec.UNSET):
            raise ValueError("it must have one of blake3 and sha256")

    @property
    def digest(self) -> str:
        """The hash that it has, or the number in its place."""
        return self.blake3 or self.sha256 or ""

    def fits(self, value: bytes | bytearray | memoryview) -> bool:
        """Return whether these bytes have its hash."""
        return (sha256 if self.blake3 is msgspec.UNSET else blake3)(value).hexdigest() == self.digest

    @property
    def json(self) -> bytes:
        """The JSON value that stands for the blob's."""
        return _encode({"$blob": self})


class NotAReferenceError(ValueError):
    """`NotAReferenceError(why)`: it begins like a reference, and is none."""


class _Value(msgspec.Struct, forbid_unknown_fields=True):
    blob: BlobRef = msgspec.field(name="$blob")


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Value).decode


def reference_to(blob_id: str, value: bytes | memoryview, form: Form) -> BlobRef:
    """The reference to a blob with these bytes."""
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    return BlobRef(blob_id, size, blake3(value).hexdigest(), form)


def output_name(task_id: str, *, shared: bool) -> str:
    """A new name for the output of a request, of which there may be several: another worker may have it too. Each has a
    blob of its own, until one of them is taken. `shared`: it answers other requests as well.
    """
    return f"{task_id}.{_SHARED if shared else ''}{os.urandom(4).hex()}"


def is_alone(blob_id: str, task_id: str) -> bool:
    """Return whether this is the output of this request, and of no other."""
    name, _, number = blob_id.rpartition(".")
    return name == task_id and not number.startswith(_SHARED)


def is_reference(value: bytes) -> bool:
    """Return whether a JSON value is a reference, or looks like one, in any spelling."""
    return value.startswith(_MAY_BEGIN) and _BEGINS.match(value) is not None


def is_ours(value: bytes) -> bool:
    """The same for the one spelling that Bunch itself writes."""
    return value.startswith(OURS)


def read_reference(value: bytes) -> BlobRef | None:
    """The reference that a JSON value is; None for any other value. Raises NotAReferenceError."""
    if not is_reference(value):
        return None
    try:
        return _decode(value).blob
    except msgspec.MsgspecError as error:
        raise NotAReferenceError(f"its $blob is no reference: {error}") from error
