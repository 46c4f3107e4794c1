"""The schema of deployment.yaml: a model on an engine on hardware, as a user writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from catalogs.deployments.encoder_decoders import default_engine
from catalogs.deployments.layout import ALLGATHER_REDUCESCATTER, ROLES, All2All, Role
from catalogs.deployments.speculation import Speculative
from catalogs.engines.profile import RankDispatch, TransferMoment
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.host_copies import PageSize
from catalogs.io.yaml_files import StrictYamlBlock, read_typed_yaml, validate_as
from catalogs.models.media_items import Modality

#: Which steps run in CUDA graphs, by vLLM's names (config/compilation.py, CUDAGraphMode).
CudaGraphMode = Literal["none", "piecewise", "full", "full_decode_only", "full_and_piecewise"]

#: Families of kernels for experts and for attention.
MoeBackend = Literal["triton", "marlin", "cutlass", "deepgemm", "flashinfer", "trtllm"]
GemmBackend = Literal["triton", "cutlass", "deepgemm", "flashinfer"]
AttentionBackend = Literal["fa2", "fa3", "fa4", "flashinfer", "trtllm", "triton", "cudnn", "sdpa", "sage"]

#: Keys that belong to the whole deployment and cannot be set for one pool.
SHARED_KEYS: Final = (
    "disaggregation",
    "encoder_pool",
    "pools",
    "router",
    "router_staleness_s",
    "faults",
    "retries",
)


#: Largest memory or disk of a node (1,000 TiB), so that sizes in bytes stay exact.
MOST_GIB: Final = 1_024_000

#: Shortest age of a router's view; a simulation has an event for each update.
LEAST_STALENESS_S: Final = 1e-4


def check_staleness(value_s: float) -> float:
    """Return the age of a router's view, which is 0 (always current) or at least LEAST_STALENESS_S.

    Raises:
        ValueError: The age is negative, not finite, or shorter.
    """
    if value_s != 0.0 and not LEAST_STALENESS_S <= value_s < float("inf"):
        raise ValueError(f"must be 0 (always current) or at least {LEAST_STALENESS_S:g} seconds")
    return value_s


class KvOffload(StrictYamlBlock):
    """The `kv_offload` block of deployment.yaml: host memory and disk as further tiers for KV blocks.

    Sizes are per replica, as with `--kv-offloading-size`. Rates that are null are those of the node; copies to the host
    are as fast as those from it unless `to_host_gib_per_s` is given. `host_pages` takes the rates that were measured on
    this machine for host memory with pages of that size. With `shared`, the sizes of all replicas are one pool, in
    which each replica finds what the others have computed, as with LMCache and Mooncake Store; blocks are spread evenly
    over the nodes.
    """

    host_gib: Annotated[float, Field(gt=0, le=MOST_GIB)]
    disk_gib: Annotated[float, Field(ge=0, le=MOST_GIB)] = 0.0
    host_gib_per_s: PositiveFloat | None = None  # per accelerator, one direction
    to_host_gib_per_s: PositiveFloat | None = None  # null: as host_gib_per_s
    host_pages: PageSize | None = None
    disk_gib_per_s: PositiveFloat | None = None  # per replica, one direction
    shared: bool = False  # one pool for all replicas, prefill and decode replicas included
    pool_gib_per_s: PositiveFloat | None = None  # per accelerator, one direction, to the pool's part on other nodes
    expire_s: Annotated[float, Field(ge=0)] | None = None  # from when a block was stored; null: blocks do not expire


#: The priority of KV blocks without another one (TensorRT-LLM, `KvCacheRetentionConfig.kDefaultRetentionPriority`).
DEFAULT_PRIORITY: Final = 35


class KvRetention(StrictYamlBlock):
    """The `kv_retention` block of deployment.yaml: the `KvCacheRetentionConfig` that every request of TensorRT-LLM has.

    The blocks of the first `prompt_tokens` tokens of a prompt, or all blocks if it is null, have a priority above the
    default, so that all others are evicted before them. The priority ends `duration_s` after a block was released.
    """

    prompt_tokens: PositiveInt | None = None
    priority: Annotated[int, Field(gt=DEFAULT_PRIORITY, le=100)] = 100
    duration_s: Annotated[float, Field(ge=0)] | None = None  # null: without an end


class Lora(StrictYamlBlock):
    """The `lora` block of deployment.yaml, with the names of vLLM's flags.

    `adapters` is the number of adapters that the deployment serves; they are numbered from 0.
    """

    adapters: PositiveInt
    max_loras: PositiveInt = 1  # adapters in one batch, and slots in device memory
    max_rank: PositiveInt = 16  # the size of every slot, and the assumed rank of every adapter
    max_cpu_loras: PositiveInt | None = None  # adapters kept in host memory; null: max_loras

    @property
    def in_host(self) -> int:
        """Return the number of adapters kept in host memory."""
        return self.max_cpu_loras or self.max_loras


class Multimodal(StrictYamlBlock):
    """The `multimodal` block of deployment.yaml: the engine loads the towers and accepts images, videos and audio.

    `modalities` are the kinds of items that the engine accepts; null: all that the model reads. An engine reserves
    encoder budget and memory for the largest item of each of them. `encoder_parallel` is vLLM's
    `--mm-encoder-tp-mode`: tensor ranks divide the weights of the towers, or each of them holds all of them and
    computes its share of the items (`data`). `encoder_cache_tokens` are the embeddings that the encoder cache holds;
    null: as many as the encoder budget of a step.
    """

    modalities: Annotated[tuple[Modality, ...], Field(strict=False)] | None = None
    encoder_parallel: Literal["weights", "data"] = "weights"
    encoder_cache_tokens: PositiveInt | None = None


class Disaggregation(StrictYamlBlock):
    """The `disaggregation` block: prompts and decoding on separate replicas.

    `prefill` and `decode` hold the keys of deployment.yaml in which that pool differs. A pool with its own `hardware`
    key is placed there; otherwise the pools share the hardware of the deployment.
    """

    prefill_replicas: PositiveInt
    decode_replicas: PositiveInt
    prefill: dict[str, object] = Field(default_factory=dict)
    decode: dict[str, object] = Field(default_factory=dict)
    transfer_gb_per_s: PositiveFloat | None = None  # null: rate of the link or network
    transfer: TransferMoment | None = None  # null: the engine's default
    max_local_prefill_tokens: PositiveInt | None = None  # prompts up to this length stay on a decode replica
    max_prefill_queue: PositiveInt | None = None  # at this queue length per prefill replica, all prompts are


#: The keys of deployment.yaml in which the replicas of an encoder pool may differ. They have one layout of their own:
#: nothing that concerns the language model, its KV cache or its parallelism applies to them.
ENCODE_KEYS: Final = (
    "hardware",
    "tensor_parallel",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "multimodal",
)

#: The keys of the deployment that its encoder replicas take over.
_KEPT_BY_ENCODERS: Final = ("model", "engine", "hardware", "weight_dtype", "max_model_len", "multimodal")


class EncoderPool(StrictYamlBlock):
    """The `encoder_pool` block: replicas that run only the towers, before all other replicas.

    `encode` holds the keys of deployment.yaml in which they differ (`ENCODE_KEYS`). With its own `hardware` key the
    pool is placed there; otherwise it shares that of the deployment. By default each replica is one accelerator.
    """

    replicas: PositiveInt
    encode: dict[str, object] = Field(default_factory=dict)
    transfer_gb_per_s: PositiveFloat | None = None  # null: rate of the link or network


class PoolDeployment(NamedTuple):
    """One pool of a deployment, written as a deployment."""

    role: Role
    written: Deployment
    site: str  # pools of one site share its hardware


class Deployment(StrictYamlBlock):
    """The contents of deployment.yaml; null means the engine's default."""

    model: str
    engine: str = "vllm"
    hardware: str
    replicas: PositiveInt = 1
    tensor_parallel: PositiveInt = 1
    pipeline_parallel: PositiveInt = 1
    pipeline_layers: list[PositiveInt] | None = None  # layers of each pipeline stage; null: as the engine divides them
    data_parallel: PositiveInt = 1
    expert_parallel: bool = False
    context_parallel: PositiveInt = 1  # ranks that share each prompt's tokens
    decode_context_parallel: PositiveInt = 1  # ranks that share each sequence's KV, among tensor or context ranks
    all2all_backend: All2All = ALLGATHER_REDUCESCATTER
    redundant_experts: NonNegativeInt = 0  # copies of popular experts in each layer; 0: no load balancer
    two_batch_overlap: bool = False  # a step runs as two halves, whose exchange with experts and kernels overlap
    api_server_count: PositiveInt | None = (
        None  # API server processes of each replica; null: one per data-parallel rank
    )
    rank_dispatch: RankDispatch | None = None  # how requests reach data-parallel ranks; null: the engine's default
    disaggregation: Disaggregation | None = None
    encoder_pool: EncoderPool | None = None  # null: the replicas that compute prompts encode their items themselves
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    max_num_seqs: PositiveInt | None = None
    max_num_batched_tokens: PositiveInt | None = None
    max_model_len: PositiveInt | None = None
    block_size: PositiveInt | None = None
    kv_blocks: PositiveInt | None = None
    prefix_caching: bool | None = None
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    async_scheduling: bool | None = None  # --async-scheduling; null: the default of the engine version
    activation_dtype: Literal["bf16", "mxfp8"] | None = None  # inputs of experts in MXFP4; null: the engine's default
    fused_allreduce: bool | None = None  # the all-reduce also normalises, in CUDA graphs; null: the engine's default
    enforce_eager: bool | None = None  # neither torch.compile nor CUDA graphs; null: the engine's default
    cudagraph_mode: CudaGraphMode | None = None  # which steps run in CUDA graphs; null: the engine's default
    cudagraph_capture_sizes: list[PositiveInt] | None = None  # tokens of the captured batches; null: the engine's
    max_cudagraph_capture_size: PositiveInt | None = None  # the largest captured batch; null: the engine's default
    gemm_backend: GemmBackend | None = None  # kernels of dense products in block-scaled FP8; null: the engine's choice
    moe_backend: MoeBackend | None = None  # kernels of experts; null: the engine's choice
    attention_backend: AttentionBackend | None = None  # kernels of attention; null: the engine's choice
    sampling: Literal["random", "top_p", "greedy"] = "random"  # sampling in requests; random: temperature only
    kv_offload: KvOffload | None = None  # KV blocks are also kept in host memory and on disk
    kv_retention: KvRetention | None = None  # KV blocks that are evicted last; null: those that were used last
    preemption: Literal["recompute", "swap"] | None = None
    swap_space_gib: Annotated[float, Field(ge=0, le=MOST_GIB)] | None = (
        None  # host memory of each accelerator for swapped requests
    )
    lora: Lora | None = None
    multimodal: Multimodal | None = None  # null: only text is served, unless the workload sends media
    speculative: Speculative | None = None  # catalogs/deployments/speculation.py
    pools: list[dict[str, object]] | None = None  # kinds of replica behind one router: the keys that differ
    router: str | dict[str, object] = "round_robin"  # catalogs/deployments/routing.py
    router_staleness_s: Annotated[float, AfterValidator(check_staleness)] = 0.0  # age of the router's view of replicas
    autoscaling: dict[str, object] | None = None  # catalogs/deployments/autoscaling.py
    queue: dict[str, object] | None = None  # catalogs/deployments/queueing.py
    faults: list[dict[str, object]] | None = None  # catalogs/deployments/faults.py
    retries: dict[str, object] | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_engine(cls, values: Any) -> Any:
        """Fill in the engine of a model that the usual engine does not serve (T5, BART, NLLB)."""
        named = isinstance(values, dict) and all(isinstance(values.get(key), str) for key in ("model", "hardware"))
        if not named or "engine" in values:
            return values
        found = default_engine(values["model"], values["hardware"])
        return values if found == cls.model_fields["engine"].default else values | {"engine": found}

    @property
    def slices(self) -> tuple[PoolDeployment, ...]:
        """Return each pool of the deployment, written as a deployment.

        Raises:
            InputError: A pool has a key that it cannot have.
        """
        if self.encoder_pool is not None:
            return self._with_encoders(self.encoder_pool)
        disaggregation = self.disaggregation
        if self.pools is not None and disaggregation is not None:
            raise InputError("pools and disaggregation cannot be combined", hint="give a pool role: prefill")
        if self.pools is not None:
            if not self.pools:
                raise InputError("pools must hold at least one pool", "[]", "pools: null")
            return tuple(self._pool(own, i) for i, own in enumerate(self.pools))
        if disaggregation is None:
            return (PoolDeployment("both", self, ""),)
        return (
            self._half("prefill", disaggregation.prefill, disaggregation.prefill_replicas),
            self._half("decode", disaggregation.decode, disaggregation.decode_replicas),
        )

    def _with_encoders(self, pool: EncoderPool) -> tuple[PoolDeployment, ...]:
        """Return the pool of encoders, and behind it the pools of a deployment without one."""
        where = "encoder_pool.encode"
        if self.pools is not None:
            raise InputError("pools and encoder_pool cannot be combined", hint="use disaggregation or replicas")
        for key in pool.encode:
            if key not in ENCODE_KEYS:
                rule = f"the replicas of an encoder pool cannot set this key: {where}"
                raise InputError(rule, key, nearest_name(key, ENCODE_KEYS) or ", ".join(ENCODE_KEYS))
        served = self if self.multimodal is not None else self.model_copy(update={"multimodal": Multimodal()})
        keys = {key: value for key, value in served.model_dump().items() if key in _KEPT_BY_ENCODERS}
        encode = validate_as(Deployment, keys | pool.encode | {"replicas": pool.replicas}, where)
        first = PoolDeployment("encode", encode, "encode" if encode.hardware != self.hardware else "")
        return (first, *served.model_copy(update={"encoder_pool": None}).slices)

    def _half(self, role: Role, own: dict[str, object], replicas: int) -> PoolDeployment:
        where = f"disaggregation.{role}"
        _refuse(own, ("model", "replicas"), where)
        pool = self._slice(own | {"replicas": replicas}, where)
        return PoolDeployment(role, pool, role if pool.hardware != self.hardware else "")

    def _pool(self, own: dict[str, object], i: int) -> PoolDeployment:
        role = own.get("role", "both")
        found: Role | None = next((known for known in ROLES if known == role), None)
        if found is None:
            nearest = nearest_name(str(role), ROLES) or ", ".join(ROLES)
            raise InputError(f"pools[{i}]: unknown role", role, nearest)
        keys = {key: value for key, value in own.items() if key != "role"}
        return PoolDeployment(found, self._slice(keys, f"pools[{i}]"), f"pool {i}" if "hardware" in own else "")

    def _slice(self, own: dict[str, object], where: str) -> Deployment:
        _refuse(own, SHARED_KEYS, where)
        return validate_as(Deployment, self.model_dump(exclude=set(SHARED_KEYS)) | own, where)


