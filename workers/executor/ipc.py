"""The messages between a worker and its executor's process, and their framing.

    parent ──Start──▶ child        once: what to load
    parent ◀──Ready── child        loaded
           ◀─NotReady─             or not, with the model's own traceback; the child ends
    parent ───Work──▶ child        a batch
    parent ◀─Passing─ child        it goes through the model in parts, now the next
    parent ◀──Done─── child        its outcomes; batches are answered in the order of their arrival
    parent ◀──Fault── child        what this process has: the child ends

`Work` and `Done` are those of the port (`batching.request`).

A frame is eight bytes of length and a MessagePack body, over a socket pair that no other process has. Each direction
has one sender and one reader. End of file means that the other side is gone. Large inputs and
outputs lie in shared memory beside the frame (`workers.executor.segments`).
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
from msgspec import structs

from batching.blobs.local_files import LocalPayload
from batching.request import Done, Ok, Work
from config.logging import encodable
from config.settings import ModelSettings
from workers.executor.segments import MAX_PASSED, Lent, Opened, Place, SegmentWriter, Value, Values

HEADER = struct.Struct("!Q")
# Nothing that fits into a machine's memory is as long; a longer length means that another program writes to our
# descriptor.
MAX_FRAME = 1 << 40
# So much in one batch goes through shared memory, in values of that size each; with less, the socket costs no more.
LARGE_BYTES = 1 << 18
_LARGE_VALUE_BYTES = 1 << 15
_READ_SIZE = 1 << 18
MAX_DESCRIPTORS = MAX_PASSED + 1
_INT_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * _INT_BYTES)
# As plain integers, since an operation of enum's takes as long as the call.
_DONTWAIT, _CTRUNC = int(socket.MSG_DONTWAIT), int(socket.MSG_CTRUNC)
_CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))


class BrokenFrames(Exception):
    """The received bytes are not a frame: the two sides are out of step."""


class Start(msgspec.Struct, frozen=True, array_like=True, tag=True):
    model: ModelSettings
    name: str
    parent_pid: int
    # As the file system has them: the name of a folder need not be valid text.
    path: list[bytes]
    log_level: int
    log_format: str = "text"
    max_output_bytes: int = 0


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`version` is the model's own, empty when it names none. `overlaps`: two batches are inside the model at once."""

    version: str
    overlaps: bool = False


