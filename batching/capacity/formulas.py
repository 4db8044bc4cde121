"""The arithmetic of the designs, and of queues.

rate of a GPU   = batch / (model time + overhead)
GPUs            = rate / rate of a GPU / 0.7
connections     = rate × latency (Little, 1961)
bandwidth       = rate × size, each way
Redis memory    = rate × size × retention

What it leaves out is that requests and batches come unevenly. Near saturation they wait for each other: by Erlang's C
formula for whether a batch waits at all, and Allen and Cunneen's for how long, which is Kingman's (1961) for several
servers. That tail is exponential (Kingman's heavy-traffic limit), so a percentile can be read from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HEADROOM = 0.7


def rate_of_one(max_batch_size: int, batch_s: float, overhead_s: float = 0.0) -> float:
    """Requests a second of one GPU that always has a full batch; `batch_s` is the time of a full one."""
    return max_batch_size / (batch_s + overhead_s)


def gpus_for(rps: float, rate: float, headroom: float = HEADROOM) -> int:
    """The designs' formula; `headroom` 1 gives what they call raw."""
    # 1e-9: 10,000 / 1,000 / 0.7 must not become one more for the last bit of a float.
    return max(1, math.ceil(rps / rate / headroom - 1e-9))


def erlang_c(servers: int, load: float) -> float:
    """The part of customers that wait, of `load` Erlang offered to so many servers (Erlang, 1917); 1 at saturation."""
    if load >= servers:
        return 1.0
    if load <= 0:
        return 0.0
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


@dataclass(frozen=True, slots=True)
class Queueing:
    """What queueing theory says of full batches at `servers` GPUs, each batch a customer.

    `arrival_scv` and `service_scv` are squared coefficients of variation. Batches gathered from Poisson arrivals come
    far more evenly than requests do: every n-th of them, so 1/n.
    """

    servers: int
    load: float
    service_s: float
    arrival_scv: float
    service_scv: float = 0.0

    @property
    def utilisation(self) -> float:
        return self.load / self.servers

    @property
    def mean_wait_s(self) -> float:
        """Infinite at saturation."""
        if self.utilisation >= 1:
            return math.inf
        variation = (self.arrival_scv + self.service_scv) / 2
        return erlang_c(self.servers, self.load) * self.service_s * variation / (self.servers * (1 - self.utilisation))

    def wait_s(self, fraction: float) -> float:
        """The wait that `fraction` of the batches do not exceed."""
        waits = erlang_c(self.servers, self.load)
        if self.mean_wait_s in {0.0, math.inf} or waits <= 1 - fraction:
            return 0.0 if self.mean_wait_s < math.inf else math.inf
        return self.mean_wait_s / waits * math.log(waits / (1 - fraction))


def batches(rps: float, executors: int, max_batch_size: int, batch_s: float) -> Queueing:
    """Full batches of a Poisson load at a fleet."""
    return Queueing(executors, rps / max_batch_size * batch_s, batch_s, 1 / max_batch_size)


# Measured on a server without MSETEX: commands that Redis runs, those inside the scripts included, per request and per
# batch with its flush. docs/benchmarks.md has a table with it.
_COMMANDS_PER_REQUEST = 1.05
_COMMANDS_PER_BATCH = 45.0
_SCRIPTS_PER_BATCH = 4.5
# The message around an input, and the result around an output, with the server's own bookkeeping.
MESSAGE_BYTES = 1_500
RESULT_BYTES = 700


@dataclass(frozen=True, slots=True)
class RedisNeeds:
    """Commands a second, those inside scripts counted, round trips a second, and bytes held."""

    commands_per_s: float
    round_trips_per_s: float
    memory_bytes: float


def redis_needs(
    rps: float, mean_batch: float, in_system_s: float, *, payload_bytes: int, retention_s: float
) -> RedisNeeds:
    """Of a load whose requests take `in_system_s` from queue to result, and whose results are kept `retention_s`."""
    waiting = rps * in_system_s * (payload_bytes + MESSAGE_BYTES)
    kept = rps * retention_s * (payload_bytes + RESULT_BYTES)
    return RedisNeeds(
        rps * (_COMMANDS_PER_REQUEST + _COMMANDS_PER_BATCH / mean_batch),
        rps * _SCRIPTS_PER_BATCH / mean_batch,
        waiting + kept,
    )


# The heads of a request and of its answer, as common clients send them, and the envelope of JSON around an output.
HTTP_BYTES = 600


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second, each way: between the callers and the frontends, and to and from Redis.

    A request crosses Redis' network four times: queued by a frontend, claimed by a worker, stored, told to it.
    """

    callers: float
    redis: float


def bandwidth(rps: float, payload_bytes: int) -> Bandwidth:
    """Of a load with inputs and outputs of that size."""
    return Bandwidth(rps * (payload_bytes + HTTP_BYTES), rps * (2 * payload_bytes + MESSAGE_BYTES + RESULT_BYTES))


def cost_per_million(
    gpus: int, gpu_hour_cost: float, rps: float, *, payload_bytes: int = 0, gb_cost: float = 0.0
) -> float:
    """Of a million requests, at a load that never rests; `gb_cost` is for each 10^9 bytes sent to the callers."""
    traffic = 1e6 * (payload_bytes + HTTP_BYTES) / 1e9 * gb_cost
    return gpus * gpu_hour_cost / (rps * 3600) * 1e6 + traffic