def _refuse(own: dict[str, object], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if key in own:
            raise InputError(f"a pool cannot set {key}: {where}", own[key], hint="leave it out")


def load_deployment(path: Path) -> Deployment:
    """Read and check a deployment.yaml (or JSON) file.

    Raises:
        InputError: The file is unreadable, a key is unknown, or a value is out of range.
    """
    return deployment_of_keys(read_typed_yaml(Path(path)), Path(path).name)


#: Keys of an answer of `plan --json`, which is easily given in place of the deployment that it recommends.
_ANSWER_KEYS: Final = frozenset({"schema_version", "request", "feasible"})


def deployment_of_keys(data: dict[str, Any], where: str) -> Deployment:
    """Return the deployment with these keys; `where` is the file in messages.

    Where there are pools, a model or hardware that only the pools name is taken from the first pool.

    Raises:
        InputError: A key is unknown, a value is out of range, or the keys are those of an answer.
    """
    if data.keys() >= _ANSWER_KEYS:
        hint = "write the deployment with plan ... --deployment-out FILE.yaml, or its files with plan deploy"
        raise InputError("this is an answer of plan, not a deployment", where, hint=hint)
    pools = data.get("pools")
    if isinstance(pools, list) and pools and isinstance(pools[0], dict):
        data = {key: pools[0][key] for key in ("model", "hardware") if key in pools[0]} | data
    return validate_as(Deployment, data, where)
