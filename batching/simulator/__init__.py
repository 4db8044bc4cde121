"""The batcher in virtual time: the worker's own policies, tiers, retries and breakers; millions of requests in seconds.

    arrivals ──▶ gate ──▶ tier queues ──claim──▶ feeder ◀── policy.decide ──▶ executor ──▶ replies ──▶ report
                          allocate, suspects     breaker                      service, faults

No rule is modelled here: the rules are the objects of `batching.policy`, called when `batching.claim.loop.ClaimLoop`
calls them. Everything else is modelled: when requests arrive (`arrivals`), how long a batch takes (`service`), which
faults occur (`faults`), and the cost of each step (`Overheads`).

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
| `scenario` | `Scenario`, `Overheads`, `Shards`, the port `Gate` |
| `queues` | the tier queues, and the claim as `lua/claim.lua` makes it |
| `shards` | the same on several shards, from which one batch is claimed |
| `feeder` | one executor: where its loop is, and the worker's own `LoopState` |
| `engine` | `simulate`: the events |
| `residency` | `simulate_residency`: several models that are loaded on demand, in step |
| `report` | `Report`: percentiles, goodput, utilisation, refusals |

The views of a policy, and the learning from looks, claims and finished batches, are those of
`batching.claim.loop_state`, which the worker's loop uses as well.

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
from batching.simulator.scenario import Gate, Overheads, Scenario, Shards
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
    "Shards",
    "Steps",
    "read_trace",
    "simulate",
]
