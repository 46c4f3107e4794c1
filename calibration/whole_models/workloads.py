"""The workloads of whole models, and the points to measure: model x workload x batch x input length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Final

import numpy as np

from catalogs.errors import InputError, nearest_name

#: Batch sizes that are measured.
BATCHES: Final = (1, 8, 32, 128)

#: Longest input that is measured, in tokens. A judgement: longer ones take too much of a budget.
MAX_INPUT: Final = 512

FEWEST_OUTPUT: Final = 2  # the second token is the first decode step

SINGLE_RUN_S: Final = 4.0  # a longer run is timed once where the limit does not allow a second run

#: Output tokens of "generation", to which the other workloads are proportional: a summary then has 64 tokens, an answer
#: to a question 24, and a translation 3 for every 4 of its source.
OWN_OUTPUT: Final = 128

#: Limits of output lengths by kind of device; every point is listed with each. A CPU needs about 0.1 s for a token of a
#: small model, so it also measures outputs that are cut to 8 tokens, which leave time for larger batches and inputs.
MAX_OUTPUTS: Final = {"cpu": (OWN_OUTPUT, 8), "cuda": (OWN_OUTPUT,)}


@dataclass(frozen=True, slots=True)
class PaddedWorkload:
    """A workload with lengths in tokens, where every sequence of a batch is padded to the same length.

    Hugging Face pads in this way. `output_share` is the output length as a share of the output length of "generation";
    where `output_follows_input` is true, it is also proportional to the input length.
    """

    name: str
    inputs: tuple[int, int]
    output_share: float
    output_follows_input: bool = False

    def output_tokens(self, input_tokens: int, max_output: int) -> int:
        """Return the number of tokens to generate for an input of this length."""
        share = self.output_share
        if self.output_follows_input:
            share *= min(input_tokens / self.inputs[1], 1.0)
        return max(FEWEST_OUTPUT, round(share * max_output))

    @property
    def typical_input(self) -> int:
        """Return the geometric mean of the shortest and the longest input, in tokens."""
        return round(math.sqrt(self.inputs[0] * self.inputs[1]))


#: Lengths of the order of published benchmarks (news articles, sentences, passages, prompts). Where two workloads have
#: the same lengths, `points` keeps one, because the same work under two names would leak between held-out groups.
WORKLOADS: Final = (
    PaddedWorkload("summarisation", (128, 512), 0.5),
    PaddedWorkload("translation", (16, 128), 0.75, output_follows_input=True),
    PaddedWorkload("question answering", (48, 384), 0.1875),
    PaddedWorkload("generation", (8, 64), 1.0),
)


def workload_named(text: str) -> PaddedWorkload:
    """Return the workload of a name, in which hyphens may stand for spaces.

    Raises:
        InputError: If there is no workload of this name.
    """
    by_name = {w.name: w for w in WORKLOADS}
    wanted = " ".join(text.lower().replace("-", " ").replace("_", " ").split())
    if wanted not in by_name:
        names = ", ".join(n.replace(" ", "-") for n in by_name)
        raise InputError("no such workload of whole models", text, nearest_name(wanted, by_name), hint=names)
    return by_name[wanted]


LENGTHS: Final = 4  # per workload: the two ends, and lengths between them drawn for every model and batch


@dataclass(frozen=True, slots=True)
class Point:
    """One point to measure: a model, a workload, a batch size and lengths in tokens."""

    model: str
    workload: str
    batch: int
    input_tokens: int
    output_tokens: int

    @property
    def key(self) -> str:
        """Return the identifier of the point in a session."""
        return f"{self.model}/{self.workload}/b{self.batch}/i{self.input_tokens}/o{self.output_tokens}"

    @property
    def decode_steps(self) -> int:
        """Return the number of decode steps, one fewer than the output tokens."""
        return self.output_tokens - 1


def points(
    models: Sequence[str], batches: Sequence[int], max_input: int, max_outputs: Sequence[int], seed: int = 0
) -> list[Point]:
    """Return every point in the order to measure them.

    The first input length of each configuration comes first, in random order and with each limit of `max_outputs` in
    turn, then the second input length of each, and so on.

    Raises:
        InputError: If a batch or length is below 1, or `max_input` is shorter than the inputs of every workload.
    """
    for name, value in (*(("a batch", b) for b in batches), *(("the longest output", n) for n in max_outputs)):
        if value < 1:
            raise InputError(f"{name} must be at least 1", value)
    if max_input < min(w.inputs[0] for w in WORKLOADS):
        raise InputError("the longest input is shorter than the inputs of every workload", max_input, "512")
    rng = np.random.default_rng(seed)
    limits = list(dict.fromkeys(max_outputs))
    rounds: list[list[Point]] = [[] for _ in range(LENGTHS * len(limits))]
    seen: set[tuple[str, int, int, int]] = set()
    for model in dict.fromkeys(models):
        for workload in WORKLOADS:
            for batch in dict.fromkeys(batches):
                lengths = rng.permutation(_lengths(workload, max_input, rng))
                for turn, (tokens, limit) in zip(rounds, product(lengths.tolist(), limits), strict=False):
                    output = workload.output_tokens(tokens, limit)
                    work = (model, batch, tokens, output)
                    if work not in seen:  # another workload may contain the same work under another name
                        seen.add(work)
                        turn.append(Point(model, workload.name, batch, tokens, output))
    return [turn[i] for turn in rounds for i in rng.permutation(len(turn))]


def _lengths(workload: PaddedWorkload, max_input: int, rng: np.random.Generator) -> list[int]:
    """Return distinct input lengths: both ends and one log-uniform draw from each part between them."""
    low, high = workload.inputs[0], min(workload.inputs[1], max_input)
    if low > high:
        return []
    edges = np.geomspace(low, high, LENGTHS - 1)
    drawn = [round(float(np.exp(rng.uniform(np.log(a), np.log(b))))) for a, b in pairwise(edges.tolist())]
    return sorted({low, high, *drawn})
