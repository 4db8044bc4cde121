"""Checks before a measurement that every caller gets the answer to its own request, 64 at a time."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

from tests.benchmarks.http_client import Connection
from tests.benchmarks.shapes import Shape

_CONNECTION_ERRORS = (OSError, asyncio.IncompleteReadError)
_BAD_ANSWERS = (ValueError, KeyError, IndexError, TypeError)


class WrongAnswerError(Exception):
    """A system did not echo; the text has the request and the answer."""


class NotReadyError(Exception):
    """A system did not give a first right answer in time, or ended."""


async def _ask(connection: Connection, shape: Shape, text: str) -> None:
    status, body = await connection.post(shape.body(text))
    try:
        answer = shape.answer(body)
    except _BAD_ANSWERS:
        answer = None
    if status != 200 or answer != text:
        raise WrongAnswerError(f"asked {text!r}, got {status} {body[:300]!r}")


def wait_until_it_answers(
    base_url: str, shape: Shape, *, dead: Callable[[], list[str]], limit_s: float, ask_limit_s: float = 10.0
) -> None:
    """Send requests until the first right answer. Raises `NotReadyError`, at once when a process has ended."""
    asyncio.run(_wait(base_url, shape, dead, limit_s, ask_limit_s))


async def _wait(base_url: str, shape: Shape, dead: Callable[[], list[str]], limit_s: float, ask_limit_s: float) -> None:
    until = time.monotonic() + limit_s
    last: Exception | None = None
    while time.monotonic() < until:
        if ended := dead():
            raise NotReadyError(f"ended while starting: {', '.join(ended)}")
        connection = Connection(base_url, shape.path, shape.credential)
        try:
            async with asyncio.timeout(ask_limit_s):
                await _ask(connection, shape, f"hello {secrets.token_hex(4)}")
        except (*_CONNECTION_ERRORS, TimeoutError, WrongAnswerError) as error:
            last = error
            await asyncio.sleep(0.2)
        else:
            return
        finally:
            connection.close()
    raise NotReadyError(f"no right answer within {limit_s:.0f} s; the last try: {last!r}")


def verify_echo(base_url: str, shape: Shape, *, callers: int = 64, each: int = 4) -> None:
    """`callers` concurrent connections, `each` distinct requests on every one.

    Raises `WrongAnswerError` on a wrong answer, and the errors of `Connection` on none.
    """
    asyncio.run(_verify(base_url, shape, callers, each))


async def _verify(base_url: str, shape: Shape, callers: int, each: int) -> None:
    run = secrets.token_hex(4)

    async def caller(number: int) -> None:
        connection = Connection(base_url, shape.path, shape.credential)
        try:
            for turn in range(each):
                await _ask(connection, shape, f"question {run} {number} {turn}")
        finally:
            connection.close()

    async with asyncio.timeout(60.0):
        await asyncio.gather(*(caller(number) for number in range(callers)))
