"""A plain Celery app without Bunch, with a task of the same name."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

app = Celery("plain", broker=os.environ["PLAIN_URL"], backend=os.environ["PLAIN_URL"], set_as_current=False)
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)


@app.task(name="bunch.infer")
def infer(value: Any, parameters: Any = None) -> Any:
    if value == "break":
        raise ValueError("broken")
    return {"plain": value, "parameters": parameters}
