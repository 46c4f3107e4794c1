"""Simulate a scheduling policy of your own: a subclass of vLLM's, registered by name.

The policy limits the prompt tokens of a step while other requests decode, so that long prompts stall decodes less.
Run it with `python examples/own_scheduler.py`.
"""

from __future__ import annotations

from dataclasses import replace

from catalogs import Deployment, load_workload
from simulator import RunOptions, compile_deployment, simulate, summarise
from simulator.core.batch import Batch
from simulator.schedulers.registry import POLICIES
from simulator.schedulers.vllm.v1 import VllmV1

#: New prompt tokens that a step with decodes takes at most.
PROMPT_TOKENS = 256


class GentlePrompts(VllmV1):
    """vLLM V1, except that a step with decodes takes at most PROMPT_TOKENS tokens of newly admitted prompts."""

    def _admit(self, batch: Batch, budget: int) -> None:
        super()._admit(batch, min(budget, PROMPT_TOKENS) if batch.decodes else budget)


def main() -> None:
    """Compare both policies under the same requests."""
    POLICIES["gentle-prompts"] = GentlePrompts
    plain = compile_deployment(Deployment(model="llama3.1-8b", hardware="h100x1"))
    resolved = plain.resolved
    own = replace(plain, resolved=replace(resolved, engine=replace(resolved.engine, policy="gentle-prompts")))
    requests = load_workload("azure-code").materialise(0, 400, 6.0)
    for name, compiled in (("vllm-v1", plain), ("gentle-prompts", own)):
        figures = summarise(simulate(compiled, requests, RunOptions(check_invariants=True)))["metrics"]
        gap, first = figures["itl_s"], figures["ttft_s"]
        print(f"{name:15} ITL p99 {gap['p99'] * 1e3:6.1f} ms   TTFT p99 {first['p99'] * 1e3:7.1f} ms")


if __name__ == "__main__":
    main()
