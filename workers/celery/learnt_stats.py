"""The learned figures of a claim loop, for `inspect stats`."""

from __future__ import annotations

from typing import Any

from batching.policy import Learner, StepTime, name_of


def shown(learner: Learner) -> dict[str, Any]:
    """The figures in milliseconds: a batch of n takes `batch_ms` + `item_ms`·n, ± `spread_ms`.

    `batches` is the number of batches behind them, older ones counting less; `size` and `size_spread` describe their
    sizes. `steps_ms` has the time of each of the `batch_sizes` that has been run, padding included.
    """
    learnt = learner.learnt
    time = learnt.time
    line, steps = (time.line, zip(time.sizes, time.steps, strict=True)) if isinstance(time, StepTime) else (time, ())
    steps_ms = {str(size): round(step.predict(size) * 1000, 3) for size, step in steps if step.known}
    return {
        "policy": name_of(learner.policy),
        "rate": round(learnt.rate, 1),
        "utilisation": round(learnt.utilisation, 3),
        "returning": round(learnt.closed_loop_share, 2),
        "batch_ms": round(line.a_s * 1000, 3),
        "item_ms": round(line.b_s * 1000, 4),
        "spread_ms": round(line.spread_s * 1000, 3),
        "batches": round(line.weight, 1),
        "size": round(line.mean_n, 1),
        "size_spread": round((line.var_n / line.weight) ** 0.5 if line.known else 0.0, 2),
        **({"steps_ms": steps_ms} if steps_ms else {}),
    }
