"""Arguments of `python3 -m sglang.launch_server` for one replica (sglang 0.5.23, srt/arg_groups/fields)."""

from __future__ import annotations

from typing import Final

from catalogs.deployments.engine_settings import EngineSettings
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.engines.flags import FlagTable, flag_table
from catalogs.errors import InputError
from catalogs.launch.arguments import Arguments, own_stage_layers, served_weights
from catalogs.launch.writing.vllm import shared_flags

#: Methods that distribute requests over data-parallel ranks, for which SGLang has names.
LOAD_BALANCE: Final = ("round_robin", "least_requests", "least_tokens")

#: SGLang's modes of DeepEP by the all-to-all backend of the plan.
DEEPEP_MODES: Final = {
    "deepep_auto": "auto",
    "deepep_high_throughput": "normal",
    "deepep_low_latency": "low_latency",
}

#: Architectures whose vision tower SGLang loads only on request (srt/configs/model_config.py).
TEXT_BY_DEFAULT: Final = ("Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration")

#: Layers of each pipeline stage (srt/distributed/utils.py).
STAGES_VARIABLE: Final = "SGLANG_PP_LAYER_PARTITION"

PROGRAM: Final = ("python3", "-m", "sglang.launch_server")


def sglang_arguments(resolved: ResolvedDeployment) -> Arguments:
    """Return the arguments of one replica.

    SGLang's limits cover all attention ranks together (`--attn-dp-size` divides them); those of the plan cover one
    rank.

    Raises:
        InputError: The deployment uses speculative decoding.
    """
    r = resolved
    if r.speculation is not None:
        raise InputError("no start command is written for speculative decoding of this engine", r.engine.name, "vllm")
    table, (at, _) = flag_table("sglang"), served_weights(r)
    flags = table.by_key
    found: list[tuple[str, str | None]] = [("--model-path", at)]
    found += _layout(r, flags)
    more, notes = shared_flags(r, table, ranks=r.layout.data_parallel)
    found += more
    if r.rank_dispatch in LOAD_BALANCE and r.rank_dispatch != r.engine.default_rank_dispatch(r.role == "prefill"):
        found.append((flags["rank_dispatch"], table.name_of("rank_dispatch", r.rank_dispatch)))
    if r.limits.block_size != 1:
        found.append((flags["block_size"], str(r.limits.block_size)))
    if not r.limits.prefix_caching:
        found.append((flags["prefix_caching"], None))
    found += _settings(r.settings, table)
    if r.queueing.order == "prefix":
        found.append(("--schedule-policy", "lpm"))
    if r.queueing.max_waiting is not None:
        found.append(("--max-queued-requests", str(r.queueing.max_waiting * r.layout.data_parallel)))
    receiving = r.engine.receiving
    if receiving is not None:
        found.append(("--scheduler-recv-interval", str(receiving.steps)))
        notes.append(
            f"--scheduler-recv-interval is set for fewer than {receiving.busy_requests} requests in a replica; "
            f"for more, the plan assumes {receiving.busy_steps}"
        )
    if r.engine.flashinfer_products and r.settings.gemm_backend is None:
        found.append((flags["gemm_backend"], table.name_of("gemm_backend", "flashinfer")))
    found += _media(r)
    if r.role in ("prefill", "decode"):  # NIXL uses NVLink inside a node; the default, Mooncake, needs network cards
        found += [("--disaggregation-mode", r.role), ("--disaggregation-transfer-backend", "nixl")]
    found.append(("--enable-metrics", None))
    environment = {}
    if layers := own_stage_layers(r):
        environment[STAGES_VARIABLE] = ",".join(map(str, layers))
    return Arguments(PROGRAM, tuple(found), tuple(notes), environment, model=at)


def _media(r: ResolvedDeployment) -> list[tuple[str, str | None]]:
    """Return the flags of images and videos."""
    if r.multimodal is None:
        return []
    found: list[tuple[str, str | None]] = []
    if r.model.architecture in TEXT_BY_DEFAULT:
        found.append(("--enable-multimodal", None))
    if r.role == "encode" or (r.encodes_elsewhere and r.role != "decode"):
        # `--encoder-urls` of the language servers follows with the addresses of the encoders.
        found.append(("--encoder-only" if r.role == "encode" else "--language-only", None))
        found.append(("--encoder-transfer-backend", "mooncake"))
    if r.multimodal.encoder_parallel == "data" and not r.encodes_elsewhere:
        found.append(("--mm-enable-dp-encoder", None))
    return found


def _settings(settings: EngineSettings, table: FlagTable) -> list[tuple[str, str | None]]:
    """Return the flags of settings that replace a default of the engine version.

    Raises:
        InputError: SGLang has no flag for a setting.
    """
    flags = table.by_key
    found: list[tuple[str, str | None]] = []
    if settings.async_scheduling is False:
        found.append((flags["async_scheduling"], None))
    if settings.cudagraph_mode == "none":
        found.append((flags["cudagraph_mode"], None))
    elif settings.cudagraph_mode is not None:
        raise InputError("SGLang has no flag for this cudagraph_mode", settings.cudagraph_mode, "none")
    if settings.max_cudagraph_capture_size is not None:
        found.append((flags["max_cudagraph_capture_size"], str(settings.max_cudagraph_capture_size)))
    for key in ("gemm_backend", "moe_backend", "attention_backend"):
        value = getattr(settings, key)
        if value is not None:
            found.append((flags[key], table.name_of(key, value)))
    if settings.cudagraph_capture_sizes is not None:
        sizes = " ".join(map(str, settings.cudagraph_capture_sizes))
        found.append((flags["cudagraph_capture_sizes"], sizes))
    return found


def _layout(r: ResolvedDeployment, flags: dict[str, str]) -> list[tuple[str, str | None]]:
    layout = r.layout
    ranks = layout.tensor_parallel * layout.data_parallel  # attention ranks lie inside the tensor group
    sizes = (
        (flags["tensor_parallel"], ranks),
        (flags["pipeline_parallel"], layout.pipeline_parallel),
        ("--attn-dp-size", layout.data_parallel),
        ("--ep-size", ranks if layout.expert_parallel else 1),
    )
    found: list[tuple[str, str | None]] = [(flag, str(size)) for flag, size in sizes if size > 1]
    if layout.expert_parallel and layout.all2all_backend in DEEPEP_MODES:
        found.append((flags["all2all_backend"], "deepep"))
        found.append(("--deepep-mode", DEEPEP_MODES[layout.all2all_backend]))
    if layout.redundant_experts:
        found += [("--enable-eplb", None), (flags["redundant_experts"], str(layout.redundant_experts))]
    if layout.two_batch_overlap:
        found.append((flags["two_batch_overlap"], None))
    return found
