"""Resolution of the optional features of a deployment, such as KV offload, retention, multimodal input and LoRA."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from catalogs.deployments.resolution.compatibility import FeatureContext, feature_with_one_scheduler
from catalogs.deployments.resolved import OffloadTiers, ResolvedDeployment
from catalogs.deployments.schema import Deployment, KvRetention, Lora, Multimodal
from catalogs.engines.profile import EngineProfile, RankDispatch
from catalogs.errors import InputError
from catalogs.hardware.host_copies import copy_rates
from catalogs.models.image_rules import NativeResolution
from catalogs.models.spec import ModelSpec
from catalogs.ui.words import counted
from catalogs.units import GIB

if TYPE_CHECKING:
    from catalogs.deployments.layout import Layout
    from catalogs.hardware.specs import Hardware


#: Read rate of one data-centre NVMe drive: PCIe 4 x4 drives list 6.5 to 7 GB/s. The disk of a node is not known.
DISK_BYTES_PER_S: Final = 6.5e9


def resolve_offload(deployment: Deployment, hardware: Hardware, replicas: int) -> OffloadTiers | None:
    """Return the host and disk tiers of the KV offload that a deployment requests, or None where it requests none.

    Raises:
        InputError: The hardware does not support offload, prefix caching is off, host memory is too small, or the rate
            of a pool is given without one.
    """
    requested = deployment.kv_offload
    if requested is None:
        return None
    if deployment.prefix_caching is False:
        rule = "KV offload needs prefix caching, by which offloaded blocks are found again"
        raise InputError(rule, "prefix_caching: false", "prefix_caching: null")
    if hardware.accelerator.kind != "gpu":
        rule = "KV offload needs a GPU: the KV cache of a CPU is in host memory already"
        raise InputError(rule, hardware.text, "kv_offload: null")
    check_host_memory("kv_offload.host_gib", requested.host_gib, hardware, replicas)
    rate, back, between = requested.host_gib_per_s, requested.to_host_gib_per_s, requested.pool_gib_per_s
    if requested.host_pages is not None and (rate, back) != (None, None):
        rule = "kv_offload takes the rates of host_pages or given rates, not both"
        raise InputError(rule, f"host_pages: {requested.host_pages}", "host_pages: null")
    if between is not None and not requested.shared:
        raise InputError("kv_offload.pool_gib_per_s needs a pool that replicas share", between, "shared: true")
    if requested.expire_s is not None and not requested.shared:
        rule = "kv_offload.expire_s needs a pool that replicas share: blocks of a replica's own tiers do not expire"
        raise InputError(rule, requested.expire_s, "shared: true")
    to_host, to_device = copy_rates(hardware.node, requested.host_pages)
    if rate is not None:
        to_host = to_device = rate * GIB
    if back is not None:
        to_host = back * GIB
    tiers = OffloadTiers(
        requested.host_gib * GIB,
        requested.disk_gib * GIB,
        to_device,
        DISK_BYTES_PER_S if requested.disk_gib_per_s is None else requested.disk_gib_per_s * GIB,
        None if to_host == to_device else to_host,
    )
    if not requested.shared:
        return tiers
    network = hardware.node.network_bytes_per_s if between is None else between * GIB
    return replace(tiers, shared=True, pool_bytes_per_s=network, expire_s=requested.expire_s)


def resolve_retention(deployment: Deployment, prefix_caching: bool) -> KvRetention | None:
    """Return the blocks that a deployment evicts last, or None where it names none.

    Raises:
        InputError: Prefix caching is off.
    """
    if deployment.kv_retention is not None and not prefix_caching:
        rule = "kv_retention needs prefix caching, by which kept blocks are found again"
        raise InputError(rule, "prefix_caching: false", "prefix_caching: true")
    return deployment.kv_retention


def check_host_memory(key: str, gib: float, hardware: Hardware, replicas: int) -> None:
    """Check that all replicas together request no more host memory (GiB) than their nodes have, where that is known.

    Raises:
        InputError: `gib` per replica exceeds the host memory available for each replica.
    """
    known = hardware.node.host_memory_bytes
    if known is not None and gib > (most := known * hardware.n_nodes / replicas / GIB):
        rule = f"{key} of {counted(replicas, 'replica')} exceeds the {known / GIB:.0f} GiB of host memory of each node"
        raise InputError(rule, gib, f"{most:.0f}")


def resolve_multimodal(deployment: Deployment, model: ModelSpec, engine: EngineProfile) -> Multimodal | None:
    """Return how the deployment serves images, videos and audio; None if it serves text only.

    Raises:
        InputError: The catalog knows no tower of the model, or none for a kind of item, or the engine serves none.
    """
    wanted = deployment.multimodal
    if wanted is not None and not model.towers:
        raise InputError("the catalog knows no tower of this model", model.name, "multimodal: null")
    missing = [m for m in (wanted.modalities or ()) if m not in model.modalities] if wanted is not None else []
    if missing or (wanted is not None and wanted.modalities == ()):
        rule = f"multimodal.modalities of {model.name} are some of {', '.join(model.modalities)}"
        raise InputError(rule, missing[0] if missing else "[]", f"[{model.modalities[0]}]")
    unserved = [modality for modality in model.modalities if modality not in engine.modalities]
    served = engine.audio_architectures
    if served is not None and "audio" in model.modalities and model.architecture not in served:
        unserved = ["audio"]
    if wanted is not None and unserved:
        rule = f"{engine.name} serves no {model.architecture}, which reads {unserved[0]}"
        raise InputError(rule, model.name, "engine: vllm")
    return wanted


def tower_share(deployment: Deployment, model: ModelSpec, engine: EngineProfile) -> float:
    """Return the factor on the default fraction of memory of an engine that leaves space for a vision tower.

    `adjust_mem_fraction_for_vlm` of SGLang's server_args.py: 0.95, and 10 % less for each further ViT-L/14 (24 layers
    of 1,024), between 0.8 and 1.05. Qwen's configs call the number of layers `depth`, which it does not read, so that
    24 count.
    """
    tower = model.vision
    if tower is None or deployment.multimodal is None or not engine.reserves_for_towers:
        return 1.0
    layers = 24 if isinstance(tower.rules.image, NativeResolution) else tower.n_layers
    ratio = layers * tower.hidden_size**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))


#: LoRA ranks that vLLM accepts: MaxLoRARanks (vllm/config/lora.py).
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def resolve_lora(deployment: Deployment) -> Lora | None:
    """Return the checked LoRA options of a deployment, or None where it has none.

    Raises:
        InputError: The rank is not one of vLLM's, or fewer adapters fit in host memory than in a batch.
    """
    requested = deployment.lora
    if requested is None:
        return None
    if requested.max_rank not in RANKS:
        nearest = min(RANKS, key=lambda rank: abs(rank - requested.max_rank))
        raise InputError("lora.max_rank must be one of vLLM's ranks", requested.max_rank, str(nearest))
    if requested.in_host < requested.max_loras:
        raise InputError("lora.max_cpu_loras must be at least max_loras", requested.in_host, str(requested.max_loras))
    return requested


def resolve_rank_dispatch(requested: FeatureContext, layout: Layout) -> RankDispatch | None:
    """Return how requests are distributed over the data-parallel ranks of a replica, or None where it has one rank.

    Raises:
        InputError: The key is set without ranks, or requests separate schedulers where the simulator has one for all
            ranks: with the features of ONE_SCHEDULER, and for engines without schedulers per rank.
    """
    dispatch, engine = requested.written.rank_dispatch, requested.engine
    separate = dispatch not in (None, "balanced")
    if layout.data_parallel == 1:
        if separate:
            rule = "rank_dispatch needs data_parallel ranks of a mixture-of-experts model, which step together"
            raise InputError(rule, dispatch, "rank_dispatch: null")
        return None
    feature = feature_with_one_scheduler(requested)
    reason = f"with {feature}" if feature else f"for {engine.name}" if engine.rank_dispatch == "balanced" else ""
    if separate and reason:
        raise InputError(f"ranks are simulated as one scheduler {reason}", f"rank_dispatch: {dispatch}", "balanced")
    return dispatch or ("balanced" if reason else engine.rank_dispatch)


def prefill_rank_dispatch(pool: ResolvedDeployment, written: RankDispatch | None) -> RankDispatch | None:
    """Return how requests are distributed over the ranks of a replica that only prefills.

    Args:
        pool: The resolved pool, with the dispatch of a replica that also decodes.
        written: The key `rank_dispatch` of the pool; None: the engine's default.
    """
    separate = pool.rank_dispatch not in (None, "balanced")
    return pool.engine.default_rank_dispatch(True) if separate and written is None else pool.rank_dispatch


#: Cores for each accelerator where the cores of the node are not known: cloud instances have at least so many.
USUAL_CORES: Final = 8


def most_api_servers(hardware: Hardware, layout: Layout) -> int:
    """Return the most API server processes of a replica that each have a CPU core of their own.

    The cores of a node are divided evenly among its accelerators. The engine core and the worker of each accelerator
    need one core each. Each default process, one for every data-parallel rank, is always possible.
    """
    node, each = hardware.node, float(USUAL_CORES)
    if node.host_cores is not None:
        each = node.host_cores / node.max_accelerators
    return max(int(each * layout.accelerators) - layout.accelerators - layout.data_parallel, layout.data_parallel)


def resolve_api_servers(requested: FeatureContext, hardware: Hardware, layout: Layout) -> int:
    """Return the API server processes of each replica; by default one for every data-parallel rank.

    Raises:
        InputError: The engine has one process for each rank, or the node has too few cores.
    """
    count, ranks = requested.written.api_server_count, layout.data_parallel
    if count is None or count == ranks:
        return ranks
    if not requested.engine.scales_api_servers:
        rule = f"{requested.engine.name} runs one API server process for each data-parallel rank"
        raise InputError(rule, f"api_server_count: {count}", str(ranks))
    most = most_api_servers(hardware, layout)
    if count > most and hardware.node.host_cores is not None:
        rule = f"each API server process of a replica needs a CPU core, of which its share of the node has {most} free"
        raise InputError(rule, f"api_server_count: {count}", str(most))
    return count


#: Default of vLLM V0's `--swap-space`, GiB per accelerator.
SWAP_SPACE_GIB: Final = 4.0


def resolve_swap_bytes(deployment: Deployment, hardware: Hardware, replicas: int, layout: Layout) -> float:
    """Return the swap space of each accelerator in bytes; 0 where preempted requests are recomputed.

    Raises:
        InputError: Swap space is set without preemption by swap, is zero, or exceeds the host memory.
    """
    if deployment.preemption != "swap":
        if deployment.swap_space_gib is not None:
            raise InputError("swap_space_gib needs preemption: swap", deployment.swap_space_gib, "preemption: swap")
        return 0.0
    gib = SWAP_SPACE_GIB if deployment.swap_space_gib is None else deployment.swap_space_gib
    if not gib:
        raise InputError("preemption by swap needs swap space", "swap_space_gib: 0", f"{SWAP_SPACE_GIB:g}")
    check_host_memory("swap_space_gib x accelerators", gib * layout.accelerators, hardware, replicas)
    return gib * GIB
