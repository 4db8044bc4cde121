"""Large values to and from Redis: between the socket and the caller's buffer, with no copy in between.

    buffer ──sendall──▶ SET key … PXAT t          one command, whose words stand before and behind the buffer
    buffer ◀─recv_into── GETRANGE key from to     a few megabytes at a time, so that Redis serves others in between

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

# Redis does nothing else while it copies a part into its reply.
PART_BYTES = 4 * 1024 * 1024
_HEAD_BYTES = 512


class BytesLine(Line):
    """A `Line` for values of megabytes. Both calls may be repeated."""

    def put(self, key: str, value: Buffer, until_ms: int) -> None:
        """Set a string that expires at `until_ms` of Redis' clock. Raises RedisError."""
        self._call(self._put, key, memoryview(value).cast("B"), until_ms)

    def get_into(self, key: str, buffer: memoryview) -> int:
        """Read a string of at most the buffer's size into it. Returns its size, 0 if there is none. Raises
        RedisError.
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
        at = 0
        while at < buffer.nbytes:
            part = buffer[at : at + PART_BYTES]
            command: tuple[Any, ...] = ("GETRANGE", key, at, at + part.nbytes - 1)
            connection.send_packed_command((pack_command(command),), check_health=False)
            with _redis_errors():
                got = _read_bulk(connection, part)
            at += got
            if got < part.nbytes:
                break
        return at


def _read_bulk(connection: Any, into: memoryview) -> int:
    """Read one bulk string of at most the buffer's size from the socket. Raises OSError, and Redis' own errors."""
    sock = connection._sock  # noqa: SLF001 - as above
    head = b""
    while b"\r\n" not in head:
        head += _some(sock.recv(_HEAD_BYTES))
    line, _, first = head.partition(b"\r\n")
    if not line.startswith(b"$"):
        text = line[1:].decode(errors="replace")
        raise connection._parser.parse_error(text) if line.startswith(b"-") else ResponseError(text)  # noqa: SLF001
    size = int(line[1:])
    if size > into.nbytes:
        raise OSError(f"a value of {size} bytes where at most {into.nbytes} were asked for")
    at = min(len(first), size)
    into[:at] = first[:at]
    while at < size:
        at += _some(sock.recv_into(into[at:size]))
    left = size + len(b"\r\n") - max(len(first), size)
    while left > 0:
        left -= len(_some(sock.recv(left)))
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
