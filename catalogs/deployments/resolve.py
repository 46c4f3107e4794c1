"""Resolution of a deployment: names are looked up, nulls filled with defaults, and sizes checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from catalogs.deployments import encoder_decoders
from catalogs.deployments.autoscaling import Autoscaling, parse_autoscaling
from catalogs.deployments.engine_settings import EngineSettings, for_attention
from catalogs.deployments.layout import Limits
from catalogs.deployments.queueing import parse_queueing
from catalogs.deployments.resolution import encoder_pools, optional_blocks, parallelism
from catalogs.deployments.resolution.compatibility import FeatureContext, check_compatibility
from catalogs.deployments.resolution.drafting import resolve_speculation
from catalogs.deployments.resolution.parallelism import check_transfer
from catalogs.deployments.resolution.scale_blocks import check_scale_blocks
from catalogs.deployments.resolution.stages import resolve_stage_layers
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment, PoolDeployment
from catalogs.deployments.speculation import Speculation
from catalogs.engines.files import load_engine
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator, Hardware
from catalogs.models.catalog import load_model
from catalogs.models.spec import ModelSpec
from catalogs.units import DTYPE_BYTES


def resolve(deployment: Deployment) -> ResolvedDeployment:
    """Return the deployment with every name looked up and every null filled with the engine's default.

    Whether the model fits in memory is not checked here: that is a result, not invalid input.

    Raises:
        InputError: A rule is broken, or the deployment has several pools.
    """
    for key in ("disaggregation", "encoder_pool", "pools"):
        if getattr(deployment, key) is not None:
            raise InputError("only one kind of replica is supported here", key, f"{key}: null")
    return resolve_pools(deployment)[0]


def resolve_pools(deployment: Deployment, names: CatalogLookup | None = None) -> tuple[ResolvedDeployment, ...]:
    """Return each pool of the deployment, resolved; there is one pool where nothing is disaggregated.

    Args:
        deployment: The deployment as it is written.
        names: The model, engine and hardware of every pool, where they have been looked up already.

    Raises:
        InputError: A rule is broken, or the pools together do not fit in the hardware.
    """
    pools = tuple(_in_role(_resolve_pool(part.written, names), part) for part in deployment.slices)
    if deployment.encoder_pool is not None:
        pools = encoder_pools.with_encoders(pools)
    shared = [pool for pool in pools if not pool.site]
    requested = sum(pool.most_replicas * pool.layout.accelerators for pool in shared)
    if shared and requested > shared[0].hardware.n_accelerators:
        most = shared[0].hardware.n_accelerators
        raise InputError(f"the pools together must fit in the {most} of {deployment.hardware}", requested, str(most))
    if deployment.faults and any(pool.offload is not None and pool.offload.shared for pool in pools):
        rule = "a KV pool that replicas share is not simulated together with faults, which would take parts of it away"
        raise InputError(rule, "kv_offload.shared: true", "kv_offload.shared: false")
    return _check_handover(pools)


#: Sizes of KV blocks that engines accept, in tokens.
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

#: Weight dtypes that are multiplied in 16 bit on every device, although they are stored narrower.
_WEIGHT_ONLY = frozenset({"int4"})

_SIXTEEN_BIT = frozenset({"bf16", "fp16"})

#: Other spellings of dtypes, used to suggest the nearest valid choice.
_SPELLINGS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "nvfp4": "fp4", "mxfp4": "fp4"}


@dataclass(frozen=True, slots=True)
class CatalogLookup:
    """The catalog entries that the names of a deployment refer to."""

    model: ModelSpec
    engine: EngineProfile
    hardware: Hardware

    @classmethod
    def of(cls, model: str, engine: str, hardware: str) -> CatalogLookup:
        """Look up a model, an engine and hardware by name.

        Raises:
            InputError: A name is unknown; the message names the nearest one.
        """
        return cls.on(parse_hardware(hardware), model, engine)

    @classmethod
    def on(cls, hardware: Hardware, model: str, engine: str) -> CatalogLookup:
        """Look up a model and an engine for hardware that has been looked up already.

        Raises:
            InputError: A name is unknown, and the message names the nearest one; or the engine does not run on the
                hardware.
        """
        unit = hardware.accelerator
        found, profile = load_model(model), load_engine(engine).on(unit.kind)
        if not found.encodes_prompt and not profile.runs_on_device(unit.kind, unit.maker):
            rule = f"{profile.name} runs on {', '.join(profile.runs_on)} only, not on {unit.full_name}"
            raise InputError(rule, hardware.text, "engine: vllm")
        profile = profile.for_model(found.architecture, unit)
        return cls(found, encoder_decoders.engine_for_model(found, profile), hardware)

    @property
    def default_limits(self) -> tuple[int, int]:
        """Return the engine's default (max_num_batched_tokens, max_num_seqs) on this device, per rank on CPUs."""
        unit = self.hardware.accelerator
        return self.engine.default_limits(unit.memory_bytes, unit.name, unit.kind)


