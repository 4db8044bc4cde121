"""Inputs of embedding and ranking requests, as the doors' clients send them.

"text" · ["text", …] · [1, 2] · [[1, 2], …]  ──texts──▶ one input per request
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from config.settings import Settings
from webapp.errors import ApiError
from webapp.model_tasks import Served

Token = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Tokens = Annotated[list[Token], msgspec.Meta(min_length=1)]
Dimensions = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
NotEmpty = Annotated[str, msgspec.Meta(min_length=1)]
Text = NotEmpty | Annotated[list[NotEmpty | Token | Tokens], msgspec.Meta(min_length=1)]
"""An input of OpenAI's and TEI's clients: one text or token array, or a list of them."""

NO_TOKENS = (
    "{model} takes texts, no token arrays: send strings. LangChain: check_embedding_ctx_length=False; or declare "
    "accepts_tokens = True in the class of a model that takes the tokens of its own tokenizer"
)


def texts(value: Text, name: str, model: Served) -> list[str] | list[list[int]]:
    """The inputs of a request, in order. Raises ApiError INVALID_INPUT, which names the field."""
    if isinstance(value, str):
        return [value]
    found: Any = value
    if all(isinstance(each, str) for each in found):
        return list(found)
    tokens = [found] if all(isinstance(each, int) for each in found) else found
    if not all(isinstance(each, list) for each in tokens):
        raise ApiError(
            "INVALID_INPUT", f"{name}: a list holds either texts, or token arrays, or the tokens of one text"
        )
    if not model.accepts_tokens:
        raise ApiError("INVALID_INPUT", f"{name}: {NO_TOKENS.format(model=model.name)}")
    return list(tokens)


def with_dimensions(parameters: dict[str, Any] | None, dimensions: int | None, model: Served) -> dict[str, Any] | None:
    """The parameters with the number of dimensions that the caller wants. Raises ApiError INVALID_INPUT."""
    if dimensions is None:
        return parameters
    if not model.accepts_dimensions:
        raise ApiError(
            "INVALID_INPUT",
            f"dimensions: {model.name} has one size; leave it out, or declare accepts_dimensions = True in its class",
        )
    return {**(parameters or {}), "dimensions": dimensions}


def require_few(count: int, settings: Settings, name: str, code: str = "INVALID_INPUT") -> None:
    """Raise an ApiError with `code` for more inputs than one call may have."""
    if count > settings.max_bulk_items:
        most = settings.max_bulk_items
        raise ApiError(code, f"{name}: {count} in one call; at most {most} (max_bulk_items), send several calls")
