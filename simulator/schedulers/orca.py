"""Orca (OSDI 2022): iteration-level scheduling with a cache without pages.

Algorithm 1 of the paper, with selective batching: in every iteration the running requests decode and waiting requests
start, first come first served and with their whole prompts, up to the maximum batch. A request gets the slots of its
longest possible sequence when it starts and keeps them to its end. A request whose slots are not free stops admission.
Nothing is ever evicted. The slots are those of max_model_len ("Orca (Max)" in the PagedAttention paper, SOSP 2023).
"""

from __future__ import annotations

from dataclasses import replace

from simulator.core.request import Request
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.trtllm import TrtLlm


class Orca(TrtLlm):
    """The policy of Orca.

    Blocks count the used part of the slots. The reserved part is kept free and is not available to other requests.
    """

    chunks = False
    takes_over = False
    shares_prefixes = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(replace(rules, chunked_prefill=False, balance_steps=0))

    def _worst_blocks(self, request: Request) -> int:  # noqa: ARG002
        return min(-(-self.rules.max_model_len // self.rules.block_size), self.rules.kv_blocks)
