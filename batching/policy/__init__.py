"""When a batch leaves, and how large: pure rules over values. No clock, no Redis, no logging in here."""

from batching.policy.adaptive import Adaptive
from batching.policy.base import Decision, Dispatch, Look, Policy, QueueView, Reason, Wait
from batching.policy.fixed import FixedWindow
from batching.policy.idle import WhenIdle
from batching.policy.tiers import DEFAULT_SHARES, Allocation, allocate

__all__ = [
    "DEFAULT_SHARES",
    "Adaptive",
    "Allocation",
    "Decision",
    "Dispatch",
    "FixedWindow",
    "Look",
    "Policy",
    "QueueView",
    "Reason",
    "Wait",
    "WhenIdle",
    "allocate",
]
