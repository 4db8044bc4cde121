"""Parses a request's head, up to and including the blank line, into a WSGI environ and the framing of the body.

llhttp (through httptools) splits and checks the header fields. It is fed heads only, and with its leniencies off it
refuses bare CR and LF, NUL and other control characters, folded lines, blanks before the colon, names that are not
tokens, a Transfer-Encoding that does not end in `chunked`, and a Content-Length that is repeated, is not digits, or
comes with a Transfer-Encoding. What it lets through is refused here: HTTP/0.9, 2.0 and RTSP request lines, doubled
blanks in them, fragments in the target, codings beside `chunked`, any coding in HTTP/1.0, a missing, repeated or
impossible Host.

A field whose name holds an underscore is dropped: CGI names cannot tell `X_Tier` from `X-Tier`, so a proxy that checks
one of them could be bypassed with the other.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote_to_bytes

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserInvalidMethodError,
    HttpParserInvalidURLError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from config.native import hot_path
from webapp.http import forwarded
from webapp.http.errors import (
    HeadTooLargeError,
    InvalidHeaderError,
    InvalidRequestError,
    RequestLineTooLongError,
    RequestRefusedError,
    UnknownCodingError,
    UnknownExpectationError,
)
from webapp.http.limits import ServerLimits

# '#' is left out of the target's characters: a fragment is never sent.
_REQUEST_LINE = re.compile(rb"([A-Z][A-Z-]*) ([!\"$-~]+) HTTP/1\.([01])\r\n")
_BEGINNING = re.compile(rb"[A-Z][A-Z-]{0,31}(?: |\Z)")
_ABSOLUTE = re.compile(r"https?://([^/?]*)([^?]*)(?:\?(.*))?", re.IGNORECASE)
_HOST = re.compile(r"(?:[A-Za-z0-9\-._~%!$&'()*+;=]*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{0,5}))?")
_LAST_PORT = 65535
# Codings may have parameters, which are not read: no coding with parameters is supported.
_CODING_FIELD = re.compile(rb"\nTransfer-Encoding:([^\r\n]*)", re.IGNORECASE)
_CODING = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)(?:[ \t]*;[^,]*)?")

_LENGTH = re.compile(rb"\r\nContent-Length: ([1-9][0-9]{0,8})\r\n", re.IGNORECASE)

# Fields whose meaning would change if two of them were joined into a list.
_SINGLE = frozenset({"HTTP_HOST", "HTTP_TRANSFER_ENCODING", "CONTENT_LENGTH", "CONTENT_TYPE", "HTTP_AUTHORIZATION"})

# Kept for each connection.
_TEMPLATE_BYTES = 2048
_ZERO = ord("0")

_KEYS_MAX = 512
_DROPPED = ""
# Field name as received -> environ key. Clients use few spellings; the bound is for clients that invent them.
_keys: dict[bytes, str] = {b"Content-Type": "CONTENT_TYPE", b"Content-Length": "CONTENT_LENGTH"}


def _key_for(name: bytes) -> str:
    text = name.decode("ascii").upper()
    if "_" in text:
        key = _DROPPED
    elif text in {"CONTENT-TYPE", "CONTENT-LENGTH"}:
        key = text.replace("-", "_")
    else:
        key = "HTTP_" + text.replace("-", "_")
    if len(_keys) < _KEYS_MAX:
        _keys[name] = key
    return key


class Head:
    """One parsed head. Raises `RequestRefusedError` for a request that no application should see.

    `raw` is the head and nothing else; `base` has the environ keys that the connection's requests share.
    """

    __slots__ = (
        "chunked",
        "content_length",
        "environ",
        "expects_continue",
        "http11",
        "is_head",
        "keep_alive",
    )

    def __init__(self, raw: bytes, base: dict[str, Any], limits: ServerLimits) -> None:
        line = _REQUEST_LINE.match(raw)
        if line is None:
            raise _what_is_wrong_with_line(raw)
        if line.end() - 2 > limits.request_line_bytes:
            raise RequestLineTooLongError(_line_message(limits))
        if len(raw) > limits.header_bytes:
            raise HeadTooLargeError(_head_message(limits))
        # The request line and the blank line are not fields.
        if raw.count(b"\n") - 2 > limits.header_count:
            raise HeadTooLargeError(f"More than {limits.header_count} header fields: send fewer.")
        method, target, minor = line.groups()
        self.http11 = minor == b"1"
        environ = self.environ = base.copy()
        environ["REQUEST_METHOD"] = method.decode("ascii")
        self.is_head = method == b"HEAD"
        environ["SERVER_PROTOCOL"] = "HTTP/1.1" if self.http11 else "HTTP/1.0"
        self._read_fields(raw)
        forwarded.note(environ)
        self._read_target(target.decode("ascii"))
        self._read_host()
        self._read_framing()
        self.keep_alive = self._wants_keep_alive(environ.get("HTTP_CONNECTION"))
        expect = environ.get("HTTP_EXPECT")
        self.expects_continue = False
        if expect is not None and self.http11:
            if expect.lower() != "100-continue":
                raise UnknownExpectationError(f"Expect: {expect[:64]!r} is not supported by this server.")
            self.expects_continue = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools for each field."""
        key = _keys.get(name)
        if key is None:
            key = _key_for(name)
        if key is _DROPPED:
            return
        environ = self.environ
        text = value.rstrip(b" \t").decode("latin-1")
        if key in environ:
            if key in _SINGLE:
                raise InvalidHeaderError(f"{name.decode('ascii')[:64]} was sent twice: send it once.")
            text = f"{environ[key]}{'; ' if key == 'HTTP_COOKIE' else ','}{text}"
        environ[key] = text

    def _read_fields(self, raw: bytes) -> None:
        # A new parser for each head (half a microsecond): llhttp would wait for the body before the next head, and only
        # this module decides where a body ends.
        try:
            HttpRequestParser(self).feed_data(raw)
        except HttpParserUpgrade:
            # We do not upgrade, so it is an ordinary request.
            pass
        except HttpParserCallbackError as error:
            if isinstance(error.__context__, RequestRefusedError):
                raise error.__context__ from None
            raise
        except (HttpParserInvalidMethodError, HttpParserInvalidURLError) as error:
            raise InvalidRequestError(f"The request line is not valid HTTP/1.1: {error}.") from None
        except HttpParserError as error:
            codings = _CODING_FIELD.findall(raw) if "Transfer-Encoding" in str(error) else []
            if codings and b"content-length" not in raw.lower():
                raise _not_chunked_alone(b",".join(codings).decode("latin-1")) from None
            raise InvalidHeaderError(f"The request's head is not valid HTTP/1.1: {error}.") from None

    def _read_target(self, target: str) -> None:
        environ = self.environ
        environ["RAW_URI"] = target
        if target[0] == "/":
            path, _, query = target.partition("?")
        elif absolute := _ABSOLUTE.fullmatch(target):
            authority, path, query = absolute[1], absolute[2] or "/", absolute[3] or ""
            # RFC 9112 3.2.2: the target's authority replaces the Host field.
            if not authority or not _is_host(authority):
                raise InvalidRequestError("The request target's host is not valid.")
            if "HTTP_HOST" in environ:
                environ["HTTP_HOST"] = authority
        elif target == "*" and environ["REQUEST_METHOD"] == "OPTIONS":
            path, query = "*", ""
        else:
            raise InvalidRequestError("The request target must be a path, or an http:// URL.")
        environ["PATH_INFO"] = unquote_to_bytes(path).decode("latin-1") if "%" in path else path
        environ["QUERY_STRING"] = query

    def _read_host(self) -> None:
        host = self.environ.get("HTTP_HOST")
        if host is None:
            if self.http11:
                raise InvalidHeaderError("Host is missing: HTTP/1.1 requires it.")
        elif not _is_host(host):
            raise InvalidHeaderError("Host is not a host and port.")

    def _read_framing(self) -> None:
        """Determine where the body ends. A head with two answers to that is refused."""
        environ = self.environ
        coding = environ.pop("HTTP_TRANSFER_ENCODING", None)
        length = environ.get("CONTENT_LENGTH")
        self.chunked = coding is not None
        self.content_length = 0
        if coding is not None:
            if length is not None:
                raise InvalidHeaderError("Content-Length and Transfer-Encoding are both present: send one of them.")
            if not self.http11:
                raise InvalidHeaderError("Transfer-Encoding does not exist in HTTP/1.0.")
            if coding.lower() != "chunked":
                raise _not_chunked_alone(coding)
        elif length is not None:
            if not (length.isascii() and length.isdigit() and len(length) <= 20):
                raise InvalidHeaderError("Content-Length must be one number of bytes.")
            self.content_length = int(length)

    def _wants_keep_alive(self, connection: str | None) -> bool:
        if connection is None:
            return self.http11
        options = [option.strip() for option in connection.lower().split(",")]
        return "close" not in options and (self.http11 or "keep-alive" in options)


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and int(found[1] or 0) <= _LAST_PORT


