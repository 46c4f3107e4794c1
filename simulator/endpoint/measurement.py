"""The measurement of an endpoint: requests of many lengths, first one at a time and then several at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from calibration.complexity.records import LatencyRecords
from calibration.serve.reply_statistics import counting_notes, failure_counts
from calibration.serve.request_load import LoadLimits, PromptToSend, SentLoad, prompts_of_words, send_load
from calibration.serve.streaming_client import GeneratedReply
from catalogs.arrays import IntArray
from catalogs.errors import InputError
from catalogs.io.pinned_connection import ReplyLimits
from catalogs.ui.progress import CountCallback
from catalogs.workloads.workload import Workload
from simulator.endpoint.target import EndpointTarget

#: Prompt lengths of the requests of a measurement without a workload. Every prompt length is sent with every output
#: length, so that the times of an input token and of an output token can be separated.
INPUT_TOKENS: Final = (16, 64, 128, 256, 512)

#: Output lengths of the same requests.
OUTPUT_TOKENS: Final = (8, 32, 64)

#: The least requests of a level, in multiples of its concurrency. A judgement: with three rounds, most requests run
#: while all places are taken, and only those at the end do not.
LEAST_ROUNDS: Final = 3

#: So many failures without a success between them end the measurement of a level. A judgement: so many are no chance.
FAILURES_IN_A_ROW: Final = 5

WARM_UP: Final = PromptToSend("1 time year people", 4)


@dataclass(frozen=True, slots=True)
class MeasuringPlan:
    """What is sent to an endpoint.

    Attributes:
        prompt: The text of every request; None for random words.
        workload: The workload whose lengths requests have; None for INPUT_TOKENS by OUTPUT_TOKENS.
        output_tokens: The most tokens of an answer to `prompt`.
        requests: Requests of each level, at least.
        concurrency: Requests under way at once, by level.
        seed: Seed of lengths and words.
        reply_s: Limit of each reply, seconds.
        total_s: Limit of the whole measurement, seconds.
    """

    prompt: str | None = None
    workload: Workload | None = None
    output_tokens: int = 128
    requests: int = 15
    concurrency: tuple[int, ...] = (1, 4, 16)
    seed: int = 0
    reply_s: float = 60.0
    total_s: float = 600.0

    def level_size(self, concurrency: int) -> int:
        """Return the number of requests of a level."""
        return max(self.requests, LEAST_ROUNDS * concurrency if concurrency > 1 else 1)

    def prompts(self, n: int, first: int) -> list[PromptToSend]:
        """Return `n` prompts of which the first has the number `first`."""
        if self.prompt is not None:
            return [PromptToSend(self.prompt, self.output_tokens)] * n
        inputs, outputs = self._lengths(n, first)
        words = prompts_of_words([max(int(x), 1) for x in inputs], self.seed + first, first)
        return [PromptToSend(text, max(int(most), 1)) for text, most in zip(words, outputs, strict=True)]

    def _lengths(self, n: int, first: int) -> tuple[IntArray, IntArray]:
        """Return the prompt and output lengths of `n` requests, each of shape (n,)."""
        if self.workload is not None:
            drawn = self.workload.materialise(self.seed + first, n)
            return drawn.input_tokens, drawn.output_tokens
        pairs = np.array([(i, o) for i in INPUT_TOKENS for o in OUTPUT_TOKENS], dtype=np.int64)
        rows = np.arange(n) % len(pairs)
        order = np.random.default_rng(self.seed + first).permutation(len(pairs))
        return pairs[order][rows, 0], pairs[order][rows, 1]


@dataclass(frozen=True, slots=True)
class MeasuredLevel:
    """The requests that were sent with a number of them under way at once; `began_s` is of the monotonic clock."""

    concurrency: int
    prompts: tuple[PromptToSend, ...]
    load: SentLoad
    began_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EndpointMeasurement:
    """What was measured of an endpoint, level by level in the order of the plan."""

    target: EndpointTarget
    plan: MeasuringPlan
    levels: tuple[MeasuredLevel, ...]
    duration_s: float
    notes: tuple[str, ...] = field(default=())

    @property
    def replies(self) -> list[GeneratedReply]:
        """Return the replies of all levels, in the order in which they were measured."""
        return [reply for level in self.levels for reply in level.load.replies]

    @property
    def failures(self) -> dict[str, int]:
        """Return the number of failed requests by reason."""
        return failure_counts(level.load for level in self.levels)


def measure(target: EndpointTarget, plan: MeasuringPlan, tell: CountCallback) -> EndpointMeasurement:
    """Measure an endpoint within the limits of a plan.

    The first request is a short one that is not counted. If it fails, so would all others, and nothing else is sent.

    Args:
        target: The endpoint.
        plan: What is sent.
        tell: Shows how many requests of a level are done.

    Raises:
        InputError: The first request fails, or no request succeeds.
    """
    began_s = time.monotonic()
    limits = LoadLimits(ReplyLimits(plan.reply_s), plan.total_s, FAILURES_IN_A_ROW)
    first = send_load(target.server, [WARM_UP], 1, target.settings, limits, problem_of=target.problem_of)
    if not first.replies:
        raise _refusal(target, first.sent[0].problem or "no reply")
    levels, notes, number = list[MeasuredLevel](), list(target.notes), 1
    for concurrency in plan.concurrency:
        left_s = plan.total_s - (time.monotonic() - began_s)
        if left_s <= 0:
            notes.append(f"the time of the measurement was over before concurrency {concurrency}")
            continue
        prompts = plan.prompts(plan.level_size(concurrency), number)
        here = replace(limits, seconds=left_s)
        level_began_s = time.monotonic()
        say = partial(_say, tell, concurrency)
        say(0, len(prompts))
        load = send_load(target.server, prompts, concurrency, target.settings, here, say, problem_of=target.problem_of)
        levels.append(MeasuredLevel(concurrency, tuple(prompts), load, level_began_s))
        number += len(prompts)
        if load.interrupted:
            notes.append(f"the measurement ended early at concurrency {concurrency}")
            break
    found = EndpointMeasurement(target, plan, tuple(levels), time.monotonic() - began_s, tuple(notes))
    if not found.replies:
        raise _refusal(target, next(iter(found.failures), "no reply"))
    return replace(found, notes=(*notes, *counting_notes(found.replies), *_length_notes(found)))


def _say(tell: CountCallback, concurrency: int, done: int, most: int) -> None:
    """Show how many requests of a level are done."""
    tell(done, most, f"requests, {concurrency} at once")


def _refusal(target: EndpointTarget, problem: str) -> InputError:
    """Return the error of an endpoint that answers no request, with its address unless the reason states it."""
    base = target.server.url.base
    return InputError("the endpoint does not answer requests", problem if base in problem else f"{problem}: {base}")


def _length_notes(found: EndpointMeasurement) -> list[str]:
    """Return notes on answers that are shorter than was requested, and on prompts of unknown length."""
    notes = []
    pairs = [(s.reply, p) for level in found.levels for s, p in zip(level.load.sent, level.prompts, strict=True)]
    short = sum(1 for reply, p in pairs if reply is not None and reply.output_tokens < p.output_tokens)
    if short:
        notes.append(f"{short} of {len(found.replies)} answers ended before their most tokens")
    if any(reply.input_tokens is None for reply in found.replies):
        notes.append("the server does not state the lengths of prompts: each word counts as one token")
    return notes


def lengths(level: MeasuredLevel) -> list[tuple[int, int, GeneratedReply]]:
    """Return prompt tokens, output tokens and reply of each request of a level that succeeded."""
    found = []
    for sent, prompt in zip(level.load.sent, level.prompts, strict=True):
        if sent.reply is not None and sent.reply.output_tokens > 0:
            words = len(prompt.text.split())
            found.append((sent.reply.input_tokens or words, sent.reply.output_tokens, sent.reply))
    return found


def records(levels: Sequence[MeasuredLevel]) -> LatencyRecords:
    """Return the latencies of the requests that succeeded; those of a reply without a stream have no first token."""
    rows = [row for level in levels for row in lengths(level)]
    return LatencyRecords(
        np.array([i for i, _, _ in rows], dtype=np.float64),
        np.array([o for _, o, _ in rows], dtype=np.float64),
        np.array([r.e2e_s for _, _, r in rows], dtype=np.float64),
        np.array([np.nan if r.ttft_s is None else r.ttft_s for _, _, r in rows], dtype=np.float64),
    )
