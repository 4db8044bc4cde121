"""The arithmetic of the designs, and queueing formulas.

rate of a GPU   = batch / (model time + overhead)
GPUs            = rate / rate of a GPU / 0.7
connections     = rate × latency (Little, 1961)
bandwidth       = rate × size, each way
Redis memory    = rate × size × retention
Redis' log      = rate × (message + result)

The designs leave out that requests and batches arrive unevenly. Near saturation they wait for each other. Erlang's C
formula gives the probability that a batch waits, and Allen and Cunneen's its mean wait, which is Kingman's (1961) for
several servers. The tail is exponential (Kingman's heavy-traffic limit), so percentiles follow from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HEADROOM = 0.7


def rate_of_one(max_batch_size: int, batch_s: float, overhead_s: float = 0.0) -> float:
    """Requests per second of one GPU with full batches; `batch_s` is the time of a full batch."""
    return max_batch_size / (batch_s + overhead_s)


def gpus_for(rps: float, rate: float, headroom: float = HEADROOM) -> int:
    """The designs' formula for GPUs; `headroom` 1 gives their raw number."""
    # 1e-9: rounding must not turn 10,000 / 1,000 / 0.7 into one more GPU.
    return max(1, math.ceil(rps / rate / headroom - 1e-9))


def erlang_c(servers: int, load: float) -> float:
    """The fraction of customers that wait, for `load` Erlang offered to `servers` servers (Erlang, 1917); 1 at
    saturation.
    """
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
    """The queueing model of full batches at `servers` GPUs, each batch a customer.

    `arrival_scv` and `service_scv` are squared coefficients of variation. Batches of n Poisson arrivals come far more
    evenly than requests do, with 1/n.
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
        """The mean wait in seconds; infinite at saturation."""
        if self.utilisation >= 1:
            return math.inf
        variation = (self.arrival_scv + self.service_scv) / 2
        return erlang_c(self.servers, self.load) * self.service_s * variation / (self.servers * (1 - self.utilisation))

    def wait_s(self, fraction: float) -> float:
        """The wait in seconds that `fraction` of the batches do not exceed."""
        waits = erlang_c(self.servers, self.load)
        if self.mean_wait_s in {0.0, math.inf} or waits <= 1 - fraction:
            return 0.0 if self.mean_wait_s < math.inf else math.inf
        return self.mean_wait_s / waits * math.log(waits / (1 - fraction))


def batches(rps: float, executors: int, max_batch_size: int, batch_s: float) -> Queueing:
    """The model of full batches of a Poisson load at a fleet."""
    return Queueing(executors, rps / max_batch_size * batch_s, batch_s, 1 / max_batch_size)


# Measured on a server without MSETEX: commands that Redis runs, including those inside scripts, per request and per
# batch with its flush. docs/benchmarks.md has the table.
_COMMANDS_PER_REQUEST = 1.05
_COMMANDS_PER_BATCH = 45.0
_SCRIPTS_PER_BATCH = 4.5
# The message around an input, and the result around an output, with the server's overhead.
MESSAGE_BYTES = 1_500
RESULT_BYTES = 700


@dataclass(frozen=True, slots=True)
class RedisNeeds:
    """Commands per second (including those inside scripts), round trips per second, and bytes held."""

    commands_per_s: float
    round_trips_per_s: float
    memory_bytes: float


def redis_needs(
    rps: float, mean_batch: float, in_system_s: float, *, payload_bytes: int, retention_s: float
) -> RedisNeeds:
    """The Redis needs of a load whose requests take `in_system_s` from queue to result, with results kept
    `retention_s`.
    """
    waiting = rps * in_system_s * (payload_bytes + MESSAGE_BYTES)
    kept = rps * retention_s * (payload_bytes + RESULT_BYTES)
    return RedisNeeds(
        rps * (_COMMANDS_PER_REQUEST + _COMMANDS_PER_BATCH / mean_batch),
        rps * _SCRIPTS_PER_BATCH / mean_batch,
        waiting + kept,
    )


# The headers of a request and its response, as common clients send them, and the JSON around an output.
HTTP_BYTES = 600


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second, each way: between callers and frontends, and to and from Redis.

    A request crosses Redis' network four times: queued by a frontend, claimed by a worker, stored, sent to the
    frontend.
    """

    callers: float
    redis: float


def bandwidth(rps: float, payload_bytes: int) -> Bandwidth:
    """The bandwidth of a load with inputs and outputs of `payload_bytes`."""
    return Bandwidth(rps * (payload_bytes + HTTP_BYTES), rps * (2 * payload_bytes + MESSAGE_BYTES + RESULT_BYTES))


# What the append-only log has of a request besides its input and output.
_LOG_BYTES = 1_130


def log_bytes_per_s(rps: float, payload_bytes: int) -> float:
    """The bytes that Redis writes to its append-only log."""
    return rps * (2 * payload_bytes + _LOG_BYTES)


def cost_per_million(
    gpus: int, gpu_hour_cost: float, rps: float, *, payload_bytes: int = 0, gb_cost: float = 0.0
) -> float:
    """The cost of a million requests at a constant load; `gb_cost` is the price of 10^9 bytes sent to the callers."""
    traffic = 1e6 * (payload_bytes + HTTP_BYTES) / 1e9 * gb_cost
    return gpus * gpu_hour_cost / (rps * 3600) * 1e6 + traffic