def _in_role(pool: ResolvedDeployment, part: PoolDeployment) -> ResolvedDeployment:
    """Return a pool with its role, its site and the engine's defaults for that role."""
    if part.role == "prefill":
        ahead = pool.engine.async_scheduling and pool.engine.prefills_ahead
        dispatch = optional_blocks.prefill_rank_dispatch(pool, part.written.rank_dispatch)
        pool = replace(pool, engine=replace(pool.engine, async_scheduling=ahead), rank_dispatch=dispatch)
    return replace(pool, role=part.role, site=part.site)


def _check_handover(pools: tuple[ResolvedDeployment, ...]) -> tuple[ResolvedDeployment, ...]:
    """Check that prefill and decode pools of a model store KV in the same format."""
    for model in dict.fromkeys(pool.model.name for pool in pools):
        disaggregated = [pool for pool in pools if pool.model.name == model and pool.role in ("prefill", "decode")]
        dtypes = list(dict.fromkeys(pool.kv_dtype for pool in disaggregated))
        if len(dtypes) > 1:
            raise InputError("prefill and decode pools must use the same kv_dtype", " and ".join(dtypes), dtypes[0])
        drafters = {pool.speculation.draft if pool.speculation else None for pool in disaggregated}
        if len(drafters) > 1:
            requested = "speculative in only one of them"
            raise InputError("prefill and decode pools must use the same drafter", requested, hint="set it for both")
        for prefill, decode in product(*([p for p in disaggregated if p.role == r] for r in ("prefill", "decode"))):
            if prefill.engine.policy == decode.engine.policy:
                check_transfer(decode.model, decode.engine, prefill.layout, decode.layout)
        if disaggregated:
            encoder_decoders.check_disaggregation(disaggregated[0].model)
    return pools


def _resolve_pool(deployment: Deployment, names: CatalogLookup | None = None) -> ResolvedDeployment:
    names = names or CatalogLookup.of(deployment.model, deployment.engine, deployment.hardware)
    encoder_decoders.check_engine(names.model, names.engine, names.hardware.accelerator)
    encoder_decoders.check_tensor_parallel(names.model, names.engine, deployment.tensor_parallel)
    encoder_decoders.check_prefix_caching(names.model, deployment.prefix_caching)
    settings = EngineSettings.of(deployment)
    unset = names.engine
    names = replace(names, engine=settings.applied(unset, names.model, names.hardware.accelerator))
    names = replace(names, engine=for_attention(names.engine, names.model))
    if names.engine.modelopt_checkpoints:
        names = replace(names, model=names.model.with_modelopt_checkpoints())
    requested = FeatureContext(deployment, names.model, names.engine)
    check_compatibility(requested)
    speculation = resolve_speculation(deployment, names.engine, names.model)
    if speculation is not None:
        deployment, names = _speculating(deployment, speculation, names)
    own = encoder_decoders.notices(names.model, names.engine) + names.model.notices + names.hardware.notices
    own += speculation.notices if speculation else ()
    weight_dtype, weight_notices = _weight_dtype(deployment.weight_dtype, names)
    set_notices = settings.notices(names.model.weight_format(weight_dtype), unset, names.hardware.accelerator)
    kv_dtype, kv_notices = _kv_dtype(deployment.kv_dtype, weight_dtype, names)
    replicas, layout, layout_notices = parallelism.resolve_layout(deployment, names.model, names.hardware)
    scaling = _scaling(deployment, replicas, names)
    layout_notices += check_scale_blocks(names.model, weight_dtype, layout, names.engine)
    shards = layout.tensor_parallel * layout.pipeline_parallel
    parallelism.check_engine(layout, names.engine)
    step_tokens = speculation.step_tokens if speculation else 1
    limits = _limits(deployment, names, shards, layout.data_parallel, step_tokens)
    limits = encoder_decoders.limits_for_encoder(limits, names.model, deployment.max_num_batched_tokens)
    memory_bytes = names.hardware.accelerator.memory_bytes
    share = names.engine.default_utilization(memory_bytes, limits.max_num_batched_tokens, shards)
    share *= optional_blocks.tower_share(deployment, names.model, names.engine)
    engine_notices = (f"{names.engine.name}: {names.engine.notice}",) if names.engine.notice else ()
    return ResolvedDeployment(
        model=names.model,
        engine=names.engine,
        hardware=names.hardware,
        replicas=replicas,
        layout=layout,
        limits=limits,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        gpu_memory_utilization=deployment.gpu_memory_utilization or share,
        sampling=deployment.sampling,
        queueing=parse_queueing(deployment.queue, names.engine, limits.max_num_seqs),
        scaling=scaling,
        offload=optional_blocks.resolve_offload(deployment, names.hardware, replicas),
        kv_retention=optional_blocks.resolve_retention(deployment, limits.prefix_caching),
        lora=optional_blocks.resolve_lora(deployment),
        multimodal=optional_blocks.resolve_multimodal(deployment, names.model, names.engine),
        speculation=speculation,
        rank_dispatch=optional_blocks.resolve_rank_dispatch(requested, layout),
        api_server_count=optional_blocks.resolve_api_servers(requested, names.hardware, layout),
        swap_bytes=optional_blocks.resolve_swap_bytes(deployment, names.hardware, replicas, layout),
        stage_layers=resolve_stage_layers(deployment.pipeline_layers, layout, names.model, names.engine),
        settings=settings,
        notices=engine_notices + set_notices + own + weight_notices + kv_notices + layout_notices,
    )


