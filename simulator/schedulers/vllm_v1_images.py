"""vLLM V1 with images in prompts (`_try_schedule_encoder_inputs` in vllm/v1/core/sched/scheduler.py).

An image is encoded in the first step that computes a token of it, unless the encoder cache holds its embeddings, or its
tokens are in the prefix cache. A step encodes at most the encoder budget, and only what the encoder cache has space
for; otherwise the prompt is computed up to the image. A request releases an image when the step with the image's last
token has ended, which with steps scheduled ahead is known one schedule later.

Simplification: after a prompt that the encoder budget has cut, no further request is admitted in the step. vLLM goes on
with the next waiting request, which therefore may start earlier there.
"""

from __future__ import annotations

from catalogs.workloads.images import PromptImage
from simulator.cache.encoder_cache import EncoderCache
from simulator.core.batch import Batch, Encoding
from simulator.core.request import Request
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm_v1 import VllmV1


class ImagesV1(VllmV1):
    """vLLM V1 for requests with images.

    Raises:
        ValueError: The rules state no limits of images.
    """

    pipelines = False
    takes_over = False
    hands_over = False

    def __init__(self, rules: EngineRules) -> None:
        super().__init__(rules)
        if rules.images is None:
            raise ValueError("a scheduler of images needs their limits")
        self.encoders = self._cache = EncoderCache(rules.images.cache)
        self._budget = self._most = rules.images.budget  # embeddings left in this step
        self._planned: list[PromptImage] = []  # images that the next chunk of a prompt needs encoded
        self._hit: list[PromptImage] = []  # images that the next chunk found in the cache
        self._passed: list[tuple[Request, int]] = []  # images computed to their ends in the last scheduled step
        self._passing: list[tuple[Request, int]] = []  # the same of the step before, where it has not ended

    def schedule(self) -> Batch | None:
        """Return the batch of the next step, or None if nothing can run."""
        self._release_passed(everything=not self.rules.lag)
        self._budget = self._most
        batch = super().schedule()
        if batch is None:  # the next call comes after all steps have ended
            self._release_passed(everything=True)
        return batch

    def skip(self, rounds: int) -> None:
        """Schedule `rounds` rounds of the same decodes at once, which encode nothing."""
        if rounds:
            self._release_passed(everything=rounds > 1 or not self.rules.lag)
        super().skip(rounds)

    def _release_passed(self, everything: bool) -> None:
        """Release the images whose last token was computed in a step that has ended."""
        if self._passing or self._passed:
            for request, content in self._passing:
                self._cache.release(content, request)
            self._passing, self._passed = self._passed, []
            if everything:
                self._release_passed(everything=False)

    def _admit_head(self, batch: Batch, request: Request, budget: int) -> int:
        """Admit the head of the queue up to the first image that cannot be encoded in this step."""
        if not request.images or request.retired:
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
        """Schedule the next chunk of the running prompt, up to the first image that cannot be encoded in this step.

        Returns its tokens, 0 if it was preempted, or the whole budget if nothing else may start in this step.
        """
        if not request.images:
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
        """Return how many of the next `tokens` of a prompt can be computed, and plan the encoding of their images."""
        cache, budget, planned = self._cache, self._budget, 0
        for image in request.images:
            if image.start >= computed + tokens:
                break
            if image.end <= computed or cache.holds(image.content, request):
                continue
            if any(other.content == image.content for other in self._planned):
                continue
            if image.content in cache:
                cache.hold(image.content, request)
                self._hit.append(image)
                continue
            embeddings = image.layout.embeddings
            if embeddings > budget or not cache.make_space(planned + embeddings):
                return max(image.start - computed, 0)
            budget -= embeddings
            planned += embeddings
            self._planned.append(image)
        return tokens

    def _cancel_plan(self, request: Request) -> None:
        for image in self._hit:
            self._cache.release(image.content, request)
        self._hit, self._planned = [], []

    def _encode(self, batch: Batch, request: Request) -> None:
        """Encode the planned images with the batch, and note the images whose last token it computes."""
        cache = self._cache
        cache.n_hits += len(self._hit)
        if self._planned:
            images, tiles, patches, pairs = batch.moving().encoding or Encoding()
            for image in self._planned:
                layout = image.layout
                cache.insert(image.content, layout.embeddings, request)
                self._budget -= layout.embeddings
                images, tiles = images + 1, tiles + layout.tiles
                patches, pairs = patches + layout.tiles * layout.patches, pairs + layout.tiles * layout.patches**2
            batch.moving().encoding = Encoding(images, tiles, patches, float(pairs))
        self._hit, self._planned = [], []
        computed = self.computed_tokens(request)
        done = (image.content for image in request.images if image.end <= computed)
        self._passed += [(request, content) for content in done if cache.holds(content, request)]

    def _evict(self, request: Request, returning: bool = False, kept_tokens: int | None = None) -> None:
        """Preempt a request and release its images."""
        self._release_images(request)
        super()._evict(request, returning, kept_tokens)

    def release(self, request: Request) -> None:
        """Free the seat, the blocks and the images of a request."""
        self._release_images(request)
        super().release(request)

    def _release_images(self, request: Request) -> None:
        for image in request.images:
            self._cache.release(image.content, request)
