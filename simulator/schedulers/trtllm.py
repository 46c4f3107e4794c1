"""TensorRT-LLM: in-flight batching with the capacity policies GUARANTEED_NO_EVICT and MAX_UTILIZATION.

Context and generation requests share a step as in vLLM V1, first come first served. With GUARANTEED_NO_EVICT, the
default, a request starts only if the cache holds its worst case, which is its prompt and all the output that it
declares, in addition to the worst cases of all running requests. So nothing is ever preempted. MAX_UTILIZATION starts
requests that fit now and pauses requests when the cache runs out. Without chunked context a prompt runs in one step or
waits.

With attention data parallelism and balancing on (attention_dp_config), prompts start only in a step in which every rank
has one, or some rank has nothing to generate, or after `balance_steps` steps without either; steps are also counted
while no request waits.

The stages of a pipeline run one micro-batch each (`_executor_loop_pp`), without the overlap scheduler. A micro-batch is
scheduled from all requests that are not in flight, which here are those of its last step and the waiting ones. The
worst cases of all micro-batches are reserved together.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.core.batch import Batch
from simulator.core.mypyc_modules import mypyc_attr
from simulator.core.request import Request
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1 import VllmV1


@mypyc_attr(allow_interpreted_subclasses=True)
class MaxUtilization(VllmV1):
    """The capacity policy MAX_UTILIZATION.

    A request starts if its whole prompt fits now. If a step runs out of blocks, the newest running request is paused:
    its blocks are freed, and it waits at the head of the queue to be recomputed (`MaxUtilizationScheduler`,
    `pauseRequest`).
    """

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(replace(rules, admit_whole_prompt=True))
        balances = rules.balance_steps > 0 and rules.attention_ranks > 1
        self._balance = AttentionDpBalance(rules.balance_steps) if balances else None
        self.holds_prompts = False  # set for one of several ranks while they are not in balance

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""
        if self._balance is not None:
            self._balance.count(self._even)
        return super().schedule()

    @property
    def _even(self) -> bool:
        """Return whether every rank can start a prompt, or some rank has nothing else to do."""
        ranks = self.rules.attention_ranks
        return len(self._waiting) >= ranks or self.decodes.n < ranks

    def _admit(self, batch: Batch, budget: int) -> None:
        if not self.holds_prompts and (self._balance is None or not self._balance.holds):
            super()._admit(batch, budget)

    def quiet_rounds(self, batch: Batch, most: int) -> int:
        """Return the number of further decode steps of the same requests that involve no decision."""
        balance = self._balance
        if not self._waiting or (not self.holds_prompts and (balance is None or self.blocked)):
            return super().quiet_rounds(batch, most)
        if balance is not None:
            most = 0 if self._even else min(most, balance.left)
        if most <= 0 or self._partial is not None or self.decodes.n != batch.decodes:
            return 0
        return self._decode_rounds(most)

    def skip(self, rounds: int) -> None:
        """Schedule `rounds` rounds of the same decodes at once."""
        super().skip(rounds)
        if self._balance is not None:
            self._balance.count(self._even, rounds)


@mypyc_attr(allow_interpreted_subclasses=True)
class TrtLlm(MaxUtilization):
    """TensorRT-LLM with GUARANTEED_NO_EVICT.

    A request is admitted when there are blocks for its longest output, and is never evicted.
    """

    preempts = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        self._commitments = Commitments(rules.kv_blocks)
        self._draft_tokens = rules.speculation.most_spare_tokens(rules.lag) if rules.speculation else 0

    def share(self, first: ContinuousBatching) -> None:
        """Schedule a further batch from the queue, into the cache and within the commitments of another scheduler."""
        super().share(first)
        assert isinstance(first, TrtLlm)
        self._commitments = first._commitments

    def _worst_blocks(self, request: Request) -> int:
        """Return the most blocks that a request can hold, by its declared output and with its drafts."""
        rules = self.rules
        tokens = min(request.input_tokens + rules.max_output_tokens + self._draft_tokens, rules.max_model_len)
        return min(-(-tokens // rules.block_size), rules.kv_blocks)

    def _held_blocks(self, request: Request) -> int:
        return max(self.held_blocks(request), request.shared_blocks)

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        worst = self._worst_blocks(request)
        if worst > self._commitments.free_blocks:
            self._refused = True  # decodes take the blocks committed to them, so only a release helps
            return 0
        before = self.kv.available
        tokens = super()._admit_head(batch, request, budget)
        if tokens:
            self._commitments.free_blocks += self.kv.available - before - (worst - self._held_blocks(request))
        return tokens

    def release(self, request: Request) -> None:
        """Free the seat and the blocks of a request."""
        before, held = self.kv.available, self._held_blocks(request)
        super().release(request)
        self._commitments.free_blocks += self.kv.available - before + self._worst_blocks(request) - held

    def restore_commitments(self, free_blocks: int) -> None:
        """Take over the blocks that may still be promised from `simulator/engine/fast_path.py`."""
        self._commitments.free_blocks = free_blocks

    def _preempt(self) -> None:
        raise RuntimeError("the cache ran out of blocks although the worst case of every running request is reserved")


class Commitments:
    """The blocks that an engine may still promise, over all its batches in flight.

    Attributes:
        free_blocks: The available blocks minus those that running requests may still take.
    """

    def __init__(self, free_blocks: int) -> None:
        self.free_blocks = free_blocks


class AttentionDpBalance:
    """The rule by which data-parallel ranks start prompts together (TensorRT-LLM's attention_dp_config).

    Prompts start in a step in which ranks are even, and in every `steps`-th consecutive step in which they are not. The
    caller decides what even is: every rank has a prompt to start, or some rank has nothing to generate.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._uneven = 0  # steps since prompts could last start

    @property
    def holds(self) -> bool:
        """Return whether no prompt starts in the step counted last."""
        return self._uneven > 0

    @property
    def left(self) -> int:
        """Return the further steps that start no prompts while ranks stay uneven."""
        return self._steps - self._uneven - 1

    def count(self, even: bool, steps: int = 1) -> None:
        """Count `steps` further steps, in all of which the ranks are even or in none."""
        self._uneven = 0 if even else (self._uneven + steps) % self._steps
