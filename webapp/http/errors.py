"""Refusals of the server itself, before any application sees the request, and their responses.

RequestRefusedError                 answered in the contract's error shape, then the connection is closed
├── InvalidRequestError        400  INVALID_INPUT      not HTTP/1.x, or the end of the request is in doubt
├── InvalidHeaderError         400  INVALID_HEADER     a field that is not well formed, or contradicts another
├── RequestTimeoutError        408  INVALID_INPUT      began to arrive and did not finish in time
├── BodyTooLargeError          413  PAYLOAD_TOO_LARGE
├── RequestLineTooLongError    414  INVALID_INPUT
├── UnknownExpectationError    417  INVALID_HEADER
├── HeadTooLargeError          431  INVALID_HEADER     too many header fields, or too many bytes of them
├── UnknownCodingError         501  INVALID_HEADER     a transfer coding that is not `chunked`
└── CrowdedOutError            503  SERVICE_OVERLOADED was still arriving when its memory or place was needed
ClientGoneError                     the client has disconnected or stopped reading; there is nobody to answer
WaitExpiredError                    the reaper ended a wait on the socket; never leaves `connection`

Every refusal closes the connection. If the end of a request is in doubt, the bytes that follow may be the rest of it. A
server that reads them as a request can be made to answer one client with another's (request smuggling).
"""

from __future__ import annotations

import json
import re
import uuid
from typing import ClassVar

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
# Of a head that could not be parsed: searched as text, and only as a whole line.
_RAW_REQUEST_ID = re.compile(rb"\r\nX-Request-Id:[ \t]*([A-Za-z0-9._-]{1,128})[ \t]*\r\n", re.IGNORECASE)


class RequestRefusedError(Exception):
    """Base class: `RequestRefusedError(message)`; the message is for the author of the client."""

    status: ClassVar[str]
    code: ClassVar[str]
    # Whole seconds; 0: retrying the same request does not help.
    retry_after_s: ClassVar[int] = 0

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequestError(RequestRefusedError):
    status = "400 Bad Request"
    code = "INVALID_INPUT"


class InvalidHeaderError(RequestRefusedError):
    status = "400 Bad Request"
    code = "INVALID_HEADER"


class RequestTimeoutError(RequestRefusedError):
    status = "408 Request Timeout"
    code = "INVALID_INPUT"


class BodyTooLargeError(RequestRefusedError):
    status = "413 Content Too Large"
    code = "PAYLOAD_TOO_LARGE"


class RequestLineTooLongError(RequestRefusedError):
    status = "414 URI Too Long"
    code = "INVALID_INPUT"


class UnknownExpectationError(RequestRefusedError):
    status = "417 Expectation Failed"
    code = "INVALID_HEADER"


class HeadTooLargeError(RequestRefusedError):
    status = "431 Request Header Fields Too Large"
    code = "INVALID_HEADER"


class UnknownCodingError(RequestRefusedError):
    status = "501 Not Implemented"
    code = "INVALID_HEADER"


class CrowdedOutError(RequestRefusedError):
    status = "503 Service Unavailable"
    code = "SERVICE_OVERLOADED"
    retry_after_s = 1


class ClientGoneError(Exception):
    """The connection broke while sending."""


class WaitExpiredError(Exception):
    """Thrown into a connection's greenlet when its deadline passes while it waits for its socket."""


def request_id_from(header: str | None) -> str:
    """The caller's id if it is valid, else a new one."""
    if header is not None and _REQUEST_ID.fullmatch(header):
        return header
    return str(uuid.uuid4())


def request_id_from_raw(head: bytes) -> str:
    """The request id from the bytes of a head that was refused; a new one if it has none."""
    found = _RAW_REQUEST_ID.search(head)
    return found[1].decode("ascii") if found else str(uuid.uuid4())


def error_body(code: str, message: str, request_id: str, retry_after_s: int = 0) -> bytes:
    """The body of an error response, in the contract's form."""
    later = {"retry_after_ms": retry_after_s * 1000} if retry_after_s else {}
    return json.dumps({"error": code, "message": message, "request_id": request_id, **later}).encode()
