"""The targets of `plan deploy` for networks, with the engines of plans that each can start."""

from __future__ import annotations

from typing import Final

from planner.deploy.targets.registry import TEXT_EMBEDDINGS
from planner.networks.job import TEXT_FAMILIES
from planner.networks.job_service import POOLING
from planner.networks.targets import pooling_runner, sglang_diffusion, text_embeddings, triton
from planner.networks.targets.target import NetworkTarget

#: The targets; the first one that can start an engine is its usual one.
NETWORK_TARGETS: Final[dict[str, NetworkTarget]] = {
    "triton": NetworkTarget(("triton",), triton.triton_files, triton.notes),
    "sglang": NetworkTarget(("sglang-diffusion",), sglang_diffusion.sglang_files, sglang_diffusion.notes),
    "vllm": NetworkTarget(
        (POOLING, "triton"), pooling_runner.pooling_files, pooling_runner.notes, families=TEXT_FAMILIES
    ),
    TEXT_EMBEDDINGS: NetworkTarget(
        (POOLING, "triton"), text_embeddings.text_embedding_files, text_embeddings.notes, families=TEXT_FAMILIES
    ),
}
