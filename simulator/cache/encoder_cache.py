"""The caches of embeddings: embeddings of media on the device, shared by all requests with the same item.

It counts embeddings, not bytes, as vLLM's EncoderCacheManager does (vllm/v1/core/encoder_cache_manager.py). An entry
is held by the requests whose prompts still need it. An entry that no request holds stays until its space is needed; the
entry that was released first leaves first.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from catalogs.deployments.resolution.encoder_pools import EncodingPlace
from simulator.core.invariants import require
from simulator.core.request import Request


@dataclass(frozen=True, slots=True)
class EncoderLimits:
    """The limits of encoding images, videos and audio, in embeddings.

    Attributes:
        budget: Most embeddings that are computed in a step.
        cache: Embeddings that the encoder cache holds.
        rejects: Whether requests with a larger item are rejected (vLLM), and not encoded without the cache (SGLang).
        where: Where the items of the replica's requests are encoded.
    """

    budget: int
    cache: int
    rejects: bool = True
    where: EncodingPlace = "here"

    @property
    def largest_item(self) -> float:
        """Return the most embeddings that an item of an accepted request has."""
        return min(self.budget, self.cache) if self.rejects else inf


class EncoderCache:
    """The entries of an encoder cache by the content of their item.

    Attributes:
        n_encoded: Items that were encoded.
        n_hits: Items whose embeddings were in the cache when a request first needed them.
    """

    def __init__(self, size: int) -> None:
        self.size = self.free = size  # embeddings
        self.n_encoded = self.n_hits = 0
        self._sizes: dict[int, int] = {}  # embeddings of each entry
        self._holders: dict[int, set[Request]] = {}
        self._idle: dict[int, None] = {}  # entries that no request holds, the first released first

    def __contains__(self, content: int) -> bool:
        return content in self._sizes

    @property
    def reclaimable(self) -> int:
        """Return the embeddings that are free or belong to entries that no request holds."""
        return self.free + sum(self._sizes[content] for content in self._idle)

    def holds(self, content: int, request: Request) -> bool:
        """Return whether a request holds an entry."""
        return request in self._holders.get(content, ())

    def hold(self, content: int, request: Request) -> None:
        """Let a request hold an entry of the cache."""
        self._idle.pop(content, None)
        self._holders[content].add(request)

    def make_space(self, embeddings: int) -> bool:
        """Evict entries that no request holds, and return whether this number of embeddings is then free."""
        if embeddings > self.free and embeddings > self.reclaimable:
            return False
        while embeddings > self.free:
            content = next(iter(self._idle))
            del self._idle[content], self._holders[content]
            self.free += self._sizes.pop(content)
        return True

    def insert(self, content: int, embeddings: int, request: Request, encoded: bool = True) -> None:
        """Add the entry of an item that is encoded for a request, or whose embeddings another replica has sent."""
        self._sizes[content] = embeddings
        self._holders[content] = {request}
        self.free -= embeddings
        self.n_encoded += encoded

    def release(self, content: int, request: Request) -> None:
        """End a request's hold on an entry, if it has one."""
        holders = self._holders.get(content)
        if holders and request in holders:
            holders.remove(request)
            if not holders:
                self._idle[content] = None

    def check(self) -> None:
        """Check that free + entries = size, and that exactly the entries without holders are idle."""
        used = sum(self._sizes.values())
        require(self.free >= 0, f"the encoder cache has {self.free} free embeddings")
        require(self.free + used == self.size, f"{self.free} free + {used} cached != {self.size} embeddings")
        idle = {content for content, holders in self._holders.items() if not holders}
        require(idle == set(self._idle), "an encoder cache entry without holders is not idle")


class RequestEmbeddings:
    """The embeddings of whole requests, the least recently used evicted first (SGLang's MultiModalStaticCache).

    Attributes:
        n_encoded: Items that were encoded.
        n_hits: Items whose embeddings were in the cache when a request first needed them.
    """

    def __init__(self, size: int) -> None:
        self.size = self.free = size  # embeddings
        self.n_encoded = self.n_hits = 0
        self._sizes: dict[tuple[int, ...], int] = {}  # embeddings of each entry, the least recently used first

    def find(self, key: tuple[int, ...]) -> bool:
        """Return whether the cache has the items of a request, and note their use."""
        size = self._sizes.pop(key, None)
        if size is not None:
            self._sizes[key] = size
        return size is not None

    def insert(self, key: tuple[int, ...], embeddings: int) -> None:
        """Add the items of a request if they fit in the whole cache, evicting others."""
        if embeddings > self.size:
            return
        while embeddings > self.free:
            self.free += self._sizes.pop(next(iter(self._sizes)))
        self.free -= embeddings
        self._sizes[key] = embeddings

    def check(self) -> None:
        """Check that the entries and the free space make up the cache."""
        require(self.free >= 0, "the cache of embeddings holds more than its size")
        require(self.free + sum(self._sizes.values()) == self.size, "embeddings were lost from their cache")
