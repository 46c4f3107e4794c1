"""The state of a request inside an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from catalogs.workloads.media import PromptItem
from simulator.core.speculation import AcceptedDrafts


@dataclass(slots=True, eq=False)
class BlockRun:
    """A run of `count` KV blocks that are freed, cached and evicted together, from their end."""

    count: int
    key: int | None = None  # content key, if the prefix cache knows the content
    references: int = 0  # number of requests that hold the run


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """The state of a request as far as an engine may know it.

    The true output length is not part of it: only the token accounting of the replica uses that.
    """

    index: int  # row in the workload
    input_tokens: int
    keys: tuple[int, ...] = ()  # prefix caching: content keys of its full cache units, prompt first, then generated
    ends: tuple[int, ...] | None = None  # blocks up to the end of each unit; None: all units have the same size
    known_tokens: int = field(init=False)  # tokens to compute before the next output token: prompt + generated
    computed_tokens: int = 0  # tokens whose KV is scheduled; for a decoding request, see DecodeSet
    base_tokens: int = 0  # computed_tokens - rounds when the request began to decode
    decodes_in: object = None  # the last DecodeSet it was added to; each batch of a pipeline has its own set
    brought_tokens: int = 0  # tokens whose KV was transferred from another replica; it decodes once admitted
    cached_tokens: int = -1  # tokens of the prefix-cache hit at first admission; -1 before that
    preemptions: int = 0
    reached_s: float = 0.0  # when the request reached the engine
    priority: int = 0  # lower values are served first, if the engine uses priorities
    deadline_s: float = inf  # when the client wants the first token
    gone: bool = False  # whether the client has given up
    retired: bool = False  # whether its last token is in flight, so that nothing is left to schedule
    emitted: bool = False  # whether its first token has been output
    adapter: int = -1  # index of the requested LoRA adapter; -1: none
    media: tuple[PromptItem, ...] = ()  # in the order of the prompt
    advances: AcceptedDrafts | None = None  # its rounds of speculative decoding
    spare_blocks: int = 0  # blocks held for drafts, beyond those of its tokens; while decoding, see SpeculativeSet
    last_token_s: float = 0.0  # set at a preemption: when the last token before it was output
    # Prefix caching (simulator/cache)
    keys_seen: int = 0  # units found in the cache or offered to it
    units: list[BlockRun] = field(default_factory=list)  # the units of `keys`; the request holds a reference to each
    shared_blocks: int = 0  # blocks in those units
    own_run: BlockRun | None = None  # after a preemption: the blocks it freed that are not yet overwritten
    own_full_blocks: int = 0
    # Offloading to host memory (simulator/cache/offload.py)
    offered_units: int = 0  # units of `keys` that were offered to the host tier
    offered_blocks: int = 0  # blocks offered beyond those units
    fetching: tuple[int, ...] = ()  # keys of the units that are being fetched to the device
    fetched_blocks: int = 0  # number of blocks in those units

    def __post_init__(self) -> None:
        self.known_tokens = self.input_tokens

    def follower(self, with_first: bool = True) -> Request:
        """Return the same request for the replica that decodes it after this replica has computed the prompt.

        Args:
            with_first: Whether the first output token is transferred too. If not, the decode replica computes the
                last prompt token again.
        """
        twin = Request(self.index, self.input_tokens)
        twin.priority, twin.deadline_s, twin.media = self.priority, self.deadline_s, self.media
        twin.known_tokens = self.input_tokens + with_first
        twin.brought_tokens = twin.known_tokens - 1
        twin.cached_tokens, twin.preemptions, twin.emitted = self.cached_tokens, self.preemptions, with_first
        return twin
