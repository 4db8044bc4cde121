"""The names that `policy` in bunch.toml takes, and where the class of each is: a line for each policy.

In the form of Celery's `ALIASES`: the classes are imported by `batching.policy`, and not from here. A class has its own
name, its defaults and their ranges in itself (`batching.policy.base`).
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
