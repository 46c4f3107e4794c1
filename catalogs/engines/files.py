"""Reading of engine files: one YAML per engine version in data/engines/, converted from human units to SI."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from catalogs.engines.profile import (
    DefaultLimits,
    EngineProfile,
    FirstToken,
    HostTimes,
    KvTransfer,
    RankDispatch,
    ReceiveIntervals,
    StaticReserve,
)
from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import DATA, read_yaml, validate_as
from catalogs.units import GIB, MIB

FOLDER = DATA / "engines"

_MILLI, _MICRO, _NANO = 1e-3, 1e-6, 1e-9


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CaptureSizes(_Strict):
    """Batch sizes of CUDA graphs: `first`, then multiples of `step` up to `to`, then of `then_step` up to `most`."""

    first: tuple[int, ...] = Field(strict=False)
    step: PositiveInt
    to: PositiveInt
    then_step: PositiveInt
    most: PositiveInt

    def sizes(self) -> tuple[int, ...]:
        """Return all batch sizes, ascending."""
        low = range(self.step, self.to + 1, self.step)
        high = range(self.to + self.then_step, self.most + 1, self.then_step)
        return (*self.first, *low, *high)


class ReceiveIntervalsFile(_Strict):
    """How often a busy engine receives new requests, in steps; see ReceiveIntervals."""

    steps: PositiveInt
    busy_steps: PositiveInt
    busy_requests: PositiveInt


class LimitsFile(_Strict):
    """The engine's default limits for devices with at least `min_memory_gib` of memory; see DefaultLimits."""

    kind: Literal["gpu", "cpu"]
    min_memory_gib: float
    except_accelerators: tuple[str, ...] = Field(default=(), strict=False)
    max_num_batched_tokens: PositiveInt
    max_num_seqs: PositiveInt
    per_rank: bool = False
    receiving: ReceiveIntervalsFile | None = None


class MemoryFile(_Strict):
    """Device memory in GiB that the engine uses outside its own memory pool, on one GPU and per GPU of several."""

    non_torch_gib_single: PositiveFloat
    non_torch_gib_parallel: PositiveFloat
    source: str


class HostTimesFile(_Strict):
    """Time that the host spends; most values must be positive, so that a missing term cannot read as zero cost."""

    step_ms: PositiveFloat
    step_ms_per_sequence: PositiveFloat
    step_gap_ms: NonNegativeFloat = 0.0
    collective_skew_us: NonNegativeFloat
    kernel_launch_us: NonNegativeFloat = 0.0
    request_ms: PositiveFloat
    request_us_per_input_token: PositiveFloat
    api_request_ms: PositiveFloat
    api_step_ms: PositiveFloat
    api_token_us: PositiveFloat
    output_ms: PositiveFloat
    ngram_us_per_sequence: NonNegativeFloat = 0.0
    ngram_ns_per_token: NonNegativeFloat = 0.0
    source: str


class StaticReserveFile(_Strict):
    """Memory that the engine leaves outside its static share; see StaticReserve."""

    base_mib: PositiveFloat
    mib_per_batched_token: PositiveFloat
    mib_per_rank: PositiveFloat
    least_mib: PositiveFloat
    least_from_memory_gib: PositiveFloat


class EngineFile(_Strict):
    """One engine version as written in data/engines/NAME.yaml; `base` names a file whose keys this one changes."""

    name: str
    version: str
    policy: str
    block_size_tokens: PositiveInt
    gpu_memory_utilization: float = Field(gt=0, le=1)
    async_scheduling: bool
    prefix_caching: bool
    chunked_prefill: bool
    admit_whole_prompt: bool
    kv_dtypes: tuple[str, ...] = Field(strict=False)
    graph_capture_sizes: CaptureSizes | None
    graphs_with_prefill: bool = False
    top_p_by_sort: bool = False
    fuses_norms: bool = False
    mxfp8_activations: bool = False
    shared_experts_beside_tokens: NonNegativeInt = 0
    default_limits: tuple[LimitsFile, ...] = Field(strict=False)
    memory: MemoryFile
    memory_rule: Literal["profiled", "static", "free", "slots"] = "profiled"
    static_reserve: StaticReserveFile | None = None
    notice: str = ""
    cpu_block_size_tokens: PositiveInt | None = None
    rank_dispatch: RankDispatch = "balanced"
    balance_steps: NonNegativeInt = 0
    physical_batch_tokens: NonNegativeInt = 0
    shares_prefixes: bool = True
    first_token: FirstToken = "prefill"
    kv_transfer: KvTransfer = "at_end"
    transfer_queues: PositiveInt | None = None
    orders: tuple[Literal["fcfs", "priority", "deadline", "prefix"], ...] = Field(default=("fcfs",), strict=False)
    batches_wait: bool = False
    holds_longest_prompt: bool = False
    speculation: dict[Literal["draft_model", "eagle", "eagle3", "mtp", "ngram"], Literal["ahead", "in turn"]] = {}
    host_times: HostTimesFile
    flags: dict[str, str] = {}
    source: str
    as_of: str
    supported: Literal[True] = True
    why: str = ""


class UnsupportedEngine(_Strict):
    """An engine that is known by name but not simulated."""

    name: str
    supported: Literal[False]
    why: str


def engine_file_names() -> list[str]:
    """Return the names of all shipped engine files, sorted."""
    return sorted(p.stem for p in FOLDER.glob("*.yaml"))