def _not_chunked_alone(coding: str) -> RequestRefusedError:
    """The refusal of a coding, by RFC 9112 6.1 and 6.3: 501 if it is unknown, 400 if the body's end cannot be found."""
    found = [_CODING.fullmatch(each.strip(" \t")) for each in coding.split(",")]
    names = [each[1].lower() for each in found if each is not None]
    if len(names) < len(found) or "chunked" in names[:-1]:
        return InvalidHeaderError("Transfer-Encoding must be exactly `chunked`.")
    return UnknownCodingError("Transfer-Encoding: only `chunked` is supported.")


class Template:
    """A parsed head as a template for the next ones of its connection, which differ in the body's length only.

    Comparing costs a tenth of parsing. A head that differs in anything else is parsed by `Head`.
    """

    __slots__ = ("_after", "_before", "_expects_continue", "_http11", "_is_head", "_keep_alive", "_longest", "environ")

    def __init__(self, head: Head, before: bytes, after: bytes, limits: ServerLimits) -> None:
        # A copy, since the head's own environ is the application's, and gets the body.
        self.environ = head.environ.copy()
        self._expects_continue, self._keep_alive = head.expects_continue, head.keep_alive
        self._http11, self._is_head = head.http11, head.is_head
        self._before, self._after = before, after
        self._longest = limits.header_bytes

    @classmethod
    def of(cls, head: Head, raw: bytes, limits: ServerLimits) -> Template | None:
        """Make a template; None for a head without a body, and for one that is too long to keep for every connection.

        The length is found after a line end, which begins a field; a second field of this name would have been refused.
        """
        found = _LENGTH.search(raw) if len(raw) <= _TEMPLATE_BYTES and not head.chunked else None
        return cls(head, raw[: found.start(1)], raw[found.end(1) :], limits) if found else None

    @property
    def goes_on(self) -> bool:
        """True if the connection goes on after such a request, and the body comes unasked."""
        return self._keep_alive and self._http11 and not self._is_head and not self._expects_continue

    def body_of(self, data: bytes) -> bytes | None:
        """The body, if `data` is one whole request with this head and nothing after it; else None."""
        return _body_of(data, self._before, self._after, self._longest)

    def read(self, raw: bytes) -> Head | None:
        """Return what `Head` would make of `raw`; None if the template does not fit."""
        start = len(self._before)
        end = len(raw) - len(self._after)
        if not (0 < end - start <= 9 and raw.startswith(self._before) and raw.endswith(self._after)):
            return None
        digits = raw[start:end]
        if not digits.isdigit() or digits[0] == _ZERO or len(raw) > self._longest:
            return None
        head = Head.__new__(Head)
        head.chunked = False
        head.content_length = int(digits)
        head.environ = environ = self.environ.copy()
        environ["CONTENT_LENGTH"] = digits.decode("ascii")
        head.expects_continue = self._expects_continue
        head.http11 = self._http11
        head.is_head = self._is_head
        head.keep_alive = self._keep_alive
        return head


