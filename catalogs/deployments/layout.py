"""The parallel layout, the role and the batching limits of one replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

#: What the replicas of a pool do: serve whole requests, compute prompts and their first token, decode the rest, or only
#: encode the images, videos and audio of requests.
Role = Literal["both", "prefill", "decode", "encode"]

#: The roles that a pool of the key `pools` can have.
ROLES: Final[tuple[Role, ...]] = ("both", "prefill", "decode")

#: How tokens reach the ranks with their experts, by vLLM's names; deepep_auto is SGLang's `--deepep-mode auto`.
All2All = Literal["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "deepep_auto"]

#: The exchange without DeepEP, the default of engines: every rank receives every token.
ALLGATHER_REDUCESCATTER: Final[All2All] = "allgather_reducescatter"


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """The parallel layout of one replica: data x pipeline x context x tensor ranks, one accelerator per rank."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    context_parallel: int = 1
    decode_context_parallel: int = 1  # reuses the tensor or context ranks
    all2all_backend: All2All = ALLGATHER_REDUCESCATTER
    redundant_experts: int = 0  # copies of popular experts in each layer, with which all ranks have equal loads
    #: A rank's tokens run as two halves, and the exchange of one overlaps the kernels of the other.
    two_batch_overlap: bool = False

    @classmethod
    def of(cls, block: Mapping[str, Any]) -> Layout:
        """Return the layout that a block of deployment keys states.

        Raises:
            KeyError: A key of the layout is missing.
        """
        return cls(**{field.name: block[field.name] for field in fields(cls)})

    @property
    def accelerators(self) -> int:
        """Return the number of accelerators that one replica occupies."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel * self.context_parallel

    @property
    def words(self) -> str:
        """Return the layout as text, such as "TP4 x PP2 x DP2 + EP"; sizes of 1 are left out, except TP."""
        further = (("PP", self.pipeline_parallel), ("DP", self.data_parallel), ("CP", self.context_parallel))
        cut = "".join(f" x {name}{size}" for name, size in further if size > 1)
        shared = f" + DCP{self.decode_context_parallel}" if self.decode_context_parallel > 1 else ""
        copies = f" with {self.redundant_experts} redundant experts" if self.redundant_experts else ""
        halves = " + TBO" if self.two_batch_overlap else ""
        return f"TP{self.tensor_parallel}{cut}{' + EP' if self.expert_parallel else ''}{copies}{halves}{shared}"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an engine under the names of its flags, in sequences, tokens and blocks."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int = 16
    kv_blocks: int = 0  # 0: not set; the blocks that fit in memory
    prefix_caching: bool = True
