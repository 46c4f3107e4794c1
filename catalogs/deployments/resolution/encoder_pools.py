"""The rules of an encoder pool: replicas that run only the towers of a model (encoder disaggregation).

vLLM calls such a server an encoder-cache producer (`--ec-transfer-config`), SGLang an encoder-only server
(`--encoder-only`). Requests with images, videos or audio pass one of these replicas first. Their embeddings then travel
to a replica that holds the language model alone.

Sources: vllm/config/vllm.py (`_resolve_mm_encoder_only`) and distributed/ec_transfer of vLLM 0.32;
srt/disaggregation/encode_server.py and encode_receiver.py of SGLang. Both engines spread the items of a request over
the encoder servers; here all items of a request go to one of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.errors import InputError
from catalogs.units import DTYPE_BYTES


def with_encoders(pools: tuple[ResolvedDeployment, ...]) -> tuple[ResolvedDeployment, ...]:
    """Return the pools of a deployment with an encoder pool, which is the first of them.

    The other pools leave the encoding to it.

    Raises:
        InputError: The engine has no server that only encodes, or its replicas cannot have this layout.
    """
    encoders = pools[0]
    check_encoders(encoders)
    others = tuple(replace(pool, encodes_elsewhere=True) for pool in pools[1:])
    # The engine samples nothing on such a server, keeps no KV cache and shares no prefixes.
    limits = replace(encoders.limits, prefix_caching=False)
    return (replace(encoders, limits=limits), *others)


def check_encoders(encoders: ResolvedDeployment) -> None:
    """Check that the engine can run these replicas as an encoder pool.

    Raises:
        InputError: The engine has no server that only encodes, or its replicas cannot have this layout.
    """
    engine, ranks = encoders.engine, encoders.layout.tensor_parallel
    if engine.encoder_server is None:
        rule = f"{engine.name} {engine.version} has no server that only encodes, or it is not simulated"
        raise InputError(rule, "encoder_pool", "engine: vllm, sglang")
    if ranks > 1 and not engine.encoder_server.tensor_parallel:
        rule = f"each encoder replica of {engine.name} is one accelerator"
        raise InputError(rule, f"encoder_pool.encode.tensor_parallel: {ranks}", "1")


#: Where the items of a replica's requests are encoded: by it, by the replicas of an encoder pool, or by it as
#: one of them, which does nothing else.
EncodingPlace = Literal["here", "elsewhere", "only here"]


def encoding_place(resolved: ResolvedDeployment) -> EncodingPlace:
    """Return where the items of the requests of a replica are encoded."""
    if not resolved.runs_language_model:
        return "only here"
    return "elsewhere" if resolved.encodes_elsewhere else "here"


def embedding_bytes(encoders: ResolvedDeployment) -> float:
    """Return the bytes of one embedding that travels from an encoder replica to another replica.

    It is the width of the tower's output in 16 bits; with DeepStack that is several widths of the language model.
    Several towers count as the widest of them.
    """
    return max(tower.embedding_values for tower in encoders.towers) * DTYPE_BYTES["bf16"]
