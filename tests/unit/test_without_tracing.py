"""Without an endpoint nothing that makes or exports a span is even loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Redis' own client loads OpenTelemetry's metrics wherever it is installed; that is not ours to spare.
LOOK = (
    "import sys; print([name for name in ('tasks.observability.otel', "
    "'webapp.observability.tracing', 'tasks.observers.tracing', 'opentelemetry.exporter',"
    " 'opentelemetry.sdk.trace.export') if name in sys.modules])"
)


def test_nothing_that_traces_is_loaded() -> None:
    code = (
        "from webapp.app import create_app, make_services; from workers.app import make_worker_app;"
        "from config.settings import load_settings; settings = load_settings({'BUNCH_REDIS_URL': 'redis://127.0.0.1:1'});"
        "create_app(make_services(settings)); make_worker_app(settings);" + LOOK
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.strip() == "[]"
