"""Steps of published deployments of DeepSeek-V3 over many nodes, with experts on every accelerator.

    python benchmarks/large_deployments.py [--page docs/accuracy.md]

Each line is a pool of prefill or decode replicas with whole experts on each rank, DeepEP's exchange and 32 copies of
popular experts. The step that the pool repeats when it is full is priced, in one batch and in two halves that overlap,
and its tokens per second for each node of eight accelerators are compared with the published ones. Published figures
are measured by their authors; none was fitted.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from benchmarks.page_section import write_section
from catalogs.deployments.schema import Deployment
from simulator.cluster.compiled import compile_deployment
from simulator.core.batch import BatchShape

#: Accelerators of a node.
PER_NODE: Final = 8

#: Tokens of prompts in a step of one rank, as the commands beside the first source set them (SGLang issue 6017:
#: --chunked-prefill-size 524288 over 32 ranks).
CHUNK: Final = 16384

LMSYS: Final = "SGLang on H100 (LMSYS, 2025-05-05)"

DEEPSEEK: Final = "DeepSeek's service on H800, mean of a day (2025-02-27)"


@dataclass(frozen=True, slots=True)
class Published:
    """A pool and its published speed.

    Attributes:
        source: Who published it.
        hardware: The kind of accelerator.
        nodes: Nodes of one replica.
        phase: What the pool computes.
        context: Tokens of a prompt, or the mean tokens in the cache of a sequence that decodes.
        sequences: Sequences on each rank that decode.
        tokens_per_s: Tokens per second and node.
    """

    source: str
    hardware: str
    nodes: int
    phase: Literal["prefill", "decode"]
    context: int
    sequences: int
    tokens_per_s: float

    @property
    def ranks(self) -> int:
        """Return the ranks of one replica, one on each accelerator."""
        return self.nodes * PER_NODE

    @property
    def deployment(self) -> Deployment:
        """Return the pool as a deployment."""
        limit = {"max_num_batched_tokens": CHUNK} if self.phase == "prefill" else {"max_num_seqs": self.sequences}
        return Deployment(
            model="deepseek-v3",
            engine="sglang",
            hardware=f"{self.nodes}*{self.hardware}x{PER_NODE}",
            weight_dtype="fp8",
            data_parallel=self.ranks,
            expert_parallel=True,
            all2all_backend="deepep_auto",
            redundant_experts=32,
            **limit,
        )

    @property
    def step(self) -> BatchShape:
        """Return the contents of the step of all ranks."""
        if self.phase == "decode":
            n = self.sequences * self.ranks
            return BatchShape(decodes=n, decode_context_sum=n * self.context, decode_context_max=self.context, logits=n)
        chunks = CHUNK * self.ranks // self.context
        tokens = chunks * self.context
        return BatchShape(tokens, tokens * self.context / 2, chunks, logits=chunks)


#: The decode pool of the first source had 256 sequences on each accelerator, prompts of 2,000 tokens and answers of
#: 100. The second states 14,800 tokens/s a node and 20 to 22 tokens/s a user, which are 88 sequences on each
#: accelerator, and a mean of 4,989 tokens in the cache.
PUBLISHED: Final = (
    Published(LMSYS, "h100", 4, "prefill", 1024, 0, 57_674.0),
    Published(LMSYS, "h100", 4, "prefill", 2048, 0, 54_543.0),
    Published(LMSYS, "h100", 4, "prefill", 4096, 0, 50_302.0),
    Published(LMSYS, "h100", 9, "decode", 2050, 256, 22_282.0),
    Published(DEEPSEEK, "h800", 18, "decode", 4989, 88, 14_800.0),
)


def line(case: Published) -> str:
    """Return the row of a pool: its step in one batch, and the errors of steps in one batch and in two halves."""
    whole_s, halves_s = (step_s(case, overlap) for overlap in (False, True))
    rates = [case.step.tokens / seconds / case.nodes for seconds in (whole_s, halves_s)]
    errors = [f"{100 * (rate / case.tokens_per_s - 1):+.0f} %" for rate in rates]
    return (
        f"| {case.source} | {case.phase}, {case.nodes} nodes | {case.context:,} | {whole_s * 1e3:,.0f} ms "
        f"| {case.tokens_per_s:,.0f} | {rates[0]:,.0f} | {errors[0]} | {errors[1]} |"
    )


def step_s(case: Published, overlap: bool) -> float:
    """Return the seconds of the step of a full pool, whose halves overlap or not."""
    deployment = case.deployment.model_copy(update={"two_batch_overlap": overlap})
    return compile_deployment(deployment).cost.cycle_s(case.step)


def main() -> None:
    """Print the table, or write it into a page."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--page", type=Path, help="write the table between the comments `large` of this page")
    page = p.parse_args().page
    head = "| source | pool | context | step | published tokens/s a node | simulated | error | with overlap |"
    text = "\n".join([head, "|---|---|---|---|---|---|---|---|", *map(line, PUBLISHED)])
    print(text)
    if page is not None:
        write_section(page, "large", text)


if __name__ == "__main__":
    main()
