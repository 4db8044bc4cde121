"""Warnings about settings that work but are risky. `check` shows them; they stop nothing."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

from config.auth import is_loopback
from config.errors import Problem
from config.schema import ModelSettings, Settings

# Estimated from the text's own characters: 32 random hexadecimal digits have about 120 bits, eight digits written twice
# 48.
_MIN_BITS = 50.0
_GUESSED_FIRST = ("password", "passwort", "secret", "changeme", "change-me", "letmein", "qwerty", "example", "admin")
_CREDENTIAL = re.compile(r"authorization|cookie|api[-_]?key|token|secret|password", re.IGNORECASE)


def cautions(settings: Settings) -> Iterator[Problem]:
    """The warnings, each with its remedy. No secret is shown."""
    for name, token in settings.service_tokens.items():
        if is_weak(token):
            yield Problem(
                "BUNCH_SERVICE_TOKEN", "…", f"the token of {name} can be guessed; make a new one: openssl rand -hex 32"
            )
    if settings.takes_tokens and settings.jwt_secret and is_weak(settings.jwt_secret):
        yield Problem(
            "BUNCH_JWT_SECRET",
            "…",
            "can be guessed, and whoever guesses it can act as anybody; make a new one: openssl rand -hex 32",
        )
    for model in settings.models.values():
        yield from _of_model(model)


def is_weak(secret: str) -> bool:
    """Return whether a secret has too little entropy, or contains a word that attackers try first."""
    counts = Counter(secret)
    bits = -sum(count * math.log2(count / len(secret)) for count in counts.values())
    return bits < _MIN_BITS or any(word in secret.lower() for word in _GUESSED_FIRST)


def _of_model(model: ModelSettings) -> Iterator[Problem]:
    address = str(model.options.get("url", model.source))
    if not address.startswith(("http://", "https://")):
        return
    url = urlsplit(address)
    headers = model.options.get("headers", {})
    named = [*headers, url.query] if isinstance(headers, dict) else [url.query]
    has_credential = bool(url.username or url.password) or any(_CREDENTIAL.search(each) for each in named)
    if has_credential and url.scheme == "http" and not is_loopback(url.hostname or ""):
        yield Problem(
            f"[models.{model.name}] source",
            f"http://{url.hostname}",
            "its credential is sent unencrypted; use https://",
        )
    if model.options.get("verify", True) is False:
        yield Problem(
            f"[models.{model.name}] options",
            "verify = false",
            "anyone on the network path can read and change everything, the credential too; remove verify",
        )
