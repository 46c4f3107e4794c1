"""One deployment: a model on an engine on hardware. `Deployment` is what a user writes, `Resolved` what runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from catalogs.engines import EngineProfile
from catalogs.errors import InputError
from catalogs.hardware import Hardware
from catalogs.limits import Limits
from catalogs.model_spec import ModelSpec

#: What a pool's replicas do: serve whole requests, compute prompts and their first token, or everything after it.
Role = Literal["both", "prefill", "decode"]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Disaggregation(_Keys):
    """Prompts and decoding on replicas of their own. `prefill` and `decode` hold keys of deployment.yaml in which that
    pool differs; with a `hardware` of its own it stands elsewhere, else the pools share the deployment's."""

    prefill_replicas: PositiveInt
    decode_replicas: PositiveInt
    prefill: dict[str, object] = Field(default_factory=dict)
    decode: dict[str, object] = Field(default_factory=dict)
    transfer_gb_per_s: float | None = Field(default=None, gt=0)  # of each accelerator; null: its link's or network's


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

    @property
    def pools(self) -> tuple[tuple[Role, Deployment], ...]:
        """Each pool as a deployment of its own, and what its replicas do. InputError for a key it cannot have."""
        if self.disaggregation is None:
            return (("both", self),)
        apart = self.disaggregation
        return (
            ("prefill", self._pool("prefill", apart.prefill, apart.prefill_replicas)),
            ("decode", self._pool("decode", apart.decode, apart.decode_replicas)),
        )

    def _pool(self, role: Role, own: dict[str, object], replicas: int) -> Deployment:
        from catalogs.load import check

        for key in ("model", "replicas", "disaggregation"):
            if key in own:
                raise InputError(f"a pool has no {key} of its own: disaggregation.{role}", own[key], "leave it out")
        keys = self.model_dump(exclude={"disaggregation"}) | own | {"replicas": replicas}
        return check(Deployment, keys, f"disaggregation.{role}")


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """How one replica is cut: data x pipeline x tensor ranks, one accelerator each."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False

    @property
    def accelerators(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def words(self) -> str:
        """ "TP4 x PP2 x DP2 + EP"; what is 1 is left out, but for TP."""
        further = (("PP", self.pipeline_parallel), ("DP", self.data_parallel))
        cut = "".join(f" x {name}{size}" for name, size in further if size > 1)
        return f"TP{self.tensor_parallel}{cut}{' + EP' if self.expert_parallel else ''}"


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
    role: Role = "both"
    site: str = ""  # pools of one site share its hardware
    notices: tuple[str, ...] = ()  # what the reader should know: one sentence each

    @property
    def accelerators_per_replica(self) -> int:
        return self.layout.accelerators

    def filled_in(self, written: Deployment) -> dict[str, Any]:
        """deployment.yaml as it was written, every null filled in. kv_blocks stays null until memory is sized."""
        values = written.model_dump()
        values |= {key: getattr(self, key) for key in values if hasattr(self, key)}
        values |= asdict(self.layout) | asdict(self.limits) | {"kv_blocks": self.limits.kv_blocks or None}
        return values | {"model": self.model.name, "engine": self.engine.name, "hardware": self.hardware.text}


def load_deployment(path: Path) -> Deployment:
    """deployment.yaml (or JSON). Raises InputError for an unreadable file, an unknown key or a value out of range."""
    from catalogs.load import check, read_yaml

    return check(Deployment, read_yaml(Path(path)), Path(path).name)


def resolve(deployment: Deployment) -> Resolved:
    """Looks every name up, fills every null with the engine's default, checks that the sizes fit together.

    Raises InputError naming the broken rule, the value and the nearest valid choice, and where there are several pools.
    Whether the model fits in memory is not decided here: that is an answer (no), not bad input.
    """
    if deployment.disaggregation is not None:
        raise InputError("one kind of replica is looked at here", "disaggregation", "disaggregation: null")
    return resolve_pools(deployment)[0]


def resolve_pools(deployment: Deployment) -> tuple[Resolved, ...]:
    """The same for every pool; one where nothing is disaggregated."""
    from catalogs.resolving import resolve_deployment

    return resolve_deployment(deployment)
