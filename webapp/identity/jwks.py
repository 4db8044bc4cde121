"""The keys that verify tokens: a shared secret, and public keys from a file or a URL that may rotate.

A key serves the algorithm of its own type only: an RSA key is never used as a shared secret, and an `oct` key in a
JWKS, which would be a published secret, is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import jwt
import msgspec
from gevent.lock import BoundedSemaphore

from config.auth import ELLIPTIC, RSA, SHARED, AuthSettings

logger = logging.getLogger(__name__)

_TIMEOUT_S = 2.0
_MAX_BYTES = 256 * 1024
# How often tokens with an unknown key may trigger an early refresh.
_LOOK_AGAIN_S = 2.0
_OF_TYPE = {"RSA": RSA, "EC": ELLIPTIC}


class KeySet:
    """The current keys. `on_change` is called after they have changed."""

    def __init__(self, settings: AuthSettings, clock: Callable[[], float] = monotonic) -> None:
        self._source = settings.jwt_jwks
        self._every_s = settings.jwt_jwks_refresh_ms / 1000
        self._secret = settings.jwt_secret.encode()
        self._clock = clock
        self._keys: dict[tuple[str, str], Any] = {}
        self._raw = b""
        self._looked_at = float("-inf")
        self._looking = BoundedSemaphore()
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self.on_change: Callable[[], None] = lambda: None

    def start(self) -> None:
        if self._source:
            self.refresh()
            self._greenlet = gevent.spawn(self._refresh_forever)

    def stop(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill()

    def find(self, algorithm: str, key_id: str) -> Any:
        """The key for a token of `algorithm`; None when there is none. May wait for the source, rarely and briefly."""
        if algorithm == SHARED:
            return self._secret or None
        found = self._known(algorithm, key_id)
        if found is None and self._source:
            # The issuer may use a new key; another greenlet may be fetching it already.
            if self._looking.locked():
                self._looking.wait()
            elif self._clock() - self._looked_at >= _LOOK_AGAIN_S:
                self.refresh()
            found = self._known(algorithm, key_id)
        return found

    @property
    def loaded(self) -> bool:
        return bool(self._keys) or not self._source

    def refresh(self) -> None:
        """Read the source again; the old keys stay valid when it cannot be read."""
        with self._looking:
            self._looked_at = self._clock()
            try:
                raw = _fetch(self._source) if self._source.startswith(("http://", "https://")) else _read(self._source)
                if raw == self._raw:
                    return
                keys = dict(_usable(msgspec.json.decode(raw)))
            except Exception as error:  # noqa: BLE001 - a file, a network, JSON and a key's own rules: all may fail
                logger.warning("the keys of BUNCH_JWT_JWKS could not be read: %s", type(error).__name__)
                return
            self._raw, self._keys = raw, keys
        self.on_change()

    def _known(self, algorithm: str, key_id: str) -> Any:
        found = self._keys.get((algorithm, key_id))
        if found is None and not key_id:
            # A token need not name its key if there is only one.
            candidates = [key for (each, _), key in self._keys.items() if each == algorithm]
            found = candidates[0] if len(candidates) == 1 else None
        return found

    def _refresh_forever(self) -> None:
        while True:
            gevent.sleep(self._every_s)
            self.refresh()


def _usable(document: Mapping[str, Any]) -> Any:
    for each in document["keys"]:
        algorithm = _OF_TYPE.get(each.get("kty"))
        if algorithm is None or each.get("use", "sig") != "sig" or each.get("alg", algorithm) != algorithm:
            continue
        try:
            yield (algorithm, str(each.get("kid", ""))), jwt.PyJWK(each, algorithm).key
        except jwt.PyJWTError as error:
            logger.warning("ignoring a key of BUNCH_JWT_JWKS: %s", error)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()[:_MAX_BYTES]


def _fetch(url: str) -> bytes:
    import httpx

    with gevent.Timeout(_TIMEOUT_S, TimeoutError("no answer in time")), httpx.Client(timeout=_TIMEOUT_S) as client:
        answer = client.get(url).raise_for_status()
        return answer.content[:_MAX_BYTES]
