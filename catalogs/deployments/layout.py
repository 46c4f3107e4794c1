"""What one replica is held to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: What a pool's replicas do: serve whole requests, compute prompts and their first token, or everything after it.
Role = Literal["both", "prefill", "decode"]

ROLES: Final[tuple[Role, ...]] = ("both", "prefill", "decode")

#: How tokens reach the ranks that hold their experts: vLLM's names, and SGLang's `--deepep-mode auto` as deepep_auto.
All2All = Literal["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "deepep_auto"]


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """How one replica is cut: data x pipeline x context x tensor ranks, one accelerator each."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    context_parallel: int = 1
    decode_context_parallel: int = 1  # needs no accelerators of its own
    all2all_backend: All2All = "allgather_reducescatter"

    @property
    def accelerators(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel * self.context_parallel

    @property
    def words(self) -> str:
        """ "TP4 x PP2 x DP2 + EP"; what is 1 is left out, but for TP."""
        further = (("PP", self.pipeline_parallel), ("DP", self.data_parallel), ("CP", self.context_parallel))
        cut = "".join(f" x {name}{size}" for name, size in further if size > 1)
        shared = f" + DCP{self.decode_context_parallel}" if self.decode_context_parallel > 1 else ""
        return f"TP{self.tensor_parallel}{cut}{' + EP' if self.expert_parallel else ''}{shared}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an engine as its flags name them, in sequences, tokens and blocks."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int = 16
    kv_blocks: int = 0  # 0: not said, as many as memory holds
    prefix_caching: bool = True
