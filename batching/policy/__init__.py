"""When a batch leaves, and how large: pure rules over values. No clock, no Redis, no logging in here."""

from batching.policy.adaptive import Adaptive
from batching.policy.base import Decision, Dispatch, Look, Policy, QueueView, Reason, Wait
from batching.policy.breaker import Breaker, BreakerState
from batching.policy.fixed import FixedWindow
from batching.policy.idle import WhenIdle
from batching.policy.retry import RetryPolicy
from batching.policy.scaling import Scale, ScalingRules, ScalingState, Signals, Step, decide_scale
from batching.policy.suspects import suspect_sizes
from batching.policy.tiers import DEFAULT_SHARES, Allocation, allocate

__all__ = [
    "DEFAULT_SHARES",
    "Adaptive",
    "Allocation",
    "Breaker",
    "BreakerState",
    "Decision",
    "Dispatch",
    "FixedWindow",
    "Look",
    "Policy",
    "QueueView",
    "Reason",
    "RetryPolicy",
    "Scale",
    "ScalingRules",
    "ScalingState",
    "Signals",
    "Step",
    "Wait",
    "WhenIdle",
    "allocate",
    "decide_scale",
    "suspect_sizes",
]
