"""A short probe of a served model: single requests of many lengths, then bursts that decode together.

Other processes and other guests of the same host slow a machine down for seconds at a time. A probe therefore repeats
its lengths and its bursts in turn until each part has lasted for several seconds, so that every size is measured at
several moments. The requests of a large model last that long with the fewest repeats.

A burst of a small model takes a tenth of a second. The first burst of every size is followed by the longest pause that
it could need; the others follow as closely as the first ones allow, so that most of the time is spent on decoding and
the machine does not fall idle, which it leaves slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun, combined
from calibration.serve.clients import TRIES, Client, Endpoint, IncompleteReplay
from catalogs.arrays import FloatArray, IntArray
from catalogs.workloads.request_set import RequestSet

#: Output tokens of every request of a probe. A judgement: enough steps for a mean, and a short probe.
OUTPUT_TOKENS: Final = 24

#: Prompt tokens of the requests of a burst. A judgement: short prompts, so that the burst soon decodes together.
BURST_INPUT_TOKENS: Final = 96

#: Prompt tokens of the shortest single request.
SHORTEST_INPUT_TOKENS: Final = 4

#: Number of prompt lengths of single requests.
N_LENGTHS: Final = 12

#: Requests of each burst, up to the `max_num_seqs` of the server.
BURSTS: Final = (2, 4, 8, 16, 32, 64, 128)

REPEATS: Final = (2, 8)  # fewest and most of each length

BURST_REPEATS: Final = (2, 32)  # fewest and most of each burst

#: Time that the single requests, and the bursts, should take. A judgement: other guests of a host slow it down for
#: seconds at a time.
PART_S: Final = 10.0

#: Time between the first bursts, in multiples of the longest time that a burst should take. A judgement: room for a
#: step that takes longer than predicted.
SPACE: Final = 1.5

#: Time between further bursts, in multiples of the time that the first of their size took. A judgement, as for `SPACE`.
MEASURED_SPACE: Final = 2.0

#: Further seconds between bursts. A judgement: the client takes some milliseconds to read the last answers and to send
#: the next burst, however short the burst itself is.
PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Probe:
    """The measured runs of a probe.

    `burst_sizes` holds the number of requests of each burst of the second run, in order: all sizes, repeatedly.
    `burst_passes` holds how often a decode step of each burst reads the weights; () if the engine reads them once.
    """

    single: MeasuredRun
    bursts: MeasuredRun
    burst_sizes: tuple[int, ...]
    burst_passes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """The extent of a probe.

    Attributes:
        most_input_tokens: Longest prompt of the single requests.
        max_num_seqs: Limit of concurrent sequences of the server; larger bursts are left out.
        part_s: Time that the single requests, and the bursts, should take.
    """

    most_input_tokens: int
    max_num_seqs: int
    part_s: float = PART_S


def joined(probes: Sequence[Probe]) -> Probe:
    """Return several probes of one engine as one; passes are unknown if they are unknown for one of them."""
    passes = [each.burst_passes for each in probes]
    return Probe(
        combined(_in_turn([each.single for each in probes])),
        combined(_in_turn([each.bursts for each in probes])),
        tuple(n for each in probes for n in each.burst_sizes),
        tuple(n for each in passes for n in each) if all(passes) else (),
    )


def _in_turn(runs: Sequence[MeasuredRun]) -> list[tuple[IntArray, MeasuredRun]]:
    """Return each run with the positions of its requests, one run after the other."""
    ends = np.cumsum([run.n for run in runs]).tolist()
    return [(np.arange(end - run.n, end), run) for end, run in zip(ends, runs, strict=True)]


def probe(
    client: Client,
    target: Endpoint,
    limits: ProbeLimits,
    out: Path,
    tell: Callable[[str], None],
    seed: int = 0,
) -> Probe:
    """Run the probe, which takes about half a minute on a small model, and longer the slower the model is.

    Requests that fail are sent again: a single request by itself, a request of a burst with its whole burst.

    Args:
        client: The load client.
        target: The server.
        limits: The extent of the probe.
        out: Folder for the client's files.
        tell: Shows which requests failed, and why.
        seed: Seed of the order of prompt lengths.

    Raises:
        InputError: If the client fails.
        IncompleteReplay: If requests fail in every attempt.
    """
    send = partial(replay_groups, client, target, tell=tell)
    most = limits.most_input_tokens
    warm_up = single_requests(most, seed + 1, repeats=1)
    warmed = send(warm_up, np.arange(warm_up.n), out / "warm-up")
    requests = single_requests(most, seed, repeats_within(limits.part_s, float(warmed.e2e_s.sum())))
    single = send(requests, np.arange(requests.n), out / "single")
    sizes = tuple(n for n in BURSTS if n <= limits.max_num_seqs)
    first = single.stat("ttft", "mean") * BURST_INPUT_TOKENS / max(float(single.input_tokens.mean()), 1.0)
    times_s = max(first, single.stat("ttft", "p50") * 0.2), single.stat("tpot", "p50")
    groups = np.repeat(np.arange(len(sizes)), sizes)
    once = send(burst_requests(sizes, cautious_spaces_s(sizes, *times_s)), groups, out / "bursts")
    spaces_s = measured_spaces_s(once, sizes)
    repeats = repeats_within(limits.part_s, float(spaces_s.sum()), BURST_REPEATS) - 1
    further = burst_requests(sizes * repeats, np.tile(spaces_s, repeats))
    groups = np.repeat(np.arange(len(sizes) * repeats), sizes * repeats)
    runs = [once, send(further, groups, out / "further-bursts")]
    return Probe(single, combined(_in_turn(runs)), sizes * (1 + repeats))


def repeats_within(most_s: float, once_s: float, limits: tuple[int, int] = REPEATS) -> int:
    """Return how often something that takes `once_s` is repeated to take `most_s`, within (fewest, most)."""
    fewest, most = limits
    return fewest if once_s <= 0.0 else min(most, max(fewest, int(most_s / once_s)))


def replay_groups(
    client: Client,
    target: Endpoint,
    requests: RequestSet,
    groups: IntArray,
    out: Path,
    tell: Callable[[str], None],
) -> MeasuredRun:
    """Replay requests, and send every group in which a request failed again, TRIES times in all.

    Args:
        client: The load client.
        target: The server.
        requests: The requests; groups do not overlap in time.
        groups: The group of each request, ascending. Shape (n,).
        out: Folder for the client's files.
        tell: Shows which requests failed, and why.

    Raises:
        IncompleteReplay: If requests fail in every attempt.
    """
    done: list[tuple[IntArray, MeasuredRun]] = []
    left = np.arange(requests.n)
    for attempt in range(1, TRIES + 1):
        folder = out if attempt == 1 else out.with_name(f"{out.name}-{attempt}")
        try:
            done.append((left, client.replay(_part(requests, groups, left), target, folder)))
            return combined(done)
        except IncompleteReplay as error:
            if attempt == TRIES:
                raise
            spoiled = np.isin(groups[left], groups[left][~error.finished])
            if not spoiled.all():
                done.append((left[~spoiled], error.run.picked(~spoiled[error.finished])))
            left = left[spoiled]
            tell(f"{error.rule}; {len(left)} requests are sent again")
    raise AssertionError("unreachable")


def _part(requests: RequestSet, groups: IntArray, kept: IntArray) -> RequestSet:
    """Return the kept requests; their groups keep their distances to the groups that followed them. Shape (kept,)."""
    if len(kept) == requests.n:
        return requests
    first = np.unique(groups, return_index=True)[1]
    starts_s = requests.arrival_s[first]
    spaces_s = np.diff(starts_s, append=requests.arrival_s[-1])
    mine = np.unique(groups[kept])
    begins_s = dict(zip(mine.tolist(), np.cumsum(np.append(0.0, spaces_s[mine][:-1])).tolist(), strict=True))
    arrival_s = requests.arrival_s[kept] - starts_s[groups[kept]] + [begins_s[g] for g in groups[kept].tolist()]
    inputs, outputs = requests.input_tokens[kept], requests.output_tokens[kept]
    return replace(requests, arrival_s=arrival_s, input_tokens=inputs, output_tokens=outputs)


def single_requests(most_input_tokens: int, seed: int, repeats: int = REPEATS[0]) -> RequestSet:
    """Return requests that one client sends one after the other, with log-spaced prompt lengths in random order.

    Every repeat has all lengths in an order of its own.
    """
    lengths = np.geomspace(SHORTEST_INPUT_TOKENS, max(most_input_tokens, SHORTEST_INPUT_TOKENS + 1), N_LENGTHS)
    rng = np.random.default_rng(seed)
    inputs = np.concatenate([rng.permutation(lengths.astype(np.int64)) for _ in range(repeats)])
    return RequestSet(np.zeros(len(inputs)), inputs, np.full(len(inputs), OUTPUT_TOKENS), concurrency=1, name="single")


def burst_requests(sizes: tuple[int, ...], spaces_s: FloatArray) -> RequestSet:
    """Return bursts of equal requests.

    Args:
        sizes: Requests of each burst.
        spaces_s: Seconds from each burst to the next. Shape (bursts,).
    """
    n = np.array(sizes, dtype=np.int64)
    arrivals_s = np.repeat(np.cumsum(np.append(0.0, spaces_s))[:-1], n)
    inputs, outputs = (np.full(len(arrivals_s), tokens) for tokens in (BURST_INPUT_TOKENS, OUTPUT_TOKENS))
    return RequestSet(arrivals_s, inputs, outputs, name="bursts")


def cautious_spaces_s(sizes: tuple[int, ...], first_s: float, token_s: float) -> FloatArray:
    """Return the seconds from each burst to the next before any burst was measured; shape (bursts,).

    Each burst ends before the next begins, even if a step of n requests takes as long as n steps of one request.

    Args:
        sizes: Requests of each burst.
        first_s: Time to first token of a single request, in seconds.
        token_s: Time per output token of a single request, in seconds.
    """
    each_s = SPACE * (first_s + 0.5 * OUTPUT_TOKENS * token_s)
    return np.array(sizes, dtype=np.float64) * each_s + (OUTPUT_TOKENS * token_s + 0.3)


def measured_spaces_s(run: MeasuredRun, sizes: tuple[int, ...]) -> FloatArray:
    """Return the seconds from each burst to the next by how long one of each size took; shape (bursts,)."""
    ends = np.cumsum(sizes).tolist()
    members = [slice(end - n, end) for end, n in zip(ends, sizes, strict=True)]
    took_s = [float((run.arrival_s[m] + run.e2e_s[m]).max() - run.arrival_s[m].min()) for m in members]
    return MEASURED_SPACE * np.array(took_s) + PAUSE_S