def _speculating(
    deployment: Deployment, requested: Speculation, names: CatalogLookup
) -> tuple[Deployment, CatalogLookup]:
    """Return the deployment and the engine with the scheduling and the sequence limit that speculation implies."""
    ahead = names.engine.async_scheduling and names.engine.speculates[requested.method] and requested.topk == 1
    engine = replace(names.engine, async_scheduling=ahead)
    if deployment.max_num_seqs is None and engine.speculation_max_num_seqs is not None:
        deployment = deployment.model_copy(update={"max_num_seqs": engine.speculation_max_num_seqs})
    return deployment, replace(names, engine=engine)


def _scaling(deployment: Deployment, replicas: int, names: CatalogLookup) -> Autoscaling | None:
    """Return the autoscaling options; the largest number of replicas must fit in the hardware."""
    if deployment.autoscaling is None:
        return None
    found = parse_autoscaling(deployment.autoscaling, replicas)
    grown = deployment.model_copy(update={"replicas": found.max_replicas})
    parallelism.resolve_layout(grown, names.model, names.hardware)
    return found


def check_dtype(rule: str, dtype: str) -> None:
    """Check that a number format is known.

    Raises:
        InputError: It is not; the error has the given rule and the nearest format.
    """
    if dtype not in DTYPE_BYTES:
        raise InputError(rule, dtype, _SPELLINGS.get(dtype.lower()) or nearest_name(dtype, DTYPE_BYTES) or "bf16")


def _sixteen_bit(accelerator: Accelerator) -> str:
    """Return the 16-bit dtype of a device: vLLM runs bf16 checkpoints in fp16 on GPUs without bf16 (before Ampere)."""
    return "fp16" if accelerator.kind == "gpu" and "bf16" not in accelerator.peak_flops else "bf16"


def _weight_dtype(requested: str | None, names: CatalogLookup) -> tuple[str, tuple[str, ...]]:
    """Return the dtype that weights are stored in, and notices about it.

    Where the device cannot multiply this dtype, weights stay narrow in memory and are multiplied in 16 bit, as vLLM's
    Marlin kernels do (fp8 on A100, fp4 on H100); a notice states this.
    """
    dtype, unit = requested or names.model.weight_dtype, names.hardware.accelerator
    check_dtype("unknown weight_dtype", dtype)
    wide = _sixteen_bit(unit)
    if dtype in _SIXTEEN_BIT and dtype not in unit.peak_flops and unit.kind == "gpu" and wide != dtype:
        return wide, (f"{unit.name} has no {dtype}: the engine runs the model in {wide}",)
    if dtype in unit.peak_flops or dtype in _WEIGHT_ONLY or dtype in _SIXTEEN_BIT:
        return dtype, ()
    return dtype, (f"{unit.name} has no {dtype} arithmetic: weights are stored in {dtype} and multiplied in {wide}",)


