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
has one sender and one reader. End of file means that the other side is gone.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from batching.request import Done, Work
from config.logging import encodable
from config.settings import ModelSettings

HEADER = struct.Struct("!Q")
# Nothing that fits into a machine's memory is as long; a longer length means that another program writes to our
# descriptor.
MAX_FRAME = 1 << 40
_READ_SIZE = 1 << 18


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


class Passing(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The front batch runs again, in parts: it is alive, and its time restarts."""


ToChild = Start | Work
ToParent = Ready | NotReady | Passing | Done | Fault

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


class FrameReader:
    """Splits the bytes of a socket into messages of `kind`."""

    def __init__(self, sock: socket.socket, kind: Any) -> None:
        self._sock = sock
        # A socket of gevent's waits in spite of MSG_DONTWAIT; the one below it does not.
        self._unwaiting = getattr(sock, "_sock", sock)
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._scratch = memoryview(bytearray(_READ_SIZE))
        self._buffer = bytearray()
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
            self._fill(self._sock, 0)

    def available(self) -> Iterator[Any]:
        """Yield every message that has arrived, without blocking; then `eof` says whether more can come.

        Raises:
            BrokenFrames: what arrived is no message; those before it have been yielded.
        """
        while not self.eof:
            try:
                self._fill(self._unwaiting, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            while (message := self._cut()) is not None:
                yield message

    def _fill(self, sock: socket.socket, flags: int) -> None:
        try:
            size = sock.recv_into(self._scratch, 0, flags)
        except ConnectionError:
            size = 0
        if size:
            self._buffer += self._scratch[:size]
        else:
            self.eof = True

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
        return message
