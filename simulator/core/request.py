"""A request inside an engine."""

from __future__ import annotations

from math import inf

from simulator.core.speculation import AcceptedDrafts


class BlockRun:
    """`count` blocks that are freed, cached and evicted together, from their end."""

    __slots__ = ("count", "key", "references")

    def __init__(self, count: int, key: int | None = None) -> None:
        self.count = count
        self.key = key  # content, when the prefix cache knows it
        self.references = 0  # requests that hold it


class Request:
    """What an engine may know of a request. The true output length is not here: only the replica's clock knows it."""

    __slots__ = (
        "adapter",
        "advances",
        "base_tokens",
        "brought_tokens",
        "cached_tokens",
        "computed_tokens",
        "deadline_s",
        "decodes_in",
        "emitted",
        "fetched_blocks",
        "fetching",
        "gone",
        "index",
        "input_tokens",
        "keys",
        "keys_seen",
        "known_tokens",
        "last_token_s",
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
        self.known_tokens = input_tokens  # tokens to compute before the next one: prompt + generated
        self.computed_tokens = 0  # tokens whose KV is scheduled; of a decoding request: see DecodeSet
        self.base_tokens = 0  # computed_tokens - rounds when it began to decode
        self.decodes_in: object = None  # the DecodeSet it was put in last: each batch of a pipeline has its own
        self.brought_tokens = 0  # tokens whose KV comes with it from another replica: it decodes once it has a seat
        self.cached_tokens = -1  # prefix-cache hit at first admission; -1 before
        self.preemptions = 0
        self.reached_s = 0.0  # when it was at the engine
        self.priority = 0  # lower is served first, where the engine looks at it
        self.deadline_s = inf  # by when its client wants the first token
        self.gone = False  # its client has given up
        self.retired = False  # its last token is in flight: nothing left to schedule
        self.emitted = False  # its first token is out
        self.adapter = -1  # LoRA adapter it asks for; -1: none
        self.advances: AcceptedDrafts | None = None  # its rounds of speculative decoding
        self.spare_blocks = 0  # held beyond those of its tokens, for drafts; while it decodes: see SpeculativeSet
        self.last_token_s = 0.0  # set at preemption: when the last token before it came out
        # Prefix caching (kv_cache.py)
        self.keys = keys  # content keys of its full cache units, prompt first, then generated
        self.keys_seen = 0  # units found in the cache or offered to it
        self.units: list[BlockRun] = []  # the units of those keys; it holds a reference to each
        self.shared_blocks = 0  # blocks in those units
        self.own_run: BlockRun | None = None  # after a preemption: its own freed blocks, not yet overwritten
        self.own_full_blocks = 0
        # A tier beside the device (host_cache.py)
        self.offered_units = 0  # units of those keys that were offered to it
        self.offered_blocks = 0  # and blocks beyond them
        self.fetching: tuple[int, ...] = ()  # keys that are on their way to the device
        self.fetched_blocks = 0  # how many blocks that is

    def follower(self, with_first: bool = True) -> Request:
        """The same request for the replica that decodes it, now that this one has its prompt and first token; or its
        prompt alone, whose last token is then computed there again."""
        twin = Request(self.index, self.input_tokens)
        twin.priority, twin.deadline_s = self.priority, self.deadline_s
        twin.known_tokens = self.input_tokens + with_first
        twin.brought_tokens = twin.known_tokens - 1
        twin.cached_tokens, twin.preemptions, twin.emitted = self.cached_tokens, self.preemptions, with_first
        return twin
