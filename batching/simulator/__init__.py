"""The batcher in virtual time: the worker's own policies, tiers, retries and breakers, millions of requests in seconds.

    arrivals ──▶ gate ──▶ tier queues ──claim──▶ feeder ◀── policy.decide ──▶ executor ──▶ replies ──▶ report
                          allocate, suspects     breaker                      service, faults

Nothing here is a model of a rule: the rules are the objects of `batching.policy`, asked at the moments at which
`batching.claim.loop.ClaimLoop` asks them. What is modelled is everything else: when requests come (`arrivals`), how
long a batch takes (`service`), what breaks (`faults`), and what each step of the way costs (`Overheads`).

    report = simulate(
        Scenario(
            arrivals=Poisson(800.0),
            service=Affine(batch_s=0.020, item_s=0.0005),
            policy=lambda: Adaptive(max_batch_size=64, max_wait_s=0.005),   # one object per executor, as in a worker
            executors=2,
            duration_s=60.0,
            tiers=(0.05, 0.25, 0.70),          # enterprise, paid, free
            slo_s=0.2,
        ),
        seed=1,
    )
    report.p99_ms, report.goodput_rps, report.refused

| module | holds |
|---|---|
| `arrivals` | `Poisson`, `Steps`, `Bursts`, `Diurnal`, `OnOff`, `Recorded` (`read_trace`), `Callers` (a closed loop) |
| `service` | `Affine` (fixed: `item_s` 0), `Measured`; each with `jitter` |
| `faults` | `Faults`: crashes, transient errors, an outage of the model, stragglers |
| `admission` | `AdmissionGate`: the frontend's rule behind the port |
| `scenario` | `Scenario`, `Overheads`, the port `Gate` |
| `queues` | the tier queues, and the claim as `lua/claim.lua` makes it |
| `feeder` | one executor: where its loop is, and the worker's own `LoopState` |
| `engine` | `simulate`: the events |
| `report` | `Report`: percentiles, goodput, utilisation, refusals |

What a policy is shown, and what is learnt of a look, a claim and a batch's end, is `batching.claim.loop_state`'s, which
the worker's loop has as well.

The same scenario and seed give the same report, to the last digit.
"""

from batching.simulator.admission import AdmissionGate
from batching.simulator.arrivals import (
    Arrivals,
    Bursts,
    Callers,
    Diurnal,
    OnOff,
    Poisson,
    Recorded,
    Steps,
    read_trace,
)
from batching.simulator.engine import simulate
from batching.simulator.faults import Faults
from batching.simulator.report import Report
from batching.simulator.scenario import Gate, Overheads, Scenario
from batching.simulator.service import Affine, Measured, Service

__all__ = [
    "AdmissionGate",
    "Affine",
    "Arrivals",
    "Bursts",
    "Callers",
    "Diurnal",
    "Faults",
    "Gate",
    "Measured",
    "OnOff",
    "Overheads",
    "Poisson",
    "Recorded",
    "Report",
    "Scenario",
    "Service",
    "Steps",
    "read_trace",
    "simulate",
]
