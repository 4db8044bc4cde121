r"""Every Redis name that Bunch uses, as a function: type, lifetime and meaning.

One shard has all of them. With more shards (`config.shards`) each name of what a request needs has the tag of its
shard (`{s3}`), so that every script touches the keys of one shard only: Redis Cluster refuses anything else. What
belongs to the fleet stays without a tag, in its home.

| name | type | lifetime | meaning |
|---|---|---|---|
| `bunch.<model>.<tier>` | list | while it holds messages | the queue, in kombu's own format: LPUSH in, RPOP out |
| `bunch.<model>.<tier>\x06\x16<n>` | list | a second | messages that a Celery client sent with a priority from 1 to 9 |
| `celery-task-meta-<id>` | string | deadline + result TTL | a request's state and outcome, in Celery's form |
| `bunch:bell:<model>` | list | at most one token | "there is new work"; idle claim loops block on it |
| `bunch:lease:<batch>` | list | until settled or returned | worker, model, marks; then messages, the last first |
| `bunch:leases:<worker>` | set | with its leases | batch ids that a worker holds |
| `bunch:workers` | zset | trimmed with its worker | worker id → Redis time of its last heartbeat in ms |
| `bunch:worker:<worker>` | string | 3 × lease TTL | a worker's report of itself, JSON |
| `bunch:roles` | set | a minute | ids of all processes that have reported lately |
| `bunch:role:<id>` | string | a minute | its report of itself, JSON |
| `bunch:share:<model>` | hash | small, kept | the lower tiers' credit towards their share |
| `bunch:held:<queue>` | hash | while the queue holds messages | tag of a key → number of its waiting requests |
| `bunch:pace:<model>` | hash | an hour after the last worker | worker → heartbeat time, executors, throughputs |
| `bunch:capacity:<model>` | string | 5 s, used for 250 ms | the fleet's capacity and Redis' memory use then |
| `bunch:quota:<key id>` | string | until the quota is whole | when the key's next request is due, in µs |
| `bunch:quota:client:<hash>` | string | until the quota is whole | the same for one client of an owner |
| `bunch:delayed:<model>` | zset | until due | requests in their pause: mark and message → Redis time in ms |
| `bunch:dead` | zset | bounded by count and age | dead letters: task id → Redis time in ms of its end |
| `bunch:dead:<id>` | hash | with its entry above | one dead letter: message, rank, record (JSON) |
| `bunch:blob:<id>` | string | until the outcome, or a minute past the deadline | a large input, or output |
| `bunch:blobs` | zset | with its blobs | id of a blob → Redis time in ms at which it expires |
| `bunch:blobs:sizes` | hash | with its blobs | id of a blob → its bytes |
| `bunch:blobs:kept` | zset | with its dead letters | blobs of dead letters: id → Redis time in ms |
| `bunch:blobs:bytes` | hash | kept | bytes of `all` blobs, and of those that are `kept` for dead letters |
| `bunch:callbacks` | zset | until delivered or given up | task id → Redis time in ms of the next look at it |
| `bunch:callbacks:bell` | list | at most one token | a result that is to be pushed has come; senders block on it |
| `bunch:callback:<id>` | hash | some minutes after its end | a result to push: URL, model, tier, attempts, error |
| `bunch:cancelled` | zset | trimmed by score | task id → Redis time in ms after which it can be forgotten |
| `bunch:request:<request id>` | string | as its result | the task id for a caller's own X-Request-Id |
| `bunch:idempotency:<hash>` | string | as its result | for an Idempotency-Key: hash of the question, and the task id |
| `bunch:cached:<edition>:<question>` | string | `BUNCH_CACHE_TTL_MS` | a cached answer |
| `bunch:kept` | list | bounded by bytes | cached answers, a row per batch: Redis time in ms of its end, bytes, names |
| `bunch:asked:<question>` | string | a minute after the last deadline | a request computes this question |
| `bunch:joined:<question>` | hash | a minute after the last deadline | requests that wait for it: task id → message |
| `bunch:edition:<model>` | string | kept | model epoch: number of loads; answers are cached for one epoch |
| `bunch:arrivals:<second>` | hash | 30 s | requests queued in that second, per queue |
| `bunch:flush:<id>` | string | 30 s | the answer to one flush of an outbox, so that it can be repeated |
| `bunch:flush:metrics:<process>` | string | an hour | the number of that process's last flush of metrics |
| `bunch:metrics` | hash | kept | Prometheus samples summed over all processes |
| `bunch:rate:<second>` | string | 60 s | requests answered in that second |
| `bunch:scale` | string | a minute | the autoscaler's last observation and decision, JSON |
| `bunch:controls:<model>` | hash | kept | operators' changes: paused tiers, tuned settings, a reload, JSON each |
| `bunch:owners:<model>` | hash | a week after the last use | owner, hashed → its number, for a model that is divided |
| `bunch:wanted:<model>` | string | 10 s, until a worker sees it | its model shall be loaded, though nothing waits |
| `bunch:reloading:<model>` | string | a minute, renewed | the worker that is restarting an executor of the model |
| `bunch:record:<which>` | stream | `all` an hour, `failed` a day; bounded by bytes | outcomes of requests |
| `bunch:record:size:<which>` | hash | as its stream | its size in bytes, and the time up to which it was trimmed |
| `bunch:keys` | hash | kept | API key's id → its record for frontends, JSON; never the key itself |
| `bunch:keys:version` | string | kept | version of the database that was published: `<database>:<number>` |
| `bunch:ledger` | stream | until in the database | outcomes of requests, some hundred per entry; bounded |
| `bunch:ledger:rows` | string | kept | number of requests in it |
| `bunch:history` | list | an hour of points | the last hour as the operations page shows it, JSON, the newest last |
| `bunch:history:<step>` | string | 10 s | marks that the point of this step has been taken |
| `bunch:slow` | list | bounded by count | requests that were slow lately, JSON, the newest first |
| `bunch:reply:<process>` | channel | – | outcomes for the callers that wait in one frontend process |
| `bunch:revoked` | channel | – | revoked requests, for the frontend that has their callers |
"""

