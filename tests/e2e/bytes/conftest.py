"""One stack for all tests here: models that take bytes, arrays and tables, and some that give them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.bytes.sent import MOST_BYTES
from tests.e2e.client import Api, connected
from tests.e2e.stack import PATIENT, Stack

MODELS = """\
default_model = "described"

[models.described]
source = "tests.byte_models:Described"
input_type = "bytes"

[models.arrays]
source = "tests.byte_models:Arrays"
input_type = "npy"

[models.pixels]
source = "tests.byte_models:Arrays"
input_type = "npy"
inputs = [{ name = "image", datatype = "FP32", shape = [2, -1] }]

[models.thumbnails]
source = "tests.byte_models:Reversed"
input_type = "bytes"

[models.roots]
source = "tests.byte_models:Roots"
input_type = "npy"
inputs = [{ name = "x", datatype = "FP64", shape = [-1] }]
outputs = [{ name = "root", datatype = "FP32", shape = [-1] }]

[models.textline]
source = "workers.models.textline:TextLine"
input_type = "bytes"
timeout_ms = 30000

[models.eyes]
source = "tests.byte_models:Eyes"
input_type = "bytes"

[models.tables]
source = "tests.byte_models:Tables"
input_type = "arrow"

[models.drawn]
source = "tests.byte_models:Drawn"

# Whatever waits is one batch.
[models.sums]
source = "tests.byte_models:Sums"
input_type = "arrow"
policy = "idle"

[models.echo]
source = "workers.models.echo:Echo"

[models.texts]
source = "workers.models.echo:Echo"
input_schema = { type = "string" }
"""


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    each = Stack(tmp_path_factory.mktemp("bytes"), MODELS)
    try:
        limits = {"admission": "off", "blob_max_bytes": MOST_BYTES, **PATIENT}
        yield each.start("--web-workers=1", "--workers=1", "--no-flower", **limits)
        each.stop()
    finally:
        each.kill()


@pytest.fixture(scope="package")
def api(stack: Stack) -> Iterator[Api]:
    with connected(stack.port) as api:
        yield api
