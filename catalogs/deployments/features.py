"""A second place for KV blocks: host memory, and a disk behind it.

Encoder-decoder models: which are served, and what their engine turns off for them.

vLLM V1 serves those whose encoder reads an input of one length, Whisper's 30 seconds of sound. It computes prompts
whole and shares no prefixes (config/scheduler.py), captures graphs of steps without encoders only (gpu_model_runner.py)
and takes no KV connector (v1/core/sched/scheduler.py). BART needs a plugin, T5 is not served.

LoRA adapters: small matrices that a request asks for beside the model's own.

How requests come to the data-parallel ranks of a replica: the engine's way, or what a deployment asks for.

What an engine does with a request whose blocks it needs: compute it again later, or keep them in host memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from catalogs.deployments.compatibility import FeatureContext, feature_with_one_scheduler
from catalogs.deployments.layout import Limits
from catalogs.deployments.options import Lora
from catalogs.deployments.resolved import OffloadTiers
from catalogs.deployments.schema import Deployment
from catalogs.engines.profile import EngineProfile, RankDispatch
from catalogs.errors import InputError
from catalogs.models.spec import ModelSpec
from catalogs.units import GIB

if TYPE_CHECKING:
    from catalogs.deployments.layout import Layout
    from catalogs.hardware.specs import Hardware


#: Of one data-centre NVMe drive, reading: PCIe 4 x4 drives list 6.5 to 7 GB/s. Nothing says which disk a node has.
DISK_BYTES_PER_S: Final = 6.5e9


def resolve_offload(deployment: Deployment, hardware: Hardware, replicas: int) -> OffloadTiers | None:
    """What a deployment asks for. InputError where hardware or host memory cannot have it."""
    asked = deployment.kv_offload
    if asked is None:
        return None
    if deployment.prefix_caching is False:
        raise InputError("KV offload finds blocks by their prefix", "prefix_caching: false", "prefix_caching: null")
    if hardware.accelerator.kind != "gpu":
        raise InputError("KV offload moves blocks from a GPU to its host", hardware.text, "kv_offload: null")
    check_host_memory("kv_offload.host_gib", asked.host_gib, hardware, replicas)
    rate = asked.host_gib_per_s
    return OffloadTiers(
        asked.host_gib * GIB,
        asked.disk_gib * GIB,
        hardware.node.host_bytes_per_s if rate is None else rate * GIB,
        DISK_BYTES_PER_S if asked.disk_gib_per_s is None else asked.disk_gib_per_s * GIB,
    )


def check_host_memory(key: str, gib: float, hardware: Hardware, replicas: int) -> None:
    """InputError where all replicas together ask for more than their hosts have, where that is known."""
    known = hardware.node.host_memory_bytes
    if known is None:
        return
    most = known * hardware.n_nodes / replicas / GIB
    if gib > most:
        raise InputError(
            f"{key} of {replicas} replica(s) is beyond the {known / GIB:.0f} GiB of host memory of each node",
            gib,
            f"{most:.0f}",
        )


def check_encoder(model: ModelSpec) -> None:
    """Raises InputError for a model whose encoder reads text of any length."""
    crosses = any(group.cross_attention for group in model.groups)
    if (model.is_encoder_decoder or crosses) and not model.encoder_tokens:
        rule = "serving covers decoder-only models and encoders of one input length (Whisper), not encoders of text"
        raise InputError(rule, model.name, "whisper-large-v3")


def engine_for_model(model: ModelSpec, engine: EngineProfile, asked: Deployment) -> EngineProfile:
    """The engine as it runs this model. Raises InputError for what it does not do with an encoder."""
    if not model.is_encoder_decoder:
        return engine
    if asked.prefix_caching:
        raise InputError("vLLM shares no prefixes of encoder-decoder models", "prefix_caching: true", "false")
    return replace(
        engine, chunked_prefill=False, prefix_caching=False, graphs_with_prefill=False, holds_longest_prompt=True
    )


def check_disaggregation(model: ModelSpec) -> None:
    """Raises InputError where prompts and outputs would be computed by different replicas."""
    if model.is_encoder_decoder:
        rule = "no KV connector moves the cache of encoder-decoder models: their replicas have the role both"
        raise InputError(rule, model.name, "no disaggregation")


def limits_for_encoder(limits: Limits, model: ModelSpec, asked: Deployment) -> Limits:
    """The token budget holds one encoder's output, which is never cut. Raises InputError where a given one does not."""
    if limits.max_num_batched_tokens >= model.encoder_tokens:
        return limits
    if asked.max_num_batched_tokens is not None:
        rule = f"max_num_batched_tokens is at least the {model.encoder_tokens} positions of an encoder's output"
        raise InputError(rule, asked.max_num_batched_tokens, str(model.encoder_tokens))
    return replace(limits, max_num_batched_tokens=model.encoder_tokens)


#: vLLM's MaxLoRARanks (vllm/config/lora.py).
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def resolve_lora(deployment: Deployment) -> Lora | None:
    """What a deployment asks for. InputError for a rank or a number that cannot be."""
    asked = deployment.lora
    if asked is None:
        return None
    if asked.max_rank not in RANKS:
        nearest = min(RANKS, key=lambda rank: abs(rank - asked.max_rank))
        raise InputError("lora.max_rank must be one of vLLM's ranks", asked.max_rank, str(nearest))
    if asked.in_host < asked.max_loras:
        raise InputError("lora.max_cpu_loras must be at least max_loras", asked.in_host, str(asked.max_loras))
    return asked


def resolve_rank_dispatch(asked: FeatureContext, layout: Layout) -> RankDispatch | None:
    """None where a replica has one rank, which is balanced.

    Raises InputError for a key without ranks, or where only one scheduler for all of them is simulated: beside parts
    that know no other way, and for engines without ranks of their own.
    """
    way, engine = asked.written.rank_dispatch, asked.engine
    if layout.data_parallel == 1:
        if way not in (None, "balanced"):
            rule = "rank_dispatch is for ranks that step together: data_parallel of a mixture-of-experts model"
            raise InputError(rule, way, "rank_dispatch: null")
        return None
    beside = feature_with_one_scheduler(asked)
    alone = f"beside {beside}" if beside else f"for {engine.name}" if engine.rank_dispatch == "balanced" else ""
    if way not in (None, "balanced") and alone:
        raise InputError(f"ranks are simulated as one scheduler {alone}", f"rank_dispatch: {way}", "balanced")
    return way or ("balanced" if alone else engine.rank_dispatch)


#: vLLM V0's `--swap-space`, of each accelerator.
SWAP_SPACE_GIB: Final = 4.0


def resolve_swap_bytes(deployment: Deployment, hardware: Hardware, replicas: int, layout: Layout) -> float:
    """Swap space of each accelerator; 0 where preempted requests are computed again. InputError where the host has not
    so much."""
    if deployment.preemption != "swap":
        if deployment.swap_space_gib is not None:
            raise InputError("swap_space_gib goes with preemption: swap", deployment.swap_space_gib, "preemption: swap")
        return 0.0
    gib = SWAP_SPACE_GIB if deployment.swap_space_gib is None else deployment.swap_space_gib
    if not gib:
        raise InputError("preemption by swap needs swap space", "swap_space_gib: 0", f"{SWAP_SPACE_GIB:g}")
    check_host_memory("swap_space_gib x accelerators", gib * layout.accelerators, hardware, replicas)
    return gib * GIB
