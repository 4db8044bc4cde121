"""The settings of a model's shapes, checked against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from config.errors import Problem
from config.schema import ModelSettings


def shape_problems(model: ModelSettings) -> Iterator[Problem]:
    """Every contradiction among `batch_sizes`, `length_buckets`, `warmup_input` and what they depend on."""
    where = f"[models.{model.name}]"
    for key in ("batch_sizes", "length_buckets"):
        given: Sequence[int] = getattr(model, key)
        if list(given) != sorted(set(given)):
            yield Problem(f"{where} {key}", list(given), "must be ascending, each once")
        elif given and model.is_remote:
            yield Problem(f"{where} {key}", list(given), "needs a class or a function as the source; remove it")
        elif given and model.max_batch_cost:
            yield Problem(
                f"{where} {key}", list(given), "cannot be used with max_batch_cost, which makes calls of other shapes"
            )
    if model.batch_sizes and model.max_batch_size > max(model.batch_sizes):
        fix = f"must be at most {max(model.batch_sizes)}, the largest of batch_sizes; remove it, or add a larger size"
        yield Problem(f"{where} max_batch_size", model.max_batch_size, fix)
    if model.warmup_input is not None and not model.batch_sizes:
        yield Problem(f"{where} warmup_input", "…", "needs batch_sizes, the sizes to warm up; set them as well")
