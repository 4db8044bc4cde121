"""`GET /v2/models/{model}/stats` and `/v2/models/stats`: Triton's statistics, from the metrics of all processes.

| Triton's                      | from                                                                       |
|-------------------------------|----------------------------------------------------------------------------|
| inference_count, success      | requests answered OK, from the cache too                                   |
| fail                          | those with any other code; times are shared out by number                  |
| execution_count               | batches                                                                    |
| queue                         | from admission to claim                                                    |
| compute_infer                 | a batch's time in the model counts for each of its requests, by the mean   |
| compute_input, compute_output | no times of their own: encoding and decoding run beside other batches      |
| batch_stats                   | batches by size, to the next bound of `bunch_batch_size`; times by the mean|

Processes add to the metrics once a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from redis.exceptions import RedisError

from tasks.errors import BackendUnavailable
from tasks.observability.metrics import Samples
from webapp.api.kserve.models import family_of, signature_at
from webapp.api.kserve.signature import Signature
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

_encode = msgspec.json.Encoder().encode
_NS = 1_000_000_000


def statistics(services: Services, call: HttpRequest, model: str = "", version: str = "") -> HttpResponse:
    """The statistics of one model, or of all."""
    return HttpResponse(200, _encode({"model_stats": model_statistics(services, model, version)}), call.request_id)


def model_statistics(services: Services, model: str = "", version: str = "") -> list[dict[str, Any]]:
    """A row for each model, or for one. Raises BackendUnavailable, ApiError."""
    signatures = [signature_at(services, model, version)] if model else list(services.signatures.values())
    try:
        samples = services.metrics.samples()
    except RedisError as error:
        raise BackendUnavailable("Redis does not answer, and has the metrics; try again shortly") from error
    return [
        {
            **of_model(each, samples, caches=services.settings.models[each.model].cache),
            "name": family_of(services, each),
        }
        for each in signatures
    ]


def of_model(signature: Signature, samples: Samples, *, caches: bool) -> dict[str, Any]:
    """The statistics of one model from the sums of all metrics."""

    def total(name: str, **labels: str) -> float:
        wanted = {"model": signature.model, **labels}.items()
        return sum(value for having, value in samples.get(name, ()) if wanted <= having.items())

    answered, succeeded = total("bunch_requests_total"), total("bunch_requests_total", code="OK")
    answering_s = _mean(total("bunch_request_seconds_sum"), total("bunch_request_seconds_count"))
    batches, computed = total("bunch_batch_size_count"), total("bunch_batch_size_sum")
    batch_s = _mean(total("bunch_compute_seconds_sum"), total("bunch_compute_seconds_count"))
    queued_s = total("bunch_queue_seconds_sum")
    return {
        "name": signature.model,
        "version": signature.version,
        # When that was is not kept.
        "last_inference": 0,
        "inference_count": int(succeeded),
        "execution_count": int(batches),
        "inference_stats": {
            "success": _duration(succeeded, succeeded * answering_s),
            "fail": _duration(answered - succeeded, (answered - succeeded) * answering_s),
            "queue": _duration(total("bunch_queue_seconds_count"), queued_s),
            "compute_input": _duration(computed, 0.0),
            "compute_infer": _duration(computed, computed * batch_s),
            "compute_output": _duration(computed, 0.0),
            "cache_hit": _duration(total("bunch_cache_hits_total"), 0.0),
            "cache_miss": _duration(computed if caches else 0.0, 0.0),
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": _duration(number, 0.0),
                "compute_infer": _duration(number, number * batch_s),
                "compute_output": _duration(number, 0.0),
            }
            for size, number in _sizes(signature.model, samples).items()
        ],
    }


def _sizes(model: str, samples: Samples) -> Mapping[int, float]:
    """Batches by the smallest bound that their size is not above; those above all bounds by twice the last one."""
    below = sorted(
        (float(labels["le"].replace("+Inf", "inf")), value)
        for labels, value in samples.get("bunch_batch_size_bucket", ())
        if labels["model"] == model
    )
    sizes: dict[int, float] = {}
    before, last = 0.0, 0.0
    for bound, number in below:
        if number > before:
            sizes[int(2 * last if math.isinf(bound) else bound)] = number - before
        before, last = number, bound
    return sizes


def _mean(total: float, count: float) -> float:
    return total / count if count else 0.0


def _duration(count: float, seconds: float) -> dict[str, int]:
    return {"count": int(count), "ns": int(seconds * _NS)}