class NotReady(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The model is not loaded. `final`: another try would fail in the same way, since the source leads to no model."""

    error: str
    final: bool = False


class Fault(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The reason why a process must be replaced. `cause`: `device` or `barren`. `settled`: its batch's outcomes stand;
    otherwise there are none, and the culprit must be found in a new process. `reached`: the batch had begun.
    """

    cause: str
    reason: str
    settled: bool = False
    reached: bool = True

    @property
    def is_inside(self) -> bool:
        """True if the batch had begun and has no outcomes."""
        return self.reached and not self.settled


class Passing(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The front batch runs again, in parts: it is alive, and its time restarts."""


class Attached(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message whose large byte strings lie in shared memory; in the message, they are empty. Descriptors of `opened`
    segments come with the frame, `closed` ones do not come again.
    """

    message: Work | Done
    places: list[Place]
    opened: list[Opened]
    closed: list[int]


ToChild = Start | Work | Attached
ToParent = Ready | NotReady | Passing | Done | Fault | Attached

_BATCHES = (Work, Done)
_output_of = attrgetter("output")
_encoder = msgspec.msgpack.Encoder()


def encode(message: ToChild | ToParent) -> bytearray:
    """The whole frame, ready for `sendall`; texts of a model that UTF-8 cannot encode are escaped."""
    frame = bytearray(HEADER.size)
    try:
        _encoder.encode_into(message, frame, HEADER.size)
    except UnicodeEncodeError:
        del frame[HEADER.size :]
        plain = msgspec.to_builtins(message, builtin_types=(bytes,))
        _encoder.encode_into(_encodable(plain), frame, HEADER.size)
    HEADER.pack_into(frame, 0, len(frame) - HEADER.size)
    return frame


def _encodable(value: Any) -> Any:
    """The same lists and texts with every lone surrogate escaped, since no encoding has them."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list | tuple):
        return [_encodable(each) for each in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return value


Frame: TypeAlias = tuple[bytearray, Lent | None]
"""A message that is ready to be sent, and its large values, which lie in shared memory."""


class FrameWriter:
    """Sends messages into a socket; used by one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._segments = SegmentWriter()

    def pack(self, message: ToChild | ToParent) -> Frame:
        """The frame of a message; it must be sent, or the descriptors of its segments stay open."""
        if not isinstance(message, _BATCHES) or _longest(message) < _LARGE_VALUE_BYTES:
            return encode(message), None
        large = _large(message)
        lent = self._segments.lend(large) if large else None
        if lent is None:
            return encode(_copied(message)), None
        return encode(Attached(_without(message, large), lent.places, lent.opened, lent.closed)), lent

    def send(self, frame: Frame) -> None:
        """Send a whole frame. Blocks while nobody reads, and the buffer is full.

        Raises:
            OSError: not all of it was taken.
        """
        data, lent = frame
        if lent is None:
            self._sock.sendall(data)
            return
        try:
            sent = 0
            if lent.descriptors:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", lent.descriptors))
                sent = self._sock.sendmsg([data], [rights])
            self._sock.sendall(memoryview(data)[sent:])
        finally:
            self._segments.sent(lent)

    def close(self) -> None:
        """Give back the memory of segments. The socket stays open."""
        self._segments.close()


def _longest(message: Work | Done) -> int:
    """The length of the largest input or output. All batches pay for this, so there is no loop in Python."""
    if isinstance(message, Work):
        return max(map(len, message.inputs), default=0)
    try:
        return max(map(len, map(_output_of, message.outcomes)), default=0)
    except AttributeError:
        return max((len(each.output) for each in message.outcomes if isinstance(each, Ok)), default=0)


def _large(message: Work | Done) -> list[tuple[int, Value]]:
    """The inputs or outputs that are to go through shared memory, each with its index."""
    large: list[tuple[int, Value]]
    if isinstance(message, Work):
        large = [(index, each) for index, each in enumerate(message.inputs) if len(each) >= _LARGE_VALUE_BYTES]
    else:
        large = [
            (index, each.output)
            for index, each in enumerate(message.outcomes)
            if isinstance(each, Ok) and len(each.output) >= _LARGE_VALUE_BYTES
        ]
    if sum(len(value) for _, value in large) < LARGE_BYTES:
        return [each for each in large if isinstance(each[1], LocalPayload)]
    return large


def _copied(message: Work | Done) -> Work | Done:
    """The message with all that is in shared memory copied out of it."""
    if not isinstance(message, Work):
        return message
    return structs.replace(message, inputs=list(map(bytes, message.inputs)))


def _without(message: Work | Done, large: list[tuple[int, Value]]) -> Work | Done:
    """A copy with nothing in the place of these inputs or outputs."""
    if isinstance(message, Work):
        copy: Work | Done = structs.replace(message, inputs=list(message.inputs))
    else:
        copy = structs.replace(message, outcomes=list(message.outcomes))
    for index, _ in large:
        _put(copy, index, b"")
    return copy


def _put(message: Work | Done, index: int, value: Any) -> None:
    """Put an input or an output in its place."""
    if isinstance(message, Work):
        message.inputs[index] = value
        return
    outcome = message.outcomes[index]
    if not isinstance(outcome, Ok):
        raise ValueError(f"outcome {index} has an output, and is {type(outcome).__name__}")  # noqa: TRY004
    message.outcomes[index] = structs.replace(outcome, output=value)


class FrameReader:
    """Splits the bytes of a socket into messages of `kind`. `values` has those that come by shared memory."""

    def __init__(self, sock: socket.socket, kind: Any, values: Values | None = None) -> None:
        self._sock = sock
        # A socket of gevent's waits in spite of MSG_DONTWAIT; the one below it does not.
        self._unwaiting = getattr(sock, "_sock", sock)
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._scratch = memoryview(bytearray(_READ_SIZE))
        self._into = [self._scratch]
        self._buffer = bytearray()
        self._values = values
        # They come with the first byte of their frame.
        self._descriptors: deque[int] = deque()
        self.eof = False

    def next(self) -> Any | None:
        """Block for the next message; None at end of file, even in the middle of a frame.

        Raises:
            BrokenFrames: what arrived is no message.
        """
        while True:
            message = self._cut()
            if message is not None:
                return message
            if self.eof:
                return None
            self._fill(self._sock, _CLOEXEC)

    def available(self, *, once: bool = False) -> Iterator[Any]:
        """Yield every message that has arrived, without blocking; then `eof` says whether more can come.

        `once`: those of one read, for whoever polls the socket again.

        Raises:
            BrokenFrames: what arrived is no message; those before it have been yielded.
        """
        while not self.eof:
            try:
                self._fill(self._unwaiting, _CLOEXEC | _DONTWAIT)
            except BlockingIOError:
                return
            while (message := self._cut()) is not None:
                yield message
            if once:
                return

    @property
    def part_bytes(self) -> int:
        """The bytes that have been read of a message that is not whole yet."""
        return len(self._buffer)

    def _fill(self, sock: socket.socket, flags: int) -> None:
        try:
            size, ancillary, told, _ = sock.recvmsg_into(self._into, _ANCILLARY_BYTES, flags)
        except ConnectionError:
            size, ancillary, told = 0, [], 0
        if ancillary or told & _CTRUNC:
            self._came(ancillary, complete=not told & _CTRUNC)
        if size:
            self._buffer += self._scratch[:size]
        else:
            self.eof = True

    def _came(self, ancillary: list[tuple[int, int, bytes]], *, complete: bool) -> None:
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(array.array("i", data[: len(data) - len(data) % _INT_BYTES]))
        if not complete or len(self._descriptors) > 2 * MAX_DESCRIPTORS:
            raise BrokenFrames("more descriptors came than this process can open")

    def _cut(self) -> Any | None:
        if len(self._buffer) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._buffer)
        if length > MAX_FRAME:
            raise BrokenFrames(f"a frame of {length} bytes was announced")
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        try:
            with memoryview(self._buffer) as view:
                message = self._decoder.decode(view[HEADER.size : end])
        except msgspec.MsgspecError as error:
            raise BrokenFrames(str(error)) from error
        del self._buffer[:end]
        return self._whole(message) if type(message) is Attached else message

    def _whole(self, attached: Attached) -> Work | Done:
        """The message with its values from shared memory."""
        count = len(attached.opened)
        if self._values is None or count > len(self._descriptors):
            raise BrokenFrames(f"{count} segments were announced, and {len(self._descriptors)} came")
        descriptors = [self._descriptors.popleft() for _ in range(count)]
        try:
            self._values.forget(attached.closed)
            values = self._values.take(attached.places, attached.opened, descriptors)
            for place, value in zip(attached.places, values, strict=True):
                _put(attached.message, place.index, value)
        except (ValueError, IndexError, OSError) as error:
            raise BrokenFrames(str(error)) from error
        return attached.message

    def close(self) -> None:
        """Close the descriptors that have come, and give back the memory of segments. The socket stays open."""
        while self._descriptors:
            with contextlib.suppress(OSError):
                os.close(self._descriptors.popleft())
        if self._values is not None:
            self._values.close()
