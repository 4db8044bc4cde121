"""A small keep-alive HTTP/1.1 client for POST, light enough that the generator is not the limit."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit


class Connection:
    """One keep-alive connection; one request at a time.

    Raises `OSError` or `asyncio.IncompleteReadError` when the connection breaks; then it cannot be used any more.
    """

    def __init__(self, base_url: str, path: str, credential: str = "") -> None:
        parts = urlsplit(base_url)
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or 80
        bearer = f"Authorization: Bearer {credential}\r\n" if credential else ""
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{bearer}Content-Type: application/json\r\n".encode()
        )
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, body: bytes) -> None:
        """Send a request without waiting for its answer."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        self._writer.write(self._head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await self._writer.drain()

    async def post(self, body: bytes) -> tuple[int, bytes]:
        """(status, body)."""
        await self.send(body)
        assert self._reader is not None
        head = await self._reader.readuntil(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            answer = await self._read_chunks(self._reader)
        else:
            answer = await self._reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return int(status_line.split(" ", 2)[1]), answer

    def has_answer(self) -> bool:
        """Return whether an answer has begun to arrive for a request that was sent with `send`."""
        # StreamReader has no public access to its buffer.
        return self._reader is not None and bool(self._reader._buffer or self._reader.at_eof())  # type: ignore[attr-defined]

    @staticmethod
    async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
        parts = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readline()
        return b"".join(parts)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
