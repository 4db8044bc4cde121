"""Parts of the KServe endpoints that need no server: compression, statistics, and where the routes are found."""

from __future__ import annotations

import gzip
import zlib

import pytest

from config.schema import ModelSettings
from tasks.observability.metrics import Samples
from webapp.api.doors.envelopes import kserve_error
from webapp.api.kserve.compression import chosen, compressed, plain
from webapp.api.kserve.routes import ROUTES
from webapp.api.kserve.signature import signature_of
from webapp.api.kserve.statistics import of_model
from webapp.errors import ApiError, error_answer
from webapp.identity.base import Access
from webapp.request import HttpRequest, HttpResponse
from webapp.routing import Route, RouteTable
from webapp.services import Services

LONG = b"0123456789" * 100_000


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_compressed_body_comes_back(coding: str) -> None:
    assert plain(compressed(LONG, coding), coding, len(LONG)) == LONG
    assert plain(LONG, None, 0) == plain(LONG, " Identity ", 0) == LONG


@pytest.mark.parametrize(
    ("body", "coding", "code"),
    [
        (gzip.compress(LONG), "gzip", "PAYLOAD_TOO_LARGE"),
        (zlib.compress(LONG), "deflate", "PAYLOAD_TOO_LARGE"),
        (gzip.compress(b"a")[:-1], "gzip", "INVALID_INPUT"),
        (b"", "gzip", "INVALID_INPUT"),
        (gzip.compress(b"a") + b"b", "gzip", "INVALID_INPUT"),
        (b"plain", "gzip", "INVALID_INPUT"),
        (b"plain", "br", "UNSUPPORTED_MEDIA_TYPE"),
        (gzip.compress(b"a"), "gzip, gzip", "UNSUPPORTED_MEDIA_TYPE"),
    ],
    # Named, since gzip writes the time: processes that run the tests must give each the same name.
    ids=["a bomb", "a deflated bomb", "cut off", "empty", "with more behind", "not gzip", "unknown", "twice"],
)
def test_what_is_not_compressed_as_it_says_is_refused(body: bytes, coding: str, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        plain(body, coding, len(LONG) - 1)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (None, ""),
        ("", ""),
        ("br", ""),
        ("deflate, gzip", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("GZIP;q=0.1", "gzip"),
        ("gzip; q=0.0", ""),
    ],
)
def test_an_answer_is_compressed_as_its_caller_accepts(accepted: str | None, coding: str) -> None:
    assert chosen(accepted, 10_000) == coding
    assert not chosen(accepted, 100)


def test_statistics_are_tritons_from_our_metrics() -> None:
    of_m, of_n = {"model": "m"}, {"model": "n"}
    samples: Samples = {
        "bunch_requests_total": [
            ({**of_m, "tier": "paid", "code": "OK"}, 6),
            ({**of_m, "tier": "free", "code": "OK"}, 2),
            ({**of_m, "tier": "free", "code": "INFERENCE_FAILED"}, 2),
            ({**of_n, "tier": "free", "code": "OK"}, 99),
        ],
        "bunch_request_seconds_sum": [({**of_m, "tier": "paid"}, 4.0), ({**of_m, "tier": "free"}, 1.0)],
        "bunch_request_seconds_count": [({**of_m, "tier": "paid"}, 6), ({**of_m, "tier": "free"}, 4)],
        "bunch_batch_size_count": [(of_m, 4)],
        "bunch_batch_size_sum": [(of_m, 9)],
        "bunch_batch_size_bucket": [
            ({**of_m, "le": "1"}, 2),
            ({**of_m, "le": "2"}, 2),
            ({**of_m, "le": "4"}, 3),
            ({**of_m, "le": "256"}, 3),
            ({**of_m, "le": "+Inf"}, 4),
            ({**of_n, "le": "+Inf"}, 9),
        ],
        "bunch_compute_seconds_sum": [(of_m, 2.0)],
        "bunch_compute_seconds_count": [(of_m, 4)],
        "bunch_queue_seconds_sum": [({**of_m, "tier": "paid"}, 0.25)],
        "bunch_queue_seconds_count": [({**of_m, "tier": "paid"}, 9)],
    }
    stats = of_model(signature_of(ModelSettings(name="m", source="a:b"), embeds=False), samples, caches=True)
    assert (stats["inference_count"], stats["execution_count"]) == (8, 4)
    inference = stats["inference_stats"]
    assert inference["success"] == {"count": 8, "ns": 4_000_000_000}
    assert inference["fail"] == {"count": 2, "ns": 1_000_000_000}
    assert inference["queue"] == {"count": 9, "ns": 250_000_000}
    assert inference["compute_infer"] == {"count": 9, "ns": 4_500_000_000}
    sizes = {each["batch_size"]: each["compute_infer"] for each in stats["batch_stats"]}
    assert sizes == {
        1: {"count": 2, "ns": 1_000_000_000},
        4: {"count": 1, "ns": 500_000_000},
        512: {"count": 1, "ns": 500_000_000},
    }


def test_a_fast_path_is_there_for_each_model_and_no_other() -> None:
    table = RouteTable(ROUTES, ["m", "n"])
    handler, access = table.fast["POST", "/v2/models/n/infer"]
    assert (handler.keywords, access) == ({"model": "n"}, Access.TENANT)  # type: ignore[attr-defined]
    assert not [path for _, path in table.fast if "<" in path or "/x/" in path]


def nothing(services: Services, call: HttpRequest) -> HttpResponse:
    return HttpResponse(200, b"", call.request_id)


def test_paths_that_there_are_not_have_the_form_of_their_neighbours() -> None:
    table = RouteTable((*ROUTES, Route("GET", "/v1/a", Access.PUBLIC, nothing)))
    for path in ("/v2/models/m/infer", "/v2/models/m/nothing", "/v2/nothing", "/v2"):
        assert table.envelope_of("POST", path) is kserve_error
    for path in ("/v1/a", "/v1/b", "/v22", "/", ""):
        assert table.envelope_of("GET", path) is error_answer


def test_paths_that_look_alike_before_they_are_routed_have_one_access() -> None:
    open_to_all = Route("POST", "/v2/repository/models/<model>/look", Access.PUBLIC, nothing)
    with pytest.raises(ValueError, match="look is not for OPERATOR"):
        RouteTable((*ROUTES, open_to_all))