@cache
def read_engine_file(name: str) -> EngineFile | UnsupportedEngine:
    """Return the file of an engine.

    Raises:
        InputError: The file is malformed.
    """
    data = _with_base(name)
    if data.get("supported") is False:
        return validate_as(UnsupportedEngine, data, f"{name}.yaml")
    return validate_as(EngineFile, data, f"{name}.yaml")


def _with_base(name: str) -> dict[str, Any]:
    data = read_yaml(FOLDER / f"{name}.yaml")
    base = data.pop("base", None)
    return data if base is None else _with_base(str(base)) | data


def engine_profile(file: EngineFile | UnsupportedEngine) -> EngineProfile:
    """Return the frozen profile of a supported engine.

    Raises:
        InputError: The engine is known by name only.
    """
    if isinstance(file, UnsupportedEngine):
        raise InputError("engine is known but not supported yet", file.name)
    sizes = file.graph_capture_sizes.sizes() if file.graph_capture_sizes else ()
    return EngineProfile(
        name=file.name,
        version=file.version,
        policy=file.policy,
        block_size_tokens=file.block_size_tokens,
        gpu_memory_utilization=file.gpu_memory_utilization,
        async_scheduling=file.async_scheduling,
        prefix_caching=file.prefix_caching,
        chunked_prefill=file.chunked_prefill,
        graph_capture_sizes=sizes,
        max_graph_tokens=max(sizes, default=0),
        graphs_with_prefill=file.graphs_with_prefill,
        top_p_by_sort=file.top_p_by_sort,
        fuses_norms=file.fuses_norms,
        mxfp8_activations=file.mxfp8_activations,
        shared_experts_beside_tokens=file.shared_experts_beside_tokens,
        host=_host_times(file.host_times),
        non_torch_bytes_single=file.memory.non_torch_gib_single * GIB,
        non_torch_bytes_parallel=file.memory.non_torch_gib_parallel * GIB,
        admit_whole_prompt=file.admit_whole_prompt,
        limits=tuple(_limits(rule) for rule in file.default_limits),
        kv_dtypes=file.kv_dtypes,
        flags=dict(file.flags),
        source=f"{file.source} (as of {file.as_of})",
        memory_rule=file.memory_rule,
        static_reserve=_static_reserve(file.static_reserve),
        notice=file.notice,
        rank_dispatch=file.rank_dispatch,
        balance_steps=file.balance_steps,
        physical_batch_tokens=file.physical_batch_tokens,
        shares_prefixes=file.shares_prefixes,
        first_token=file.first_token,
        kv_transfer=file.kv_transfer,
        transfer_queues=file.transfer_queues,
        orders=file.orders,
        batches_wait=file.batches_wait,
        holds_longest_prompt=file.holds_longest_prompt,
        speculates={method: steps == "ahead" for method, steps in file.speculation.items()},
        cpu_block_size_tokens=file.cpu_block_size_tokens,
    )


def _static_reserve(file: StaticReserveFile | None) -> StaticReserve | None:
    if file is None:
        return None
    return StaticReserve(
        base_bytes=file.base_mib * MIB,
        bytes_per_batched_token=file.mib_per_batched_token * MIB,
        bytes_per_rank=file.mib_per_rank * MIB,
        least_bytes=file.least_mib * MIB,
        least_from_bytes=file.least_from_memory_gib * GIB,
    )


def _host_times(file: HostTimesFile) -> HostTimes:
    return HostTimes(
        step_s=file.step_ms * _MILLI,
        step_s_per_sequence=file.step_ms_per_sequence * _MILLI,
        step_gap_s=file.step_gap_ms * _MILLI,
        collective_skew_s=file.collective_skew_us * _MICRO,
        kernel_launch_s=file.kernel_launch_us * _MICRO,
        request_s=file.request_ms * _MILLI,
        request_s_per_input_token=file.request_us_per_input_token * _MICRO,
        output_s=file.output_ms * _MILLI,
        api_request_s=file.api_request_ms * _MILLI,
        api_step_s=file.api_step_ms * _MILLI,
        api_token_s=file.api_token_us * _MICRO,
        ngram_s_per_sequence=file.ngram_us_per_sequence * _MICRO,
        ngram_s_per_token=file.ngram_ns_per_token * _NANO,
        source=file.source,
    )


def _limits(file: LimitsFile) -> DefaultLimits:
    return DefaultLimits(
        kind=file.kind,
        min_memory_bytes=file.min_memory_gib * GIB,
        max_num_batched_tokens=file.max_num_batched_tokens,
        max_num_seqs=file.max_num_seqs,
        except_accelerators=file.except_accelerators,
        per_rank=file.per_rank,
        receiving=ReceiveIntervals(**file.receiving.model_dump()) if file.receiving else None,
    )


def list_engines(supported_only: bool = False) -> list[str]:
    """Return the engine names, sorted; versions are written `vllm-0.15`, and the bare name is the newest version."""
    return [n for n in engine_file_names() if not supported_only or read_engine_file(n).supported]


def load_engine(name: str) -> EngineProfile:
    """Return the profile of a supported engine by name.

    Raises:
        InputError: The name is unknown, or the engine is known but not simulated.
    """
    folded = name.strip().lower()
    if folded not in engine_file_names():
        raise InputError("unknown engine", name, nearest_name(folded, engine_file_names()) or "vllm")
    file = read_engine_file(folded)
    if not file.supported:
        can = ", ".join(list_engines(supported_only=True))
        raise InputError(f"engine is known but not supported yet ({file.why}); supported: {can}", name, "vllm")
    return engine_profile(file)
