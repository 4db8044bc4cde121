"""When a batch leaves, and how large: pure rules over values. No clock, no Redis, no logging in here."""

from batching.policy.adaptive import Adaptive
from batching.policy.admission import Admission, Form, Pressure, Shed
from batching.policy.base import Decision, Dispatch, Look, Policy, QueueView, Reason, Wait
from batching.policy.breaker import Breaker, BreakerState
from batching.policy.fair import fair_pick
from batching.policy.fixed import FixedWindow
from batching.policy.gcra import MINUTE_US, Gcra, Take
from batching.policy.idle import WhenIdle
from batching.policy.pace import Pace
from batching.policy.retry import RetryPolicy
from batching.policy.scaling import Scale, ScalingRules, ScalingState, Signals, Step, decide_scale
from batching.policy.suspects import suspect_sizes
from batching.policy.tiers import AGED_SHARE, DEFAULT_AGEING_S, DEFAULT_SHARES, Allocation, allocate, guaranteed

__all__ = [
    "AGED_SHARE",
    "DEFAULT_AGEING_S",
    "DEFAULT_SHARES",
    "MINUTE_US",
    "Adaptive",
    "Admission",
    "Allocation",
    "Breaker",
    "BreakerState",
    "Decision",
    "Dispatch",
    "FixedWindow",
    "Form",
    "Gcra",
    "Look",
    "Pace",
    "Policy",
    "Pressure",
    "QueueView",
    "Reason",
    "RetryPolicy",
    "Scale",
    "ScalingRules",
    "ScalingState",
    "Shed",
    "Signals",
    "Step",
    "Take",
    "Wait",
    "WhenIdle",
    "allocate",
    "decide_scale",
    "fair_pick",
    "guaranteed",
    "suspect_sizes",
]
