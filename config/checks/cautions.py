"""Warnings about settings that work but are risky. `check` shows them; they stop nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from config.errors import Problem
from config.model_files.schemes import scheme_of
from config.schema import ModelSettings, Settings

# Estimated from the text's own characters: 32 random hexadecimal digits have about 120 bits, eight digits written twice
# 48.
_MIN_BITS = 50.0
_GUESSED_FIRST = ("password", "passwort", "secret", "changeme", "change-me", "letmein", "qwerty", "example", "admin")


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
    if settings.callback_secret and is_weak(settings.callback_secret):
        yield Problem(
            "BUNCH_CALLBACK_SECRET",
            "…",
            "can be guessed, and whoever guesses it can push results of his own; make a new one: openssl rand -hex 32",
        )
    if settings.mode == "collocated":
        yield from _of_collocated(settings)
    for model in settings.models.values():
        yield from _of_model(model)


def _of_collocated(settings: Settings) -> Iterator[Problem]:
    given_up = (
        "requests and results are in the memory of one process, and lost when it dies; plain Celery clients are "
        "refused; set durable to keep requests in Redis"
    )
    yield Problem("BUNCH_MODE", settings.mode, given_up)
    if settings.web_workers not in {1, Settings().web_workers}:
        yield Problem("BUNCH_WEB_WORKERS", settings.web_workers, "has no effect: collocated mode has one web process")


def is_weak(secret: str) -> bool:
    """Return whether a secret has too little entropy, or contains a word that attackers try first."""
    counts = Counter(secret)
    bits = -sum(count * math.log2(count / len(secret)) for count in counts.values())
    return bits < _MIN_BITS or any(word in secret.lower() for word in _GUESSED_FIRST)


def _of_model(model: ModelSettings) -> Iterator[Problem]:
    # A class may have its address among its options.
    for address in [str(model.options["url"])] if "url" in model.options else model.replicas:
        yield from scheme_of(address).cautions(f"[models.{model.name}]", address, model.options)
