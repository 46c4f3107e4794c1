"""One deployment: a model on an engine on hardware. `Deployment` is what a user writes, `Resolved` what runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from catalogs.engines import EngineProfile, KvTransfer, RankDispatch
from catalogs.errors import InputError, nearest_name
from catalogs.hardware import Hardware
from catalogs.kv_offload import KvOffload, OffloadTiers
from catalogs.limits import Limits
from catalogs.lora import Lora
from catalogs.model_spec import ModelSpec
from catalogs.queueing import FCFS, Queueing
from catalogs.scaling import Autoscaling
from catalogs.speculation import Speculation, Speculative
from catalogs.units import GIB

#: What a pool's replicas do: serve whole requests, compute prompts and their first token, or everything after it.
Role = Literal["both", "prefill", "decode"]
ROLES: Final[tuple[Role, ...]] = ("both", "prefill", "decode")
#: How tokens reach the ranks that hold their experts: vLLM's names, and SGLang's `--deepep-mode auto` as deepep_auto.
All2All = Literal["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "deepep_auto"]
#: Keys of the whole deployment: no pool has them of its own.
SHARED_KEYS: Final = ("disaggregation", "pools", "router", "router_staleness_s", "faults", "retries")


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Disaggregation(_Keys):
    """Prompts and decoding on replicas of their own. `prefill` and `decode` hold keys of deployment.yaml in which that
    pool differs; with a `hardware` of its own it stands elsewhere, else the pools share the deployment's."""

    prefill_replicas: PositiveInt
    decode_replicas: PositiveInt
    prefill: dict[str, object] = Field(default_factory=dict)
    decode: dict[str, object] = Field(default_factory=dict)
    transfer_gb_per_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # null: its link's or network's
    transfer: KvTransfer | None = None  # null: as the engine does
    max_local_prefill_tokens: PositiveInt | None = None  # prompts up to this length stay with a decode replica
    max_prefill_queue: PositiveInt | None = None  # and so do others while each prefill replica has so many waiting


class Slice(NamedTuple):
    """One pool of a deployment, as a deployment of its own."""

    role: Role
    written: Deployment
    site: str  # pools of one site share its hardware


