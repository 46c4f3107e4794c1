"""Arguments of `python3 -m sglang.launch_server` for one replica (sglang 0.5.23, srt/arg_groups/fields)."""

from __future__ import annotations

from typing import Final

from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.errors import InputError
from catalogs.launch.arguments import Arguments, served_weights
from catalogs.launch.vllm import shared_flags

#: SGLang's names for the methods that distribute requests over data-parallel ranks.
LOAD_BALANCE: Final = {
    "round_robin": "round_robin",
    "least_requests": "total_requests",
    "least_tokens": "total_tokens",
}

#: SGLang's names of KV cache dtypes (srt/server_args.py, `--kv-cache-dtype`).
_KV_NAMES: Final = {"fp8": "fp8_e4m3", "bf16": "bf16"}

#: Architectures whose vision tower SGLang loads only on request (srt/configs/model_config.py).
TEXT_BY_DEFAULT: Final = ("Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration")

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
    flags, (at, _) = r.engine.flags, served_weights(r)
    found: list[tuple[str, str | None]] = [("--model-path", at)]
    found += _layout(r)
    more, notes = shared_flags(r, kv_names=_KV_NAMES, ranks=r.layout.data_parallel)
    found += more
    if r.rank_dispatch in LOAD_BALANCE and r.rank_dispatch != r.engine.rank_dispatch:
        found.append(("--load-balance-method", LOAD_BALANCE[r.rank_dispatch]))
    if r.limits.block_size != 1:
        found.append((flags["block_size"], str(r.limits.block_size)))
    if not r.limits.prefix_caching:
        found.append(("--disable-radix-cache", None))
    rule = r.engine.limits_rule(r.hardware.accelerator.memory_bytes, r.hardware.accelerator.name, "gpu")
    if rule.receiving is not None:
        found.append(("--scheduler-recv-interval", str(rule.receiving.steps)))
        notes.append(
            f"--scheduler-recv-interval is set for fewer than {rule.receiving.busy_requests} requests in a replica; "
            f"for more, the plan assumes {rule.receiving.busy_steps}"
        )
    found += _media(r)
    if r.role in ("prefill", "decode"):  # NIXL uses NVLink inside a node; the default, Mooncake, needs network cards
        found += [("--disaggregation-mode", r.role), ("--disaggregation-transfer-backend", "nixl")]
    found.append(("--enable-metrics", None))
    return Arguments(PROGRAM, tuple(found), tuple(notes), model=at)


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


def _layout(r: ResolvedDeployment) -> list[tuple[str, str | None]]:
    layout = r.layout
    ranks = layout.tensor_parallel * layout.data_parallel  # attention ranks lie inside the tensor group
    sizes = (
        ("--tp-size", ranks),
        ("--pp-size", layout.pipeline_parallel),
        ("--attn-dp-size", layout.data_parallel),
        ("--ep-size", ranks if layout.expert_parallel else 1),
    )
    return [(flag, str(size)) for flag, size in sizes if size > 1]
