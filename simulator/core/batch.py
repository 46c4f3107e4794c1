"""What one engine step holds. `BatchShape` is the narrow waist between scheduling and cost: counts, never requests.

What comes and goes beside a step's computing: KV blocks between the device and its host, and adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from simulator.core.request import Request


class BlockCopy(NamedTuple):
    """Blocks of one request that a step has filled: content keys of whole units, and how many that nobody shares."""

    keys: tuple[int, ...]
    own_blocks: int


class BatchCounts:
    """What follows from the counts of a batch, whether these are numbers or numpy arrays of many batches.

    Means over prompt chunks are defined only where there are chunks.
    """

    __slots__ = ()

    prefill_tokens: Any
    prefill_pairs: Any
    prefill_chunks: Any

    @property
    def chunk_tokens(self) -> Any:
        """Mean new tokens of a prompt chunk."""
        return self.prefill_tokens / self.prefill_chunks

    @property
    def prior_tokens(self) -> Any:
        """Mean computed tokens before a prompt chunk, from `prefill_pairs`: the sum of q * (context + q / 2)."""
        return self.prefill_pairs / self.prefill_tokens - self.prefill_tokens / self.prefill_chunks / 2

    @property
    def prompt_context_tokens(self) -> Any:
        """Mean computed tokens of a prompt after its chunk."""
        return self.prefill_pairs / self.prefill_tokens + self.chunk_tokens / 2


@dataclass(slots=True)
class BatchShape(BatchCounts):
    """Counts that decide the time of one step (all ranks see the same step)."""

    prefill_tokens: int = 0
    prefill_pairs: float = 0.0  # sum over chunks of q * (context + q / 2), no window applied
    prefill_chunks: int = 0
    decodes: int = 0
    decode_context_sum: int = 0  # cached tokens the decodes read, in all
    decode_context_max: int = 0
    logits: int = 0  # sequences that need logits: decodes + prompts finished in this step
    passes: int = 1  # times the weights are read: more than once where a step runs in parts
    ranks: tuple[BatchShape | None, ...] = ()  # shares of ranks that step together (None: a dummy); () where one runs
    queries: int = 1  # tokens of each decode: its last one, and drafts
    accepted: int = 0  # drafts that are accepted and come out, beside one token for each of `logits`

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decodes * self.queries

    def grow(self, steps: int) -> None:
        """The same decodes, `steps` steps later."""
        self.decode_context_sum += steps * self.decodes
        self.decode_context_max += steps
        for rank in self.ranks:
            if rank is not None:
                rank.grow(steps)


@dataclass(slots=True)
class SideTransfers:
    """Of one step; counts, and those they are for."""

    fetches: tuple[Request, ...] = ()  # their blocks start to come from the host with this step
    blocks: int = 0  # to host memory and back, before the step runs
    copies: tuple[BlockCopy, ...] = ()  # blocks that go to the host when it has ended
    adapters: int = 0  # different LoRA adapters it asks for
    adapter_tokens: int = 0  # tokens that do
    brought_adapters: tuple[int, int] = (0, 0)  # to the device before it runs, and of those from disk


@dataclass(slots=True)
class Batch(BatchShape):
    """One scheduled step: its shape, and the few requests for which something changes in it."""

    admitted: tuple[Request, ...] = ()  # first scheduled in this step
    prompted: tuple[Request, ...] = ()  # their prompt is complete: they emit a token in this step
    finishing: tuple[Request, ...] = ()  # emit their last token in this step (set by the replica)
    parting: tuple[Request, ...] = ()  # emit in this step, and were preempted since
    joined: tuple[Request, ...] = ()  # came with their blocks from another replica and decode from this step on
    moves: SideTransfers | None = None  # None: nothing moves beside it

    def moving(self) -> SideTransfers:
        """To note what moves."""
        if self.moves is None:
            self.moves = SideTransfers()
        return self.moves

    @property
    def opens(self) -> bool:
        """Some of those that came with their blocks give their first token in this step."""
        return any(not request.emitted for request in self.joined)


def together(ranks: Sequence[Batch | None]) -> Batch:
    """One step of several ranks."""
    prompts = chunks = decodes = context_sum = context_max = logits = accepted = 0
    pairs, queries = 0.0, 1
    events: list[Batch] = []
    for part in ranks:
        if part is None:
            continue
        logits += part.logits
        if part.decodes:
            decodes += part.decodes
            context_sum += part.decode_context_sum
            if part.decode_context_max > context_max:
                context_max = part.decode_context_max
            queries, accepted = part.queries, accepted + part.accepted
        if part.prefill_tokens:
            prompts += part.prefill_tokens
            pairs += part.prefill_pairs
            chunks += part.prefill_chunks
            events.append(part)
        elif part.joined:
            events.append(part)
    batch = Batch(prompts, pairs, chunks, decodes, context_sum, context_max, logits, 1, tuple(ranks))
    batch.queries, batch.accepted = queries, accepted
    for part in events:
        batch.admitted += part.admitted
        batch.prompted += part.prompted
        batch.joined += part.joined
    return batch