class Deployment(_Keys):
    """deployment.yaml as written; null means "the engine's default"."""

    model: str
    engine: str = "vllm"
    hardware: str
    replicas: PositiveInt = 1
    tensor_parallel: PositiveInt = 1
    pipeline_parallel: PositiveInt = 1
    data_parallel: PositiveInt = 1
    expert_parallel: bool = False
    context_parallel: PositiveInt = 1  # ranks that share each prompt's tokens
    decode_context_parallel: PositiveInt = 1  # ranks that share each sequence's KV, among tensor or context ranks
    all2all_backend: All2All = "allgather_reducescatter"
    rank_dispatch: RankDispatch | None = None  # how requests come to data-parallel ranks; null: as the engine does
    disaggregation: Disaggregation | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    max_num_seqs: PositiveInt | None = None
    max_num_batched_tokens: PositiveInt | None = None
    max_model_len: PositiveInt | None = None
    block_size: PositiveInt | None = None
    kv_blocks: PositiveInt | None = None
    prefix_caching: bool | None = None
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    sampling: Literal["random", "top_p", "greedy"] = "random"  # what clients ask for; random: temperature alone
    kv_offload: KvOffload | None = None  # blocks are kept in host memory and on disk too
    preemption: Literal["recompute", "swap"] | None = None
    swap_space_gib: float | None = Field(default=None, ge=0)  # host memory of each accelerator for swapped requests
    lora: Lora | None = None
    speculative: Speculative | None = None  # catalogs/speculation.py
    pools: list[dict[str, object]] | None = None  # kinds of replica behind one router: the keys in which each differs
    router: str | dict[str, object] = "round_robin"  # catalogs/routing.py
    router_staleness_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # between two looks at the replicas
    autoscaling: dict[str, object] | None = None  # catalogs/scaling.py
    queue: dict[str, object] | None = None  # catalogs/queueing.py
    faults: list[dict[str, object]] | None = None  # catalogs/faults.py
    retries: dict[str, object] | None = None

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Each pool as a deployment of its own. InputError for a key it cannot have."""
        if self.pools is not None:
            return self._fleet(self.pools)
        if self.disaggregation is None:
            return (Slice("both", self, ""),)
        apart = self.disaggregation
        return (
            self._half("prefill", apart.prefill, apart.prefill_replicas),
            self._half("decode", apart.decode, apart.decode_replicas),
        )

    def _half(self, role: Role, own: dict[str, object], replicas: int) -> Slice:
        where = f"disaggregation.{role}"
        _refuse(own, ("model", "replicas"), where)
        pool = self._slice(own | {"replicas": replicas}, where)
        return Slice(role, pool, role if pool.hardware != self.hardware else "")

    def _fleet(self, pools: list[dict[str, object]]) -> tuple[Slice, ...]:
        if self.disaggregation is not None:
            raise InputError("pools and disaggregation exclude each other", "disaggregation", "role: prefill in a pool")
        if not pools:
            raise InputError("pools must name at least one", "[]", "pools: null")
        return tuple(self._pool(own, i) for i, own in enumerate(pools))

    def _pool(self, own: dict[str, object], i: int) -> Slice:
        role = own.get("role", "both")
        if role not in ROLES:
            nearest = nearest_name(str(role), ROLES) or ", ".join(ROLES)
            raise InputError(f"pools[{i}]: unknown role", role, nearest)
        keys = {key: value for key, value in own.items() if key != "role"}
        found: Role = next(known for known in ROLES if known == role)
        return Slice(found, self._slice(keys, f"pools[{i}]"), f"pool {i}" if "hardware" in own else "")

    def _slice(self, own: dict[str, object], where: str) -> Deployment:
        from catalogs.load import check

        _refuse(own, SHARED_KEYS, where)
        return check(Deployment, self.model_dump(exclude=set(SHARED_KEYS)) | own, where)


def _refuse(own: dict[str, object], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if key in own:
            raise InputError(f"a pool has no {key} of its own: {where}", own[key], "leave it out")


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """How one replica is cut: data x pipeline x context x tensor ranks, one accelerator each."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    context_parallel: int = 1
    decode_context_parallel: int = 1  # needs no accelerators of its own
    all2all_backend: All2All = "allgather_reducescatter"

    @property
    def accelerators(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel * self.context_parallel

    @property
    def words(self) -> str:
        """ "TP4 x PP2 x DP2 + EP"; what is 1 is left out, but for TP."""
        further = (("PP", self.pipeline_parallel), ("DP", self.data_parallel), ("CP", self.context_parallel))
        cut = "".join(f" x {name}{size}" for name, size in further if size > 1)
        shared = f" + DCP{self.decode_context_parallel}" if self.decode_context_parallel > 1 else ""
        return f"TP{self.tensor_parallel}{cut}{' + EP' if self.expert_parallel else ''}{shared}"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A deployment with every default filled in, every name looked up. limits.kv_blocks is 0 until memory is sized."""

    model: ModelSpec
    engine: EngineProfile
    hardware: Hardware
    replicas: int
    layout: Layout
    limits: Limits  # of one data-parallel rank
    weight_dtype: str
    kv_dtype: str
    gpu_memory_utilization: float
    sampling: str = "random"
    queueing: Queueing = FCFS
    scaling: Autoscaling | None = None  # None: the number of replicas stays
    offload: OffloadTiers | None = None
    lora: Lora | None = None
    swap_bytes: float = 0.0  # of each accelerator, for preempted requests; 0: they are computed again
    speculation: Speculation | None = None
    rank_dispatch: RankDispatch | None = None  # None: no ranks schedule beside each other
    role: Role = "both"
    site: str = ""  # pools of one site share its hardware
    notices: tuple[str, ...] = ()  # what the reader should know: one sentence each

    @property
    def queries(self) -> int:
        """Tokens that each decode brings into a step."""
        return self.speculation.queries if self.speculation else 1

    @property
    def most_replicas(self) -> int:
        """That there will ever be at once."""
        return max(self.replicas, self.scaling.max_replicas if self.scaling else 0)

    @property
    def accelerators_per_replica(self) -> int:
        return self.layout.accelerators

    def filled_in(self, written: Deployment) -> dict[str, Any]:
        """deployment.yaml as it was written, every null filled in. kv_blocks stays null until memory is sized."""
        values = written.model_dump()
        values |= {key: getattr(self, key) for key in values if hasattr(self, key)}
        values |= asdict(self.layout) | asdict(self.limits) | {"kv_blocks": self.limits.kv_blocks or None}
        values |= {"model": self.model.name, "engine": self.engine.name, "hardware": self.hardware.text}
        values |= {"queue": self.queueing.model_dump(mode="json")}
        if self.swap_bytes:
            values |= {"preemption": "swap", "swap_space_gib": self.swap_bytes / GIB}
        values |= {"lora": self.lora.model_dump() if self.lora else None}
        values |= {"speculative": self.speculation.as_written if self.speculation else None}
        values |= {"kv_offload": self.offload.as_written if self.offload else None}
        return values | {"autoscaling": self.scaling.model_dump() if self.scaling else None}


def load_deployment(path: Path) -> Deployment:
    """deployment.yaml (or JSON). Raises InputError for an unreadable file, an unknown key or a value out of range.

    Where there are pools, a model or hardware that only they name is the first one's.
    """
    from catalogs.load import check, read_yaml

    data = read_yaml(Path(path))
    pools = data.get("pools")
    if isinstance(pools, list) and pools and isinstance(pools[0], dict):
        data = {key: pools[0][key] for key in ("model", "hardware") if key in pools[0]} | data
    return check(Deployment, data, Path(path).name)


def resolve(deployment: Deployment) -> Resolved:
    """Looks every name up, fills every null with the engine's default, checks that the sizes fit together.

    Raises InputError naming the broken rule, the value and the nearest valid choice, and where there are several pools.
    Whether the model fits in memory is not decided here: that is an answer (no), not bad input.
    """
    for key in ("disaggregation", "pools"):
        if getattr(deployment, key) is not None:
            raise InputError("one kind of replica is looked at here", key, f"{key}: null")
    return resolve_pools(deployment)[0]


def resolve_pools(deployment: Deployment) -> tuple[Resolved, ...]:
    """The same for every pool; one where nothing is disaggregated."""
    from catalogs.resolving import resolve_deployment

    return resolve_deployment(deployment)