def body_of(data: bytes, before: bytes, after: bytes, longest: int) -> bytes | None:
    """The body of a request whose head is `before`, the body's length, and `after`; None for any other, for one that is
    not whole, and for one with something after it.
    """
    start = len(before)
    end = data.find(b"\r", start, start + 10)
    digits = data[start:end]
    if end < 0 or not (data.startswith(before) and data.startswith(after, end) and digits.isdigit()):
        return None
    begins = end + len(after)
    if digits[0] == _ZERO or int(digits) != len(data) - begins or begins > longest:
        return None
    return data[begins:]


# The same in C, where it was compiled.
_body_of = body_of if hot_path is None else hot_path.body_of


def check_beginning(raw: bytes, limits: ServerLimits) -> None:
    """Refuse bytes that cannot become a valid head, without waiting for its end. `raw` begins without blank lines."""
    end = raw.find(b"\r\n")
    if end > limits.request_line_bytes or (end < 0 and len(raw) > limits.request_line_bytes):
        raise RequestLineTooLongError(_line_message(limits))
    if not (_REQUEST_LINE if end >= 0 else _BEGINNING).match(raw):
        raise _what_is_wrong_with_line(raw)
    if len(raw) > limits.header_bytes:
        raise HeadTooLargeError(_head_message(limits))


def _line_message(limits: ServerLimits) -> str:
    return f"The request line is longer than {limits.request_line_bytes} bytes: move data into the body."


def _head_message(limits: ServerLimits) -> str:
    return f"The header fields are longer than {limits.header_bytes} bytes: send fewer."


def _what_is_wrong_with_line(raw: bytes) -> RequestRefusedError:
    if raw[:1] == b"\x16":
        return InvalidRequestError("This port speaks plain HTTP, not TLS: use http://.")
    line = raw.split(b"\r\n", 1)[0]
    if line.startswith(b"PRI "):
        return InvalidRequestError("This port speaks HTTP/1.1, not HTTP/2.")
    if not line.endswith((b" HTTP/1.1", b" HTTP/1.0")):
        return InvalidRequestError("The request line must end in HTTP/1.1 or HTTP/1.0, and each line in CR LF.")
    return InvalidRequestError("The request line must be METHOD TARGET HTTP/1.1 with a percent-encoded target.")
