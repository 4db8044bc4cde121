"""Checks of `check` for models behind URLs: each `https` address is called once, without credentials or inputs."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

from config.errors import Problem
from config.model_files.adapters import adapter_of
from config.model_files.tls_files import BadTlsFile, client_context, what_is_wrong
from config.schema import ModelSettings, Settings
from config.secrets.masking import masked_url

_PATIENCE_S = 3.0


def api_findings(settings: Settings) -> tuple[list[Problem], list[Problem]]:
    """The addresses with which TLS does not work, and those that do not answer: an API that is down now may be up for
    the first batch.
    """
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for model in settings.models.values():
        if model.is_remote:
            for is_tls, problem in _of_model(model):
                (problems if is_tls else warnings).append(problem)
    return problems, warnings


def _of_model(model: ModelSettings) -> Iterator[tuple[bool, Problem]]:
    import httpx

    try:
        verify = bool(model.options.get("verify", True))
        context = client_context(model.ca_file, model.cert_file, model.key_file, verify=verify)
    except BadTlsFile:
        # Found by loading the model.
        return
    with httpx.Client(verify=context, timeout=_PATIENCE_S) as client:
        for source in [str(model.options["url"])] if "url" in model.options else model.replicas:
            where = f"[models.{model.name}] {'source' if source == model.source else 'urls'}"
            parts = urlsplit(adapter_of(source)[1])
            if parts.scheme != "https":
                continue
            try:
                client.head(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="")))
            except httpx.HTTPError as error:
                told = what_is_wrong(error)
                fix = told or f"does not answer here: {type(error).__name__}"
                yield told is not None, Problem(where, masked_url(source), fix)
