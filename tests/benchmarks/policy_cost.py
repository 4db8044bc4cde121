"""`python -m tests.benchmarks.policy_cost`: the worker's cost of a policy, for all decisions and the learning of one
batch.

A batch is one look, three decisions (with empty hands, with the depth, ahead of the executor), a claim and its end, as
`batching.claim.loop.ClaimLoop` makes them.
"""

from __future__ import annotations

import math
import time

from batching.policy import POLICIES, Learner, NamedPolicy, QueueView, make

_BATCHES = 5_000


def cost_us(policy: NamedPolicy, size: int) -> float:
    """Microseconds for a batch of `size`, the best of five runs."""
    best = math.inf
    for _ in range(5):
        learner = Learner(policy)
        now = 0.0
        began = time.perf_counter()
        for _ in range(_BATCHES):
            for depth, in_hand in ((None, 0), (size, 0), (None, 1)):
                view = QueueView(
                    depth,
                    oldest_at=now - 0.01,
                    in_hand=in_hand,
                    free_at=now,
                    batch_s=0.05,
                    recent=size,
                    due_at=now + 1.0,
                    learnt=learner.learnt,
                )
                policy.decide(view, now)
            learner.looked(size, now)
            learner.claimed(size, 0, 0.01, 0.005, now)
            now += 0.05
            learner.finished(size, 0.05, now)
        best = min(best, (time.perf_counter() - began) / _BATCHES)
    return best * 1e6


def main() -> None:
    """Print a row for each policy."""
    print("policy         µs a batch of 1   of 64   µs a request, batches of 64")
    for name in POLICIES:
        policy = make(name, 64, None, {})
        one, full = cost_us(policy, 1), cost_us(policy, 64)
        print(f"{name:14} {one:15.1f} {full:7.1f} {full / 64:30.2f}")


if __name__ == "__main__":
    main()
