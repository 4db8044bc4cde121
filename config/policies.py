"""The policies that `policy` in bunch.toml accepts, and the class of each: one line per policy.

The table has the form of Celery's `ALIASES`: `batching.policy` imports the classes, this module does not. A class has
its own name, its defaults and their ranges (`batching.policy.base`).
"""

from __future__ import annotations

POLICIES: dict[str, str] = {
    "adaptive": "batching.policy.adaptive:Adaptive",
    "idle": "batching.policy.idle:WhenIdle",
    "fixed": "batching.policy.fixed:FixedWindow",
    "ewma": "batching.policy.published.ewma:EwmaWindow",
    "pid": "batching.policy.published.pid:PidWindow",
    "thresholds": "batching.policy.published.thresholds:Thresholds",
    "slo": "batching.policy.slo:SloAware",
    "speculative": "batching.policy.published.speculative:Speculative",
}
DEFAULT_POLICY = "adaptive"
