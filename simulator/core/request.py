"""The state of a request inside an engine."""

from __future__ import annotations

from math import inf

from catalogs.workloads.media import PromptItem
from simulator.core.speculation import AcceptedDrafts


class BlockRun:
    """A run of `count` KV blocks that are freed, cached and evicted together, from their end."""

    __slots__ = ("count", "key", "references")

    def __init__(self, count: int, key: int | None = None) -> None:
        self.count = count
        self.key = key  # content key, if the prefix cache knows the content
        self.references = 0  # number of requests that hold the run


class Request:
    """The state of a request as far as an engine may know it.

    The true output length is not part of it: only the token accounting of the replica uses that.
    """

    __slots__ = (
        "adapter",
        "advances",
        "announces",
        "base_tokens",
        "brought_tokens",
        "cached_tokens",
        "computed_tokens",
        "deadline_s",
        "decodes_in",
        "emitted",
        "ends",
        "fetched_blocks",
        "fetching",
        "gone",
        "index",
        "input_tokens",
        "keys",
        "keys_seen",
        "known_tokens",
        "last_token_s",
        "media",
        "offered_blocks",
        "offered_units",
        "own_full_blocks",
        "own_run",
        "preemptions",
        "priority",
        "reached_s",
        "retired",
        "shared_blocks",
        "spare_blocks",
        "units",
    )

    def __init__(self, index: int, input_tokens: int, keys: tuple[int, ...] = ()) -> None:
        self.index = index  # row in the workload
        self.input_tokens = input_tokens
        self.keys = keys  # prefix caching: content keys of its full cache units, prompt first, then generated
        self.ends: tuple[int, ...] | None = None  # blocks up to the end of each unit; None: units have the same size
        self.known_tokens = input_tokens  # tokens to compute before the next output token: prompt + generated
        self.computed_tokens = 0  # tokens whose KV is scheduled; for a decoding request, see DecodeSet
        self.base_tokens = 0  # computed_tokens - rounds when the request began to decode
        self.decodes_in: object = None  # the last DecodeSet it was added to; each batch of a pipeline has its own set
        self.brought_tokens = 0  # tokens whose KV was transferred from another replica; it decodes once admitted
        self.cached_tokens = -1  # tokens of the prefix-cache hit at first admission; -1 before that
        self.preemptions = 0
        self.reached_s = 0.0  # when the request reached the engine
        self.priority = 0  # lower values are served first, if the engine uses priorities
        self.deadline_s = inf  # when the client wants the first token
        self.gone = False  # whether the client has given up
        self.retired = False  # whether its last token is in flight, so that nothing is left to schedule
        self.emitted = False  # whether its first token has been output
        self.announces = False  # whether the token that it brought is output when it is scheduled here
        self.adapter = -1  # index of the requested LoRA adapter; -1: none
        self.media: tuple[PromptItem, ...] = ()  # in the order of the prompt
        self.advances: AcceptedDrafts | None = None  # its rounds of speculative decoding
        self.spare_blocks = 0  # blocks held for drafts, beyond those of its tokens; while decoding, see SpeculativeSet
        self.last_token_s = 0.0  # set at a preemption: when the last token before it was output
        # Prefix caching (simulator/cache)
        self.keys_seen = 0  # units found in the cache or offered to it
        self.units: list[BlockRun] = []  # the units of `keys`; the request holds a reference to each
        self.shared_blocks = 0  # blocks in those units
        self.own_run: BlockRun | None = None  # after a preemption: the blocks it freed that are not yet overwritten
        self.own_full_blocks = 0
        # Offloading to host memory (simulator/cache/offload.py)
        self.offered_units = 0  # units of `keys` that were offered to the host tier
        self.offered_blocks = 0  # blocks offered beyond those units
        self.fetching: tuple[int, ...] = ()  # keys of the units that are being fetched to the device
        self.fetched_blocks = 0  # number of blocks in those units

    def follower(self, with_first: bool = True) -> Request:
        """Return the same request for the replica that decodes it after this replica has computed the prompt.

        Args:
            with_first: Whether the first output token is transferred too. If not, the decode replica computes the
                last prompt token again.
        """
        follower = Request(self.index, self.input_tokens)
        follower.priority, follower.deadline_s, follower.media = self.priority, self.deadline_s, self.media
        follower.known_tokens = self.input_tokens + with_first
        follower.brought_tokens = follower.known_tokens - 1
        follower.cached_tokens, follower.preemptions = self.cached_tokens, self.preemptions
        follower.emitted = with_first
        return follower
