"""The keys that frontends sign their messages with, and workers verify them with (`tasks.protocol.seal`).

BUNCH_MESSAGE_SECRET   the same for all hosts of a fleet
else, with auth on     a random one in the state folder, for one host
else                   nothing is signed: there are no owners whom a signature could protect
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from config.errors import Problem, SettingsError
from config.schema import Settings
from config.secrets.private_files import kept_secret

FILE_NAME = "message.key"
_BYTES = 32
_SHORTEST = 16


def message_keys(settings: Settings) -> tuple[bytes, ...]:
    """The key to sign with, then the previous one, which is still accepted; empty where nothing is signed.

    Raises:
        SettingsError: a secret is too short, or the key file in the state folder cannot be created or read.
    """
    secrets = (settings.message_secret, settings.message_secret_previous)
    if (secrets[1] and not secrets[0]) or any(0 < len(secret) < _SHORTEST for secret in secrets):
        why = (
            f"must be at least {_SHORTEST} characters (`openssl rand -hex 32` makes one), and set whenever _PREVIOUS is"
        )
        raise SettingsError((Problem("BUNCH_MESSAGE_SECRET", "…", why),))
    keys = tuple(_derived(secret.encode()) for secret in secrets if secret)
    if keys or settings.auth == "off":
        return keys
    path = Path(settings.state_dir) / FILE_NAME
    try:
        return (_derived(kept_secret(path)),)
    except OSError as error:
        why = f"cannot be created or read ({error.strerror}); set BUNCH_MESSAGE_SECRET, the same for web and worker"
        raise SettingsError((Problem("BUNCH_STATE_DIR", str(path), why),)) from error


def fingerprint(keys: tuple[bytes, ...]) -> str:
    """A hash that tells two keys apart and reveals nothing else about them; empty where nothing is signed."""
    return hashlib.blake2b(keys[0], digest_size=4, person=b"bunch-print").hexdigest() if keys else ""


def _derived(secret: bytes) -> bytes:
    return hashlib.blake2b(secret, digest_size=_BYTES, person=b"bunch-message").digest()
