"""The output that decoding requests have declared and not produced yet, and the share of it that SGLang keeps free."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from simulator.core.mypyc_modules import mypyc_attr
from simulator.core.request import Request
from simulator.schedulers.continuous_batching import DecodeSet
from simulator.schedulers.rules import EngineRules

#: Most tokens that count for one request: SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION of python/sglang/srt/environ.py.
CLIP_TOKENS: Final = 4096


def clipped(left: int) -> int:
    """Return the output tokens that count of `left` tokens that a request may still produce: 0 to CLIP_TOKENS."""
    return 0 if left <= 0 else left if left < CLIP_TOKENS else CLIP_TOKENS


# Default environment variables of SGLang (the same file): SGLANG_INIT_NEW_TOKEN_RATIO,
# SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR, SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS.
INIT_RATIO: Final = 0.7

MIN_RATIO: Final = 0.7 * 0.14

DECAY: Final = (INIT_RATIO - MIN_RATIO) / 600


class DeclaredOutput:
    """The sum over decoding requests of the tokens that each may still produce, at least 0 and at most CLIP_TOKENS.

    A request is represented by its end: the round in which it will have produced all that it declares. It may produce
    end - r more tokens after round r, so the sum over the requests below the limit is a sum of ends minus r for each.
    A request changes its share at two rounds, when it falls below the limit and when nothing is left; a heap holds the
    next of them for each end. The sum thus costs a few heap operations per request instead of a pass over all of them.
    """

    __slots__ = ("_at_limit", "_changes", "_end_sum", "_falling", "_longest", "_members", "_output_tokens", "_rounds")

    def __init__(self, rules: EngineRules) -> None:
        self._output_tokens = rules.max_output_tokens
        self._longest = min(rules.max_model_len, rules.kv_blocks * rules.block_size)
        self._rounds = 0  # the round up to which changes have been applied
        self._members: dict[int, int] = {}  # requests by end, for all ends after this round
        self._changes: list[tuple[int, int]] = []  # heap of (round of the next change, end), once for each end
        self._at_limit = 0  # requests with more than CLIP_TOKENS left
        self._falling = self._end_sum = 0  # requests with fewer left, and the sum of their ends

    def most_tokens(self, input_tokens: int) -> int:
        """Return the most tokens, prompt and output, that a request declares."""
        most = input_tokens + self._output_tokens
        return most if most < self._longest else self._longest

    def add(self, end: int) -> None:
        """Add a request that may produce tokens until round `end`."""
        left = end - self._rounds
        if left <= 0:
            return  # it has produced all that it declares
        if end in self._members:
            self._members[end] += 1
        else:
            self._members[end] = 1
            heappush(self._changes, (end - CLIP_TOKENS if left > CLIP_TOKENS else end, end))
        if left > CLIP_TOKENS:
            self._at_limit += 1
        else:
            self._falling += 1
            self._end_sum += end

    def remove(self, end: int) -> None:
        """Remove a request; `end` is the round with which it was added."""
        left = end - self._rounds
        if left <= 0:
            return
        self._members[end] -= 1
        if left > CLIP_TOKENS:
            self._at_limit -= 1
        else:
            self._falling -= 1
            self._end_sum -= end

    def tokens_after(self, rounds: int) -> int:
        """Return the tokens that all requests may still produce after round `rounds`, which never decreases."""
        changes, members = self._changes, self._members
        self._rounds = rounds
        while changes and changes[0][0] <= rounds:
            at, end = heappop(changes)
            if at == end:  # nothing is left
                n = members.pop(end)
                self._falling -= n
                self._end_sum -= n * end
            else:  # below the limit from now on
                n = members[end]
                self._at_limit -= n
                self._falling += n
                self._end_sum += n * end
                heappush(changes, (end, end))
        return CLIP_TOKENS * self._at_limit + self._end_sum - self._falling * rounds


@mypyc_attr(allow_interpreted_subclasses=True)
class DeclaringDecodes(DecodeSet):
    """A set of decoding requests that also keeps what they have declared and not produced yet.

    Attributes:
        declared: The sum over the members.
    """

    __slots__ = ("declared",)

    def __init__(self, block_size: int, declared: DeclaredOutput) -> None:
        super().__init__(block_size)
        self.declared = declared

    def add(self, request: Request) -> None:
        """Add a request with `request.computed_tokens` tokens in its cache, which decodes from the next round on."""
        super().add(request)
        self.declared.add(self.declared.most_tokens(request.input_tokens) - request.base_tokens - 1)

    def remove(self, request: Request) -> None:
        """Remove a request and restore its token counts."""
        super().remove(request)
        self.declared.remove(self.declared.most_tokens(request.input_tokens) - request.base_tokens - 1)

    def restore(
        self,
        n: int,
        rounds: int,
        base_sum: int,
        phases: list[int],
        longest: list[tuple[int, int, Request]],
        serial: int,
    ) -> None:
        """Take over the sums over `n` members from `simulator/engine/fast_path.py` (see `DecodeSet.restore`)."""
        super().restore(n, rounds, base_sum, phases, longest, serial)
        for negative, _, request in longest:
            self.declared.add(self.declared.most_tokens(request.input_tokens) + negative - 1)


def new_token_ratio(steps: int, start: float = INIT_RATIO) -> float:
    """Return the share of the declared remaining output that admission keeps free, `steps` decode steps after a start.

    The start may lie below the least that the share falls to.
    """
    return max(start - DECAY * steps, MIN_RATIO) if steps else start


class NewTokenRatio:
    """The share of the declared remaining output that admission keeps free; it falls with every decode step."""

    def __init__(self) -> None:
        self.set(INIT_RATIO)

    @property
    def value(self) -> float:
        """Return the share after the decode steps counted so far."""
        return new_token_ratio(self._steps, self._start)

    def set(self, value: float) -> None:
        """Start again from a value, which may lie below the least that the share falls to."""
        self._start, self._steps = value, 0

    def decay(self, steps: int) -> None:
        """Let the share fall by `steps` decode steps."""
        self._steps += steps