def _kv_dtype(requested: str | None, weight_dtype: str, names: CatalogLookup) -> tuple[str, tuple[str, ...]]:
    """Return the dtype of the KV cache, and notices about it.

    The default is what the checkpoint declares, else what the engine chooses for the model on this accelerator
    (`EngineProfile.default_kv_dtype`), else the dtype of the activations.
    """
    unit = names.hardware.accelerator
    declared = names.model.weight_format(weight_dtype).kv_dtype
    if requested is None and declared in unit.peak_flops and declared in names.engine.kv_dtypes:
        notice = f"{declared} KV cache, as {weight_dtype} checkpoints of it declare; set kv_dtype if yours does not"
        return str(declared), (notice,)
    default = names.engine.default_kv_dtype
    if requested is None and default is not None:
        return default, (f"{default} KV cache, the default of {names.engine.name} for this model on this accelerator",)
    if requested is None:
        return (weight_dtype if weight_dtype in ("fp32", *_SIXTEEN_BIT) else _sixteen_bit(unit)), ()
    if requested not in names.engine.kv_dtypes:
        check_dtype("unknown kv_dtype", requested)
        near = nearest_name(requested, names.engine.kv_dtypes) or names.engine.kv_dtypes[0]
        raise InputError(f"{names.engine.name} has no such kv_dtype", requested, near)
    if requested == "fp8" and "fp8" not in unit.peak_flops:
        notice = f"{unit.name} has no fp8 arithmetic: the KV cache is stored in fp8 and attended to in 16 bit"
        return requested, (notice,)
    return requested, ()


def _limits(
    deployment: Deployment, names: CatalogLookup, shards: int, attention_ranks: int, step_tokens: int
) -> Limits:
    """Return the limits of one replica; `step_tokens` are the tokens that each decode brings into a step."""
    longest, block_size = names.model.longest_sequence_tokens, deployment.block_size or names.engine.block_size_tokens
    max_model_len = deployment.max_model_len or longest
    if max_model_len > longest:
        each = ", half of them the decoder's" if names.model.encodes_prompt else ""
        rule = f"max_model_len exceeds the {longest} positions of {names.model.name}{each}"
        raise InputError(rule, max_model_len, str(longest))
    if deployment.block_size is not None and block_size not in BLOCK_SIZES:
        nearest = min(BLOCK_SIZES, key=lambda size: abs(size - block_size))
        raise InputError("block_size must be a power of two up to 256 tokens", block_size, str(nearest))
    if deployment.prefix_caching and not names.engine.shares_prefixes:
        rule = f"the prompt reuse of {names.engine.name} is not supported yet"
        raise InputError(rule, "prefix_caching: true", "false")
    tokens, seqs = _batch_limits(deployment, names, shards, attention_ranks, max_model_len)
    if deployment.max_num_seqs is None:
        seqs = max(1, min(seqs, tokens // step_tokens))
    if seqs * step_tokens > tokens:
        rule = f"max_num_batched_tokens must hold {step_tokens} tokens of each of max_num_seqs ({seqs}) sequences"
        raise InputError(rule, tokens, f"max_num_seqs: {max(1, tokens // step_tokens)}")
    return Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=max_model_len,
        block_size=block_size,
        kv_blocks=deployment.kv_blocks or 0,
        prefix_caching=_caches_prefixes(names) if deployment.prefix_caching is None else deployment.prefix_caching,
    )


def _caches_prefixes(names: CatalogLookup) -> bool:
    """Return whether the engine caches the prefixes of the model by default."""
    engine = names.engine
    return engine.prefix_caching and (engine.caches_states or not names.model.has_recurrent_layers)


def _batch_limits(
    deployment: Deployment, names: CatalogLookup, shards: int, attention_ranks: int, max_model_len: int
) -> tuple[int, int]:
    """Return (max_num_batched_tokens, max_num_seqs) of one data-parallel rank.

    Default values always let one step hold a token of every sequence, since vLLM lowers the default sequence count to
    the token budget; two given numbers that break this rule are refused.
    """
    unit = names.hardware.accelerator
    rule = names.engine.limits_rule(unit.memory_bytes, unit.name, unit.kind)
    scale, sharing = shards if rule.per_rank else 1, attention_ranks if names.engine.ranks_share_limits else 1
    seqs = deployment.max_num_seqs or max(1, rule.max_num_seqs * scale // sharing)
    most = max(deployment.max_num_seqs or 1, rule.max_num_batched_tokens * scale // sharing)
    tokens = deployment.max_num_batched_tokens or min(most, seqs * max_model_len)
    longest = min(max_model_len, names.model.max_position_tokens)
    if names.engine.holds_longest_prompt and tokens < longest:
        if deployment.max_num_batched_tokens is not None:
            least = "the positions of the encoder" if names.model.encodes_prompt else "max_model_len"
            whole = f"{names.engine.name} computes prompts whole: max_num_batched_tokens must be at least {least}"
            raise InputError(whole, tokens, str(longest))
        tokens = longest
    if deployment.max_num_seqs is None:
        seqs = min(seqs, tokens)
    if tokens < seqs:
        raise InputError(f"max_num_batched_tokens must be at least max_num_seqs ({seqs})", tokens, str(seqs))
    return tokens, seqs
