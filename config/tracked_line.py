"""A connection that is told when what it has read changes."""

from __future__ import annotations

import select
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from config.redis import Line
from config.redis_errors import will_repeat


class TrackedLine(Line):
    """A `Line` that is told when a key changes which it has read: `fileno` is readable then, until `heard`.

    The server remembers the keys that were read over this connection (also by a script, also missing ones), and
    announces the first change of each on a second connection: https://redis.io/docs/latest/commands/client-tracking/.
    """

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self._feed: Any = None

    @property
    def fileno(self) -> int | None:
        """None while there is no connection, or the server or an ACL forbids it."""
        return self._feed._sock.fileno() if self._feed is not None else None  # noqa: SLF001 - redis-py has no other way

    def heard(self) -> None:
        """Forget the changes that were announced so far. To be called before keys are read again."""
        if self._feed is None:
            return
        readable = select.poll()
        readable.register(self._feed._sock, select.POLLIN)  # noqa: SLF001 - as above
        try:
            while readable.poll(0):
                if not self._feed._sock.recv(65536):  # noqa: SLF001 - as above
                    raise OSError("closed")
        except OSError:
            self.close()

    def close(self) -> None:
        super().close()
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.disconnect()

    def _open(self) -> Any:
        connection = super()._open()
        try:
            self._feed = self._track(connection)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _track(self, connection: Any) -> Any:
        """The connection on which changes are announced; None where that is forbidden."""
        feed = super()._open()
        try:
            feed.send_command("CLIENT", "ID")
            number = feed.read_response()
            feed.send_command("SUBSCRIBE", "__redis__:invalidate")
            feed.read_response()
            connection.send_command("CLIENT", "TRACKING", "ON", "REDIRECT", number)
            connection.read_response()
        except BaseException as error:
            feed.disconnect()
            if isinstance(error, ResponseError) and will_repeat(error):
                return None
            raise
        return feed
