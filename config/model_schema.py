"""The settings of models and pools, with their types and defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from config.model_files.schemes import scheme_of
from config.policies import DEFAULT_POLICY

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
NaturalInt = Annotated[int, msgspec.Meta(ge=0)]
# Of a version, in per cent. Hundredths are the finest that make a difference (`tasks.client.versions`).
Weight = Annotated[float, msgspec.Meta(ge=0, le=100)]
MemoryFraction = Annotated[float, msgspec.Meta(gt=0, le=1)]
# Names, as `config.process.devices` knows them, or every GPU of the machine. None: no list was given.
Devices: TypeAlias = tuple[str, ...] | Literal["all"] | None
Task = Literal["embed", "rerank", "classify"]
# The form of one input; every form but json travels as bytes (`tasks.protocol.binary`).
InputType = Literal["json", "bytes", "npy", "arrow"]

# All requests of a batch wait until all of it is read, written and stored, and Redis serves nobody else meanwhile.
MAX_BATCH_BYTES = 4 * 1024 * 1024

# Of the Open Inference Protocol; `webapp.api.kserve.datatypes` has what they mean.
Datatype = Literal[
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "BF16", "FP32", "FP64",
    "BYTES",
]  # fmt: skip


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input or output of a model, for the Open Inference Protocol. `shape` is that of one row: empty for a single
    value, -1 for a dimension that varies.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    datatype: Datatype
    shape: Annotated[list[Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]], msgspec.Meta(max_length=16)] = []


_FORM = f"a list of {{ name, datatype, shape }}, with a datatype of {', '.join(get_args(Datatype))}"
Tensors = Annotated[list[Tensor], msgspec.Meta(min_length=1, description=_FORM)]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[models.<name>]` table of `bunch.toml`."""

    name: str
    source: str
    version: str = "1"
    # Of a version beside the model's own: the owners that get it when they name none, in per cent.
    weight: Weight = 0.0
    max_batch_size: PositiveInt = 64
    max_batch_bytes: PositiveInt = MAX_BATCH_BYTES
    max_batch_cost: NaturalInt = 0
    group_by_cost: bool = False
    # The only sizes that reach the model, ascending; and the lengths to which it pads. Empty: any.
    batch_sizes: tuple[PositiveInt, ...] = ()
    length_buckets: tuple[PositiveInt, ...] = ()
    # Any JSON value. None: only the model's own `warmup` is run.
    warmup_input: Any = None
    # None: the default of the policy's class.
    max_wait_ms: NaturalInt | None = None
    policy: str = DEFAULT_POLICY
    policy_options: dict[str, Any] = {}
    instances: PositiveInt = 1
    # For each executor, a second process with the model loaded.
    spare: bool = False
    device: str = "auto"
    # Of a URL as the source: more replicas of the same API, and the files of TLS towards them.
    urls: tuple[str, ...] = ()
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    # An executor for each; instead of `instances` and `device`.
    devices: Devices = None
    # Of its device's memory, for each executor. None: no limit.
    memory_fraction: MemoryFraction | None = None
    # Whether it is loaded while a worker runs, or while it is asked and has room (`config.model_files.room`).
    residency: Literal["always", "on_demand"] = "always"
    timeout_ms: PositiveInt = 3000
    # 0: none. Below 1 every second batch would be killed.
    timeout_factor: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.0
    start_timeout_ms: PositiveInt = 120_000
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=90)] = 3
    max_queue_depth: PositiveInt = 20_000
    max_memory_bytes: NaturalInt = 0
    direct: bool = False
    direct_concurrency: PositiveInt = 16
    # Equal requests have equal answers: a recent answer is given again. `collapse` alone: only to requests that arrive
    # while it is computed.
    cache: bool = True
    collapse: bool = False
    options: dict[str, Any] = {}
    # JSON Schemas; a string is a file beside `bunch.toml`, which `load_settings` replaces by its content.
    input_schema: dict[str, Any] | str | None = None
    parameters_schema: dict[str, Any] | str | None = None
    # What `predict` gets for an input: a JSON value, bytes, a numpy array or a pyarrow table.
    input_type: InputType = "json"
    # What it is for, by which the APIs of others find it. None: what its class says.
    tasks: list[Task] | None = None
    # For the Open Inference Protocol. None: one input `input` of BYTES, one output `output`.
    inputs: Tensors | None = None
    outputs: Tensors | None = None

    @property
    def family(self) -> str:
        """The name under which all versions of it are asked for: `minilm` of `minilm` and of `minilm@2`."""
        return self.name.partition("@")[0]

    @property
    def is_remote(self) -> bool:
        """Return whether another process computes: a fixed HTTP API, rather than a class or a function."""
        return scheme_of(self.source).remote

    @property
    def takes_bytes(self) -> bool:
        """Return whether its inputs are bytes rather than JSON."""
        return self.input_type != "json"

    @property
    def on_demand(self) -> bool:
        """Return whether it may be unloaded while its worker runs."""
        return self.residency == "on_demand"

    @property
    def processes(self) -> int:
        """The processes of each executor that have the model loaded."""
        return 2 if self.spare else 1

    @property
    def replicas(self) -> tuple[str, ...]:
        """The sources of the same model: the addresses of an API, each with executors of its own."""
        return tuple(dict.fromkeys((self.source, *self.urls)))

    @property
    def collapses(self) -> bool:
        """Return whether equal requests in flight share one computation; `cache` implies it."""
        return self.collapse or self.cache

    @property
    def max_wait_s(self) -> float | None:
        return None if self.max_wait_ms is None else self.max_wait_ms / 1000

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000

    @property
    def start_timeout_s(self) -> float:
        return self.start_timeout_ms / 1000


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[pools.<name>]` table of `bunch.toml`: the models that its workers serve, and on which devices, for models
    that name none themselves.
    """

    name: str
    models: tuple[str, ...]
    devices: Devices = None
    # Instead of the server's; None: that.
    max_resident: PositiveInt | None = None
