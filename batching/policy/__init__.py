"""Policies: when a batch leaves, and how large. Pure rules over values, without clock, Redis or logging."""

from batching.policy.adaptive import Adaptive
from batching.policy.admission import Admission, Form, Pressure, Shed
from batching.policy.base import (
    Claimed,
    Decision,
    Dispatch,
    Learning,
    Learnt,
    Look,
    NamedPolicy,
    Policy,
    QueueView,
    Reason,
    Wait,
)
from batching.policy.fair import fair_pick
from batching.policy.faults.breaker import Breaker, BreakerState
from batching.policy.faults.retry import RetryPolicy
from batching.policy.faults.suspects import suspect_sizes
from batching.policy.fixed import FixedWindow
from batching.policy.gcra import MINUTE_US, Gcra, Take
from batching.policy.idle import WhenIdle
from batching.policy.learning.learner import Learner
from batching.policy.learning.step_time import StepTime
from batching.policy.learning.throughput import Throughput
from batching.policy.learning.timing import BatchTime
from batching.policy.published.ewma import EwmaWindow
from batching.policy.published.pid import PidWindow
from batching.policy.published.speculative import Speculative
from batching.policy.published.thresholds import Thresholds
from batching.policy.scaling import Scale, ScalingRules, ScalingState, Signals, Step, decide_scale
from batching.policy.shapes import rounded
from batching.policy.sharding import Part, ShardView, Sharing
from batching.policy.slo import SloAware
from batching.policy.tiers import AGED_SHARE, DEFAULT_AGEING_S, DEFAULT_SHARES, Allocation, allocate, guaranteed
from batching.policy.tuning import TuneError, default_max_wait_s, knobs, make, name_of, retuned
from config.policies import POLICIES

__all__ = [
    "AGED_SHARE",
    "DEFAULT_AGEING_S",
    "DEFAULT_SHARES",
    "MINUTE_US",
    "POLICIES",
    "Adaptive",
    "Admission",
    "Allocation",
    "BatchTime",
    "Breaker",
    "BreakerState",
    "Claimed",
    "Decision",
    "Dispatch",
    "EwmaWindow",
    "FixedWindow",
    "Form",
    "Gcra",
    "Learner",
    "Learning",
    "Learnt",
    "Look",
    "NamedPolicy",
    "Part",
    "PidWindow",
    "Policy",
    "Pressure",
    "QueueView",
    "Reason",
    "RetryPolicy",
    "Scale",
    "ScalingRules",
    "ScalingState",
    "ShardView",
    "Sharing",
    "Shed",
    "Signals",
    "SloAware",
    "Speculative",
    "Step",
    "StepTime",
    "Take",
    "Thresholds",
    "Throughput",
    "TuneError",
    "Wait",
    "WhenIdle",
    "allocate",
    "decide_scale",
    "default_max_wait_s",
    "fair_pick",
    "guaranteed",
    "knobs",
    "make",
    "name_of",
    "retuned",
    "rounded",
    "suspect_sizes",
]
