"""Files of the pages that are served here, under a policy that lets a browser load nothing from anywhere else."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from pathlib import Path

from webapp.errors import ApiError
from webapp.request import HttpRequest, HttpResponse


def strict_headers(images: str = "'self'") -> tuple[tuple[str, str], ...]:
    """Nothing from other sites, nothing inline, in no frame; `images` are the sources of pictures."""
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src {images}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return (("Content-Security-Policy", policy), ("Referrer-Policy", "no-referrer"))


class StaticFiles:
    """Files by their names, read at the first request for each.

    They are revalidated at each load, so that a new version is seen at once.
    """

    def __init__(self, files: Mapping[str, Path], headers: tuple[tuple[str, str], ...]) -> None:
        self._files = files
        self._headers = headers
        self._read: dict[str, tuple[str, bytes, str]] = {}

    def answer(self, call: HttpRequest, name: str) -> HttpResponse:
        """The file, or 304 if the browser has it. Raises ApiError NOT_FOUND."""
        content_type, body, tag = self._read.get(name) or self._load(name)
        headers = (*self._headers, ("Cache-Control", "no-cache"), ("ETag", tag))
        if call.header("HTTP_IF_NONE_MATCH") == tag:
            return HttpResponse(304, b"", call.request_id, content_type, headers)
        return HttpResponse(200, body, call.request_id, content_type, headers)

    def _load(self, name: str) -> tuple[str, bytes, str]:
        path = self._files.get(name)
        if path is None:
            raise ApiError("NOT_FOUND", "the page has no such part")
        body = path.read_bytes()
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        found = self._read[name] = (f"{kind}; charset=utf-8" if kind.startswith("text/") else kind, body, tag)
        return found
