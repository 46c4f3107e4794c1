"""The contents of one engine step.

`BatchShape` is the only interface between scheduling and cost: it holds counts and never requests. `SideTransfers`
holds what else a step does: KV blocks that move between the device and its host, LoRA adapters, and media to encode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from catalogs.models.media_items import MediaLayout
    from simulator.core.request import Request


class BlockCopy(NamedTuple):
    """The KV blocks of one request that a step has filled and that are copied to host memory."""

    keys: tuple[int, ...]  # content keys of the filled cache units
    own_blocks: int  # filled blocks that belong to this request alone and have no content key
    blocks: tuple[int, ...]  # blocks of each unit


class TowerWork(NamedTuple):
    """What one tower computes in a step."""

    items: int = 0
    units: int = 0  # what data-parallel ranks divide among themselves: items, or the tiles or chunks of an item
    patches: int = 0
    pairs: float = 0.0  # sum over sequences of the tower's full attention of the square of their patches

    def plus(self, layout: MediaLayout, items: int = 1) -> TowerWork:
        """Return the work with that of some equal items."""
        tiles = items * layout.tiles
        return TowerWork(
            self.items + items,
            self.units + items * layout.units,
            self.patches + tiles * layout.patches,
            self.pairs + float(tiles) * layout.patches**2,
        )


class Encoding(NamedTuple):
    """The images, videos and audio that a step encodes before it runs the language model, by tower."""

    vision: TowerWork = TowerWork()
    audio: TowerWork = TowerWork()

    def plus(self, layout: MediaLayout, items: int = 1) -> Encoding:
        """Return the encoding with some equal items."""
        if layout.tower == "audio":
            return Encoding(self.vision, self.audio.plus(layout, items))
        return Encoding(self.vision.plus(layout, items), self.audio)


# The following functions take the counts of one batch, or those of many batches as arrays of shape (rows,). They are
# defined only for batches that contain prompt chunks.


def mean_chunk_tokens(prefill_tokens: Any, prefill_chunks: Any) -> Any:
    """Return the mean number of new tokens in a prompt chunk."""
    return prefill_tokens / prefill_chunks


def mean_prior_tokens(prefill_tokens: Any, prefill_pairs: Any, prefill_chunks: Any) -> Any:
    """Return the mean number of tokens computed before a prompt chunk.

    It is derived from `prefill_pairs`, the sum of q * (context + q / 2) over the chunks.
    """
    return prefill_pairs / prefill_tokens - prefill_tokens / prefill_chunks / 2


def mean_prompt_context_tokens(prefill_tokens: Any, prefill_pairs: Any, prefill_chunks: Any) -> Any:
    """Return the mean number of computed tokens of a prompt after its chunk."""
    return prefill_pairs / prefill_tokens + mean_chunk_tokens(prefill_tokens, prefill_chunks) / 2


class BatchShape:
    """The counts that determine the duration of one step (all ranks execute the same step)."""

    __slots__ = (
        "accepted",
        "decode_context_max",
        "decode_context_sum",
        "decodes",
        "logits",
        "passes",
        "prefill_chunks",
        "prefill_pairs",
        "prefill_tokens",
        "queries",
        "ranks",
        "undrafted",
    )

    def __init__(
        self,
        prefill_tokens: int = 0,
        prefill_pairs: float = 0.0,
        prefill_chunks: int = 0,
        decodes: int = 0,
        decode_context_sum: float = 0,
        decode_context_max: float = 0,
        logits: int = 0,
        passes: int = 1,
        ranks: tuple[BatchShape | None, ...] = (),
    ) -> None:
        self.prefill_tokens = prefill_tokens
        self.prefill_pairs = prefill_pairs  # sum over chunks of q * (context + q / 2), no window applied
        self.prefill_chunks = prefill_chunks
        self.decodes = decodes
        # Cached tokens that the decodes read, in total and at most; no whole numbers only where they are means
        self.decode_context_sum = decode_context_sum
        self.decode_context_max = decode_context_max
        self.logits = logits  # sequences that need logits: decodes + prompts finished in this step
        self.passes = passes  # times the weights are read: more than once if the step runs in parts
        self.ranks = ranks  # shares of the ranks that step together (None: a dummy batch)
        self.queries = 1  # tokens computed for each decode: its last token plus the drafts
        self.undrafted = 0  # decodes that bring their last token alone, because no drafts were found for them
        self.accepted = 0  # accepted drafts, which are output in addition to one token for each of `logits`

    def __eq__(self, other: object) -> bool:
        """Return whether the other object is a shape of the same kind with equal counts."""
        return type(self) is type(other) and isinstance(other, BatchShape) and self.counts() == other.counts()

    def counts(self) -> tuple[object, ...]:
        """Return all counts in one order, by which shapes are compared."""
        prompts = (self.prefill_tokens, self.prefill_pairs, self.prefill_chunks)
        decodes = (self.decodes, self.decode_context_sum, self.decode_context_max, self.queries, self.accepted)
        return (*prompts, *decodes, self.undrafted, self.logits, self.passes, self.ranks)

    def __repr__(self) -> str:
        prompts = f"prefill_tokens={self.prefill_tokens}, prefill_chunks={self.prefill_chunks}"
        decodes = f"decodes={self.decodes}, decode_context_sum={self.decode_context_sum}"
        return f"{type(self).__name__}({prompts}, {decodes}, logits={self.logits}, ranks={self.ranks})"

    @property
    def tokens(self) -> int:
        """Return the total number of tokens that the step computes."""
        return self.prefill_tokens + self.decodes * self.queries - self.undrafted * (self.queries - 1)

    @property
    def chunk_tokens(self) -> float:
        """Return the mean number of new tokens in a prompt chunk."""
        mean: float = mean_chunk_tokens(self.prefill_tokens, self.prefill_chunks)
        return mean

    @property
    def prior_tokens(self) -> float:
        """Return the mean number of tokens computed before a prompt chunk."""
        mean: float = mean_prior_tokens(self.prefill_tokens, self.prefill_pairs, self.prefill_chunks)
        return mean

    @property
    def prompt_context_tokens(self) -> float:
        """Return the mean number of computed tokens of a prompt after its chunk."""
        mean: float = mean_prompt_context_tokens(self.prefill_tokens, self.prefill_pairs, self.prefill_chunks)
        return mean

    def with_counts(self, **counts: Any) -> BatchShape:
        """Return a copy of the shape with other values of some attributes."""
        shape = BatchShape(
            self.prefill_tokens,
            self.prefill_pairs,
            self.prefill_chunks,
            self.decodes,
            self.decode_context_sum,
            self.decode_context_max,
            self.logits,
            self.passes,
            self.ranks,
        )
        shape.queries, shape.accepted, shape.undrafted = self.queries, self.accepted, self.undrafted
        for name, count in counts.items():
            setattr(shape, name, count)
        return shape

    def grow(self, steps: int) -> None:
        """Advance the same decodes by `steps` steps."""
        self.decode_context_sum += steps * self.decodes
        self.decode_context_max += steps
        for rank in self.ranks:
            if rank is not None:
                rank.grow(steps)


class SideTransfers:
    """KV blocks and LoRA adapters that move with one step, and the items that it encodes."""

    __slots__ = ("adapter_tokens", "adapters", "blocks", "brought_adapters", "copies", "encoding", "fetches")

    def __init__(self, encoding: Encoding | None = None) -> None:
        self.encoding = encoding  # items that the towers encode in this step
        self.fetches: tuple[Request, ...] = ()  # requests whose blocks start to be fetched from the host with this step
        self.blocks = 0  # blocks swapped to and from host memory before the step runs
        self.copies: tuple[BlockCopy, ...] = ()  # blocks copied to the host after the step has ended
        self.adapters = 0  # distinct LoRA adapters that the step uses
        self.adapter_tokens = 0  # tokens that use an adapter
        self.brought_adapters = (0, 0)  # adapters loaded before the step runs, and how many came from disk


class Batch(BatchShape):
    """One scheduled step: its shape, and the requests that change state in it."""

    __slots__ = ("admitted", "finishing", "moves", "parting", "prefilled", "prompted")

    def __init__(
        self,
        prefill_tokens: int = 0,
        prefill_pairs: float = 0.0,
        prefill_chunks: int = 0,
        decodes: int = 0,
        decode_context_sum: float = 0,
        decode_context_max: float = 0,
        logits: int = 0,
        passes: int = 1,
        ranks: tuple[BatchShape | None, ...] = (),
    ) -> None:
        # The counts are set here and not by BatchShape: a batch is made in every step, and a call more is slower.
        self.prefill_tokens = prefill_tokens
        self.prefill_pairs = prefill_pairs
        self.prefill_chunks = prefill_chunks
        self.decodes = decodes
        self.decode_context_sum = decode_context_sum
        self.decode_context_max = decode_context_max
        self.logits = logits
        self.passes = passes
        self.ranks = ranks
        self.queries = 1
        self.undrafted = 0
        self.accepted = 0
        self.admitted: tuple[Request, ...] = ()  # requests scheduled for the first time in this step
        self.prompted: tuple[Request, ...] = ()  # requests that complete their prompt and emit a token in this step
        self.finishing: tuple[Request, ...] = ()  # requests that emit their last token here (set by the replica)
        self.parting: tuple[Request, ...] = ()  # requests that emit in this step and have been preempted since
        self.prefilled: tuple[Request, ...] = ()  # requests that arrived with their blocks and decode from this step on
        self.moves: SideTransfers | None = None  # None: the step has no side transfers

    def moving(self) -> SideTransfers:
        """Return the side transfers of the step, creating the record if necessary."""
        if self.moves is None:
            self.moves = SideTransfers()
        return self.moves

    @property
    def opens(self) -> bool:
        """Return whether a request that arrived with its blocks emits its first token in this step."""
        return any(not request.emitted for request in self.prefilled)


def together(ranks: Sequence[Batch | None]) -> Batch:
    """Combine the batches of several ranks into one step (None: a rank that runs a dummy batch)."""
    prompts = chunks = decodes = logits = accepted = undrafted = 0
    pairs, context_sum, context_max, queries = 0.0, 0.0, 0.0, 1
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
            queries, accepted, undrafted = part.queries, accepted + part.accepted, undrafted + part.undrafted
        if part.prefill_tokens:
            prompts += part.prefill_tokens
            pairs += part.prefill_pairs
            chunks += part.prefill_chunks
            events.append(part)
        elif part.prefilled:
            events.append(part)
    batch = Batch(prompts, pairs, chunks, decodes, context_sum, context_max, logits, 1, tuple(ranks))
    batch.queries, batch.accepted, batch.undrafted = queries, accepted, undrafted
    for part in events:
        batch.admitted += part.admitted
        batch.prompted += part.prompted
        batch.prefilled += part.prefilled
    return batch
