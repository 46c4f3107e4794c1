"""vLLM V1 with images, videos and audio in prompts (`_try_schedule_encoder_inputs` in vllm/v1/core/sched/scheduler.py).

An item is encoded in the first step that computes a token of it, unless the encoder cache holds its embeddings, or its
tokens are in the prefix cache. A step encodes at most the encoder budget, and only what the encoder cache has space
for; otherwise the prompt is computed up to the item. A request releases an item when the step with its last
token has ended, which with steps scheduled ahead is known one schedule later.

A replica behind an encoder pool receives the embeddings and encodes nothing. They take the same space in its encoder
cache, and an item that is larger than the budget still ends a chunk, but receiving it uses up none of the budget
(`external_load_encoder_input`). A replica of an encoder pool schedules like any other (`is_mm_encoder_only`): prompts
of items without text, whose steps encode and run no language model.

Simplification: after a prompt that the encoder budget has cut, no further request is admitted in the step. vLLM goes on
with the next waiting request, which therefore may start earlier there.
"""

from __future__ import annotations

from catalogs.workloads.media import PromptItem
from simulator.cache.encoder_cache import EncoderCache
from simulator.core.batch import Batch, Encoding
from simulator.core.request import Request
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1 import VllmV1


class MediaV1(VllmV1):
    """vLLM V1 for requests with images, videos or audio.

    Raises:
        ValueError: The rules state no limits of encoding.
    """

    pipelines = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        if rules.encoder_limits is None:
            raise ValueError("a scheduler of images, videos and audio needs the limits of encoding")
        self._encodes = rules.encoder_limits.where != "elsewhere"
        self.encoders = self._cache = EncoderCache(rules.encoder_limits.cache)
        self._budget = self._most = rules.encoder_limits.budget  # embeddings left in this step
        self._planned: list[PromptItem] = []  # items that the next chunk of a prompt needs encoded
        self._hit: list[PromptItem] = []  # items that the next chunk found in the cache
        self._passed: list[tuple[Request, int]] = []  # items computed to their ends in the last scheduled step
        self._passing: list[tuple[Request, int]] = []  # the same of the step before, where it has not ended

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""
        self._release_passed(everything=not self.rules.lag)
        self._budget = self._most
        batch = super().schedule()
        if batch is not None and self.rules.encodes_only:
            batch.logits = 0
        if batch is None:  # the next call comes after all steps have ended
            self._release_passed(everything=True)
        return batch

    def skip(self, rounds: int) -> None:
        """Schedule `rounds` rounds of the same decodes at once, which encode nothing."""
        if rounds:
            self._release_passed(everything=rounds > 1 or not self.rules.lag)
        super().skip(rounds)

    def _release_passed(self, everything: bool) -> None:
        """Release the items whose last token was computed in a step that has ended."""
        if self._passing or self._passed:
            for request, content in self._passing:
                self._cache.release(content, request)
            self._passing, self._passed = self._passed, []
            if everything:
                self._release_passed(everything=False)

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        """Admit the head of the queue up to the first item that cannot be encoded in this step."""
        if not request.media or request.retired or request.brought_tokens:
            return super()._admit_head(batch, request, budget)
        hit_tokens = self._hits(request)[3]
        wanted = min(request.known_tokens - hit_tokens, budget)
        allowed = self._plan(request, hit_tokens, wanted)
        cut = allowed < wanted
        if not allowed or (cut and not self.rules.chunked_prefill):
            self._cancel_plan(request)
            return 0
        tokens = super()._admit_head(batch, request, allowed if cut else budget)
        if not tokens:
            self._cancel_plan(request)
            return 0
        self._encode(batch, request)
        return budget if cut else tokens

    def _continue_prompt(self, batch: Batch, request: Request, budget: int) -> int:
        """Schedule the next chunk of the running prompt, up to the first item that cannot be encoded in this step.

        Returns its tokens, 0 if it was preempted, or the whole budget if nothing else may start in this step.
        """
        if not request.media:
            return super()._continue_prompt(batch, request, budget)
        wanted = min(request.known_tokens - request.computed_tokens, budget, self._chunk or budget)
        allowed = self._plan(request, request.computed_tokens, wanted)
        if not allowed:
            self._cancel_plan(request)
            return budget
        tokens = super()._continue_prompt(batch, request, allowed)
        if not tokens:
            self._cancel_plan(request)
            return 0
        self._encode(batch, request)
        return budget if allowed < wanted else tokens

    def _plan(self, request: Request, computed: int, tokens: int) -> int:
        """Return how many of the next `tokens` of a prompt can be computed, and plan the encoding of their items."""
        cache, budget, planned = self._cache, self._budget, 0
        for item in request.media:
            if item.start >= computed + tokens:
                break
            if item.end <= computed or cache.holds(item.content, request):
                continue
            if any(other.content == item.content for other in self._planned):
                continue
            if item.content in cache:
                cache.hold(item.content, request)
                self._hit.append(item)
                continue
            embeddings = item.layout.embeddings
            if embeddings > budget or not cache.make_space(planned + embeddings):
                return max(item.start - computed, 0)
            if self._encodes:
                budget -= embeddings
            planned += embeddings
            self._planned.append(item)
        return tokens

    def _cancel_plan(self, request: Request) -> None:
        for item in self._hit:
            self._cache.release(item.content, request)
        self._hit, self._planned = [], []

    def _encode(self, batch: Batch, request: Request) -> None:
        """Encode the planned items with the batch, and note the items whose last token it computes."""
        cache = self._cache
        cache.n_hits += len(self._hit)
        for item in self._planned:
            cache.insert(item.content, item.layout.embeddings, request, self._encodes)
        if self._planned and self._encodes:
            encoding = batch.moving().encoding or Encoding()
            for item in self._planned:
                self._budget -= item.layout.embeddings
                encoding = encoding.plus(item.layout)
            batch.moving().encoding = encoding
        self._hit, self._planned = [], []
        computed = self.computed_tokens(request)
        done = (item.content for item in request.media if item.end <= computed)
        self._passed += [(request, content) for content in done if cache.holds(content, request)]

    def _evict(self, request: Request, returning: bool = False, kept_tokens: int | None = None) -> None:
        """Preempt a request and release its items."""
        self._release_items(request)
        super()._evict(request, returning, kept_tokens)

    def release(self, request: Request) -> None:
        """Free the seat, the blocks and the items of a request."""
        self._release_items(request)
        super().release(request)

    def _release_items(self, request: Request) -> None:
        for item in request.media:
            self._cache.release(item.content, request)
