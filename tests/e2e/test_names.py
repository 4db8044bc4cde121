"""Nothing of a request becomes part of a key's name in Redis or of a label in Prometheus, but in a bounded alphabet."""

from __future__ import annotations

import json
import re

from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from tests.e2e.client import Api

EVIL = 'ev1l"} \\ * {x} \u202e'
# What header fields can carry.
TYPED = 'ev1l"} * {x}'
_NAME = re.compile(r"[A-Za-z0-9._:@-]{1,250}")


def send_all(api: Api) -> None:
    long = "ev1l" * 5000
    for text in (EVIL, long):
        api.infer(text, text)
        api.infer({text: text}, "echo", parameters={text: text}, client_id=text)
        api.infer({"fail": text}, "moody")
        # One good outcome between the others: no breaker opens.
        api.infer(1, "moody")
        api.post("/v1/predict", {"model_id": text, "input_data": text})
        api.post("/v1/inference/bulk", {"inputs": [text], "model": text})
    headers = (
        "X_Request_Id",
        "Idempotency_Key",
        "X_Tier",
        "traceparent",
        "Prefer",
        "Authorization",
        "User_Agent",
        "X_Ev1l",
    )
    for header in headers:
        for text in (TYPED, "ev1l" * 50):
            api.post("/v1/inference", {"input": 1}, **{header: text})
    for path in ("/v1/result/", "/internal/requests/", "/ops/static/", "/ops/actions/", "/"):
        api.get(path + "ev1l%22%7D%20*%0A%7B" + "x" * 300)


def test_names_in_redis_are_short_and_plain(api: Api, store: Redis) -> None:
    send_all(api)
    api.post("/v1/inference", {"input": 1}, X_Request_Id="ev1l." + "a" * 120)
    names = [name.decode("utf-8", "backslashreplace") for name in store.scan_iter("*")]
    strange = [name for name in names if not _NAME.fullmatch(name)]
    assert not strange
    # Only where a caller names its request, in the alphabet of such names.
    assert {name.split(":")[1] for name in names if "ev1l" in name} <= {"request"}


def test_labels_in_the_metrics_are_of_our_own_making(api: Api) -> None:
    send_all(api)
    metrics = api.get("/metrics").body.decode()
    assert "ev1l" not in metrics
    samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
    models = {row["id"] for row in json.loads(api.get("/v1/models").body)["data"]}
    assert {sample.labels["model"] for sample in samples if "model" in sample.labels} <= models
