"""One deployment: a model on an engine on hardware. `Deployment` is what a user writes, `Resolved` what runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from catalogs.deployments.layout import ROLES, All2All, Role
from catalogs.deployments.options import KvOffload, Lora
from catalogs.deployments.speculation import Speculative
from catalogs.engines.profile import KvTransfer, RankDispatch
from catalogs.errors import InputError, nearest_name

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


class PoolDeployment(NamedTuple):
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
    speculative: Speculative | None = None  # catalogs/deployments/speculation.py
    pools: list[dict[str, object]] | None = None  # kinds of replica behind one router: the keys in which each differs
    router: str | dict[str, object] = "round_robin"  # catalogs/deployments/routing.py
    router_staleness_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # between two looks at the replicas
    autoscaling: dict[str, object] | None = None  # catalogs/deployments/autoscaling.py
    queue: dict[str, object] | None = None  # catalogs/deployments/queueing.py
    faults: list[dict[str, object]] | None = None  # catalogs/deployments/faults.py
    retries: dict[str, object] | None = None

    @property
    def slices(self) -> tuple[PoolDeployment, ...]:
        """Each pool as a deployment of its own. InputError for a key it cannot have."""
        if self.pools is not None:
            return self._fleet(self.pools)
        if self.disaggregation is None:
            return (PoolDeployment("both", self, ""),)
        apart = self.disaggregation
        return (
            self._half("prefill", apart.prefill, apart.prefill_replicas),
            self._half("decode", apart.decode, apart.decode_replicas),
        )

    def _half(self, role: Role, own: dict[str, object], replicas: int) -> PoolDeployment:
        where = f"disaggregation.{role}"
        _refuse(own, ("model", "replicas"), where)
        pool = self._slice(own | {"replicas": replicas}, where)
        return PoolDeployment(role, pool, role if pool.hardware != self.hardware else "")

    def _fleet(self, pools: list[dict[str, object]]) -> tuple[PoolDeployment, ...]:
        if self.disaggregation is not None:
            raise InputError("pools and disaggregation exclude each other", "disaggregation", "role: prefill in a pool")
        if not pools:
            raise InputError("pools must name at least one", "[]", "pools: null")
        return tuple(self._pool(own, i) for i, own in enumerate(pools))

    def _pool(self, own: dict[str, object], i: int) -> PoolDeployment:
        role = own.get("role", "both")
        if role not in ROLES:
            nearest = nearest_name(str(role), ROLES) or ", ".join(ROLES)
            raise InputError(f"pools[{i}]: unknown role", role, nearest)
        keys = {key: value for key, value in own.items() if key != "role"}
        found: Role = next(known for known in ROLES if known == role)
        return PoolDeployment(found, self._slice(keys, f"pools[{i}]"), f"pool {i}" if "hardware" in own else "")

    def _slice(self, own: dict[str, object], where: str) -> Deployment:
        from catalogs.io.yaml_files import validate_as

        _refuse(own, SHARED_KEYS, where)
        return validate_as(Deployment, self.model_dump(exclude=set(SHARED_KEYS)) | own, where)


def _refuse(own: dict[str, object], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if key in own:
            raise InputError(f"a pool has no {key} of its own: {where}", own[key], "leave it out")


def load_deployment(path: Path) -> Deployment:
    """deployment.yaml (or JSON). Raises InputError for an unreadable file, an unknown key or a value out of range.

    Where there are pools, a model or hardware that only they name is the first one's.
    """
    from catalogs.io.yaml_files import read_yaml, validate_as

    data = read_yaml(Path(path))
    pools = data.get("pools")
    if isinstance(pools, list) and pools and isinstance(pools[0], dict):
        data = {key: pools[0][key] for key in ("model", "hardware") if key in pools[0]} | data
    return validate_as(Deployment, data, Path(path).name)
