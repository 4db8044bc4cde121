"""Large values to and from Redis: between the socket and the caller's buffer, with no copy in between.

    buffer ──sendall──▶ SET key … PXAT t          one command, whose words stand before and behind the buffer
    buffer ◀─recv_into── GET key                  which Redis sends as it lies there, without a copy of its own
                         GETRANGE key from to     above 8 MiB, in parts, since older versions copy what they send

redis-py copies a value on its way out, and hiredis copies it twice on its way in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hiredis import pack_command
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from config.redis import Line

Buffer = bytes | bytearray | memoryview

# Redis does nothing else while it copies a value, or a part, into its reply.
WHOLE_BYTES = 8 * 1024 * 1024
PART_BYTES = 4 * 1024 * 1024
_HEAD_BYTES = 512
_WASTE_BYTES = 64 * 1024


class BytesLine(Line):
    """A `Line` for values of megabytes. Both calls may be repeated."""

    def put(self, key: str, value: Buffer, until_ms: int) -> None:
        """Set a string that expires at `until_ms` of Redis' clock. Raises RedisError."""
        self._call(self._put, key, memoryview(value).cast("B"), until_ms)

    def get_into(self, key: str, buffer: memoryview) -> int:
        """Read a string into a buffer of its size. Returns the number of its bytes: 0 if there is none, and another one
        than the buffer's if it is not the one that was expected. Raises RedisError.
        """
        size: int = self._call(self._get, key, buffer)
        return size

    def _put(self, key: str, value: memoryview, until_ms: int) -> None:
        connection = self._opened()
        name, until = key.encode(), b"%d" % until_ms
        before = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, value.nbytes)
        behind = b"\r\n$4\r\nPXAT\r\n$%d\r\n%b\r\n" % (len(until), until)
        with _redis_errors():
            for part in (before, value, behind):
                connection._sock.sendall(part)  # noqa: SLF001 - redis-py has no other way without a copy
        connection.read_response()

    def _get(self, key: str, buffer: memoryview) -> int:
        connection = self._opened()
        if buffer.nbytes <= WHOLE_BYTES:
            return _asked(connection, ("GET", key), buffer)
        at = 0
        while at < buffer.nbytes:
            part = buffer[at : at + PART_BYTES]
            got = _asked(connection, ("GETRANGE", key, at, at + part.nbytes - 1), part)
            at += got
            if got < part.nbytes:
                break
        return at


def _asked(connection: Any, command: tuple[Any, ...], into: memoryview) -> int:
    """Send a command, and read its reply into a buffer. Returns its size. Raises RedisError."""
    connection.send_packed_command((pack_command(command),), check_health=False)
    with _redis_errors():
        return _read_bulk(connection, into)


def _read_bulk(connection: Any, into: memoryview) -> int:
    """Read one bulk string from the socket. Returns its size; what is beyond the buffer's is thrown away. Raises
    OSError, and Redis' own errors.
    """
    sock = connection._sock  # noqa: SLF001 - as above
    head = b""
    while b"\r\n" not in head:
        head += _some(sock.recv(_HEAD_BYTES))
    line, _, first = head.partition(b"\r\n")
    if not line.startswith(b"$"):
        text = line[1:].decode(errors="replace")
        raise connection._parser.parse_error(text) if line.startswith(b"-") else ResponseError(text)  # noqa: SLF001
    size = int(line[1:])
    if size < 0:
        return 0
    wanted = min(size, into.nbytes)
    at = min(len(first), wanted)
    into[:at] = first[:at]
    while at < wanted:
        at += _some(sock.recv_into(into[at:wanted]))
    left = size + len(b"\r\n") - max(len(first), wanted)
    while left > 0:
        left -= len(_some(sock.recv(min(left, _WASTE_BYTES))))
    return size


def _some(got: Any) -> Any:
    if not got:
        raise OSError("the server closed the connection")
    return got


@contextmanager
def _redis_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise RedisTimeoutError(str(error)) from error
    except OSError as error:
        raise RedisConnectionError(str(error)) from error
