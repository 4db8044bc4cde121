"""Checks `input_type` of a model against its other keys, and the limits of bodies against the memory for them."""

from __future__ import annotations

from collections.abc import Iterator

from config.checks.foreign_names import PREFIX
from config.errors import Problem
from config.schema import ModelSettings, Settings, Tensor

# As in `webapp.http.limits`: a body that is still arriving counts twice, and one must not fill all of the memory.
_BODIES = 4


def input_type_problems(model: ModelSettings) -> Iterator[Problem]:
    """Every key of a model that its `input_type` rules out."""
    if not model.takes_bytes:
        return
    where = f"[models.{model.name}]"
    if model.is_remote:
        fix = "needs a class as the source: an API behind a URL gets JSON; remove it"
        yield Problem(f"{where} input_type", model.input_type, fix)
    if model.input_schema is not None:
        fix = f'is for JSON, and input_type = "{model.input_type}" is none; check the input in predict'
        yield Problem(f"{where} input_schema", "…", fix)
    if model.inputs and (fix := _wrong_inputs(model, *model.inputs)):
        yield Problem(f"{where} inputs", ", ".join(each.name for each in model.inputs), fix)


def _wrong_inputs(model: ModelSettings, first: Tensor, *more: Tensor) -> str:
    if more:
        return f'must be one: with input_type = "{model.input_type}" each row is one value'
    if first.datatype == "BYTES":
        return "must have shape = []: each element is an input" if first.shape else ""
    if model.input_type != "npy" and first.datatype != "UINT8":
        return f'must have the datatype BYTES or UINT8: with input_type = "{model.input_type}" an input is bytes'
    return ""


def body_problems(settings: Settings) -> Iterator[Problem]:
    """Limits of bodies for which there is not enough memory."""
    given, least = settings.max_arriving_bytes, _BODIES * settings.largest_body_bytes
    if given is not None and given < least:
        larger = settings.takes_bytes and settings.blob_max_bytes > settings.max_body_bytes
        largest = "BLOB_MAX_BYTES" if larger else "MAX_BODY_BYTES"
        fix = f"must be at least {least}, four times {PREFIX}{largest}: a body that is still arriving counts twice"
        yield Problem(f"{PREFIX}MAX_ARRIVING_BYTES", given, fix)