from __future__ import annotations

from dataclasses import dataclass

from config.tiers import TIERS, Tier

# Celery's own prefix (`celery.backends.base.KeyValueStoreBackend.task_keyprefix`).
RESULT_PREFIX = "celery-task-meta-"
REPLY_PREFIX = "bunch:reply:"
REVOKED_CHANNEL = "bunch:revoked"
QUEUE_PREFIX = "bunch."
_BELL_PREFIX = "bunch:bell:"
OPS_QUEUE = "bunch.ops"
TASK_NAME = "bunch.infer"
# kombu's separator of queue name and priority (`kombu.transport.redis.Channel.sep`).
SEPARATOR = "\x06\x16"


@dataclass(frozen=True, slots=True)
class Shard:
    """The names of one shard; `tag` is empty, or a hash tag such as `{s3}`."""

    tag: str = ""

    def queue(self, model: str, tier: Tier) -> str:
        return f"{QUEUE_PREFIX}{model}.{tier.value}{self.tag}"

    def queues(self, model: str) -> tuple[str, ...]:
        """The queues of a model, in the order in which they are served."""
        return tuple(self.queue(model, tier) for tier in TIERS)

    @staticmethod
    def priorities(queue: str) -> tuple[str, ...]:
        """The priority lists that kombu keeps beside a queue, the most urgent first. They cover every `priority_steps`:
        kombu keeps priorities within 0 and 9, and 0 is the queue itself.
        """
        return tuple(f"{queue}{SEPARATOR}{step}" for step in range(1, 10))

    @staticmethod
    def bindings(queue: str) -> str:
        """The bindings that kombu's clients have declared for a queue: its name, the separator twice, its name
        again.
        """
        return f"_kombu.binding.{queue}"

    def result(self, task_id: str) -> str:
        return f"{RESULT_PREFIX}{task_id}{self.tag}"

    def reply_channel(self, process_id: str) -> str:
        return f"{REPLY_PREFIX}{process_id}{self.tag}"

    def revoked_channel(self) -> str:
        return f"{REVOKED_CHANNEL}{self.tag}"

    def bell(self, model: str) -> str:
        return f"{_BELL_PREFIX}{model}{self.tag}"

    def lease(self, batch_id: str) -> str:
        return f"bunch:lease:{batch_id}{self.tag}"

    def leases(self, worker_id: str) -> str:
        return f"bunch:leases:{worker_id}{self.tag}"

    def workers(self) -> str:
        return f"bunch:workers{self.tag}"

    def worker(self, worker_id: str) -> str:
        return f"bunch:worker:{worker_id}{self.tag}"

    def roles(self) -> str:
        return f"bunch:roles{self.tag}"

    def role(self, role_id: str) -> str:
        return f"bunch:role:{role_id}{self.tag}"

    def share(self, model: str) -> str:
        return f"bunch:share:{model}{self.tag}"

    def held(self, queue: str) -> str:
        """The key of one of `queues`, whose name already has the tag."""
        return f"bunch:held:{queue}"

    def pace(self, model: str) -> str:
        return f"bunch:pace:{model}{self.tag}"

    def capacity(self, model: str) -> str:
        return f"bunch:capacity:{model}{self.tag}"

    def quota(self, key_id: str) -> str:
        return f"bunch:quota:{key_id}{self.tag}"

    def client_quota(self, name: str) -> str:
        """`name` is a hash of an owner and of the `client_id` that it gave."""
        return f"bunch:quota:client:{name}{self.tag}"

    def delayed(self, model: str) -> str:
        return f"bunch:delayed:{model}{self.tag}"

    def dead(self, task_id: str | None = None) -> str:
        """The key of the index of dead letters, or of one dead letter."""
        return f"bunch:dead{self.tag}" + ("" if task_id is None else f":{task_id}")

    def blob(self, blob_id: str) -> str:
        return f"bunch:blob:{blob_id}{self.tag}"

    def blobs(self) -> str:
        return f"bunch:blobs{self.tag}"

    def blob_sizes(self) -> str:
        return f"bunch:blobs:sizes{self.tag}"

    def blobs_kept(self) -> str:
        return f"bunch:blobs:kept{self.tag}"

    def blob_bytes(self) -> str:
        return f"bunch:blobs:bytes{self.tag}"

    def callbacks(self) -> str:
        return f"bunch:callbacks{self.tag}"

    def callbacks_bell(self) -> str:
        return f"bunch:callbacks:bell{self.tag}"

    def callback(self, task_id: str) -> str:
        return f"bunch:callback:{task_id}{self.tag}"

    def cancelled(self) -> str:
        return f"bunch:cancelled{self.tag}"

    def request(self, request_id: str) -> str:
        return f"bunch:request:{request_id}{self.tag}"

    def idempotency(self, name: str) -> str:
        return f"bunch:idempotency:{name}{self.tag}"

    def cached(self, question: str | None = None, edition: str = "") -> str:
        """The key of a cached answer of one model epoch, or the prefix of all such keys."""
        return f"bunch:cached{self.tag}" + ("" if question is None else f":{edition}:{question}")

    def kept(self) -> str:
        """The key of the index of cached answers."""
        return f"bunch:kept{self.tag}"

    def asked(self, question: str | None = None) -> str:
        """The key that marks a question as being computed, or the prefix of all such keys."""
        return f"bunch:asked{self.tag}" + ("" if question is None else f":{question}")

    def joined(self, question: str | None = None) -> str:
        """The key of the requests that wait for another request's answer, or the prefix of all such keys."""
        return f"bunch:joined{self.tag}" + ("" if question is None else f":{question}")

    def edition(self, model: str) -> str:
        return f"bunch:edition:{model}{self.tag}"

    def arrivals(self, second: int | None = None) -> str:
        """Without `second`: the prefix that the submit script completes, since only Redis has the time."""
        return f"bunch:arrivals{self.tag}:" + ("" if second is None else str(second))

    def flush(self, flush_id: str) -> str:
        return f"bunch:flush:{flush_id}{self.tag}"

    def controls(self, model: str) -> str:
        return f"bunch:controls:{model}{self.tag}"

    def owners(self, model: str) -> str:
        return f"bunch:owners:{model}{self.tag}"

    def wanted(self, model: str) -> str:
        return f"bunch:wanted:{model}{self.tag}"

    def reloading(self, model: str) -> str:
        return f"bunch:reloading:{model}{self.tag}"

    def record(self, which: str) -> str:
        return f"bunch:record:{which}{self.tag}"

    def record_size(self, which: str) -> str:
        return f"bunch:record:size:{which}{self.tag}"

    def metrics(self) -> str:
        return f"bunch:metrics{self.tag}"

    def scale(self) -> str:
        return f"bunch:scale{self.tag}"

    def rate(self, second: int) -> str:
        return f"bunch:rate:{second}{self.tag}"

    def api_keys(self) -> str:
        return f"bunch:keys{self.tag}"

    def api_keys_version(self) -> str:
        return f"bunch:keys:version{self.tag}"

    def ledger(self) -> str:
        return f"bunch:ledger{self.tag}"

    def ledger_rows(self) -> str:
        return f"bunch:ledger:rows{self.tag}"

    def history(self) -> str:
        return f"bunch:history{self.tag}"

    def history_turn(self, step: int) -> str:
        return f"bunch:history:{step}{self.tag}"

    def slow(self) -> str:
        return f"bunch:slow{self.tag}"


def task_of_result(name: str, tag: str) -> str:
    """The task id whose result key, or channel, this is; `tag` is that of its shard."""
    return name.removeprefix(RESULT_PREFIX).removesuffix(tag)


def model_of_bell(bell: str, tag: str) -> str:
    """The model whose bell this is; `tag` is that of its shard."""
    return bell.removeprefix(_BELL_PREFIX).removesuffix(tag)
