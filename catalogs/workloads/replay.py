"""Trace workloads: recorded requests, replayed at their own or another rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.models.spec import ModelSpec
from catalogs.workloads.block_hashes import BlockIds
from catalogs.workloads.media import RequestMedia
from catalogs.workloads.request_set import RequestSet, rows_of
from catalogs.workloads.sessions.agents import AgentSessions
from catalogs.workloads.sessions.recorded import RecordedSessions
from catalogs.workloads.sessions.scenarios import Scenario
from catalogs.workloads.sessions.schedule import SessionSchedule
from catalogs.workloads.sessions.texts import TextTree
from catalogs.workloads.traces import Trace

#: Step between the parts that consecutive seeds replay, as a share of the trace: the golden ratio conjugate. The parts
#: of any number of seeds from 0 on are spread evenly over the trace (Knuth, The Art of Computer Programming 3, 6.4).
_STEP: Final = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace, replayed `rate_scale` times as fast.

    For fewer requests than the trace has, the first ones are replayed. For more, the trace starts again one mean gap
    after its last request, with new block ids, so that a second pass does not hit the prefix cache of the first.

    With `part_by_seed`, each seed replays another part of the trace, so that several seeds are independent samples of
    all of it: they begin at places that are spread evenly over the trace, seed 0 at its beginning. If its requests have
    neither arrival times nor common contents, their order means nothing, and each seed has them in another order.

    Raises:
        InputError: rate_scale is set and the trace has no arrival times.
    """

    trace: Trace
    n_requests: int
    rate_scale: float = 1.0
    seed: int = 0
    concurrency: int | None = None  # clients that play recorded sessions, one after the other
    scenario: Scenario | None = None  # rules of a benchmark that plays recorded sessions
    steady_sessions: bool = False  # recorded sessions are under way when a run begins
    reader: ModelSpec | None = None  # the model that reads the media; without one, prompts do not include them
    part_by_seed: bool = False  # each seed replays another part

    def __post_init__(self) -> None:
        if self.rate_scale != 1.0 and not (self.requests_per_s and self.trace.arrival_s is not None):
            raise InputError("rate_scale needs a trace with arrival times; this one has lengths only", self.rate_scale)

    @property
    def has_rate(self) -> bool:
        """Return whether the workload has a rate to set; False where all requests have the same arrival time."""
        return self.concurrency is None and (self.trace.arrival_s is None or self.requests_per_s is not None)

    @property
    def requests_per_s(self) -> float | None:
        """Return the requests per second of the whole trace; None where it has no arrival times or only one."""
        times = self.trace.arrival_s
        span = 0.0 if times is None else float(times[-1] - times[0])
        return (len(self.trace.input_tokens) - 1) / span * self.rate_scale if span > 0 else None

    def draw(self, seed: int, n: int, requests_per_s: float) -> RequestSet:
        """Return the first n requests, with arrival times stretched to a mean of `requests_per_s` over the whole trace.

        The seed draws Poisson arrivals where the trace has no times. With `part_by_seed` it also chooses the part of
        the trace; otherwise it has no further effect.
        """
        if self.trace.recorded is not None:
            return self._draw_sessions(self.trace.recorded, seed, n, requests_per_s)
        lap, row = self._rows(seed, n)
        columns = rows_of(self.trace, ("output_tokens", "requested_models", "adapters", "terms"), row)
        sessions, media = self.trace.sessions, self._media(row)
        return RequestSet(
            input_tokens=self.draw_lengths(seed, n)[0],
            media=media,
            arrival_s=self._arrival_s(seed, row, lap, requests_per_s),
            block_hashes=self._block_hashes(lap, row),
            hash_block_tokens=self.trace.hash_block_tokens,
            models=self.trace.models,
            sessions=None if sessions is None else sessions[row] + lap * (sessions.max() + 1),
            seed=seed,
            **columns,
        )

    def _draw_sessions(self, recorded: RecordedSessions, seed: int, n: int, requests_per_s: float) -> RequestSet:
        """Return n requests of recorded sessions, played in random order; each play has texts of its own."""
        order, starts, clients = (np.random.default_rng(each) for each in np.random.SeedSequence(seed).spawn(3))
        rules = self.scenario
        begun = None if rules is None else rules.begun_shares
        schedule = SessionSchedule(
            self.concurrency, self.steady_sessions, recorded.mean_turns, recorded.span_s, begun_shares=begun
        )
        size = np.bincount(recorded.sessions.session)
        played = np.arange(len(size)) if rules is None else rules.sessions(recorded)
        laps = -(-schedule.needed(n, requests_per_s) // int(size[played].sum())) + 1
        sessions = np.concatenate([order.permutation(played) for _ in range(laps)])
        enough = int(np.searchsorted(np.cumsum(size[sessions]), schedule.needed(n, requests_per_s))) + 1
        drawn = recorded.sessions.plays(sessions[:enough])
        gaps = starts.standard_exponential(drawn.n_sessions) * recorded.mean_turns / requests_per_s
        found = schedule.requests(drawn, n, np.cumsum(gaps), clients)
        if rules is not None:
            found = replace(found, graph=replace(found.graph, longest_idle_s=rules.longest_idle_s))
        return RequestSet.of_sessions(found, seed=seed)

    def whole_sessions(self, seed: int, n: int) -> AgentSessions:
        """Return whole recorded sessions in random order, of at least n requests in all or all of them.

        Raises:
            ValueError: The trace has no sessions whose requests wait for each other.
        """
        if self.trace.recorded is None:
            raise ValueError("the trace has no recorded sessions")
        drawn = self.trace.recorded.sessions
        size = np.bincount(drawn.session)
        played = np.arange(len(size)) if self.scenario is None else self.scenario.sessions(self.trace.recorded)
        order = np.random.default_rng(seed).permutation(played)
        return drawn.plays(order[: int(np.searchsorted(np.cumsum(size[order]), n)) + 1])

    def draw_lengths(self, seed: int, n: int) -> tuple[IntArray, IntArray]:
        """Return the input and output lengths of the first n requests, as `draw` does. Shape (n,) each."""
        _, row = self._rows(seed, n)
        inputs, media = self.trace.input_tokens[row], self._media(row)
        read = media is not None and media.is_read
        return inputs + media.tokens if media is not None and read else inputs, self.trace.output_tokens[row]

    def _rows(self, seed: int, n: int) -> tuple[IntArray, IntArray]:
        """Return for each of n requests the pass over the trace and the row in it. Shape (n,) each."""
        trace, places = self.trace, np.arange(n)
        size = len(trace.input_tokens)
        if not self.part_by_seed or trace.recorded is not None:
            lap, row = np.divmod(places, size)
        elif trace.arrival_s is None and trace.block_hashes is None and trace.sessions is None:
            order = np.random.default_rng(np.random.SeedSequence(seed).spawn(2)[1])
            lap, row = places // size, np.concatenate([order.permutation(size) for _ in range(-(-n // size))])[:n]
        else:
            lap, row = np.divmod(places + int(seed * _STEP % 1.0 * size), size)
        return lap, row

    def _media(self, rows: IntArray) -> RequestMedia | None:
        """Return the media of these requests of the trace, read if a model reads them; None without media."""
        media = self.trace.media
        if media is None:
            return None
        return media[rows] if self.reader is None else media[rows].read_by(self.reader)

    def _arrival_s(self, seed: int, row: IntArray, lap: IntArray, requests_per_s: float) -> FloatArray:
        times, own = self.trace.arrival_s, self.requests_per_s
        if times is None:
            stream = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
            return np.asarray(np.cumsum(stream.standard_exponential(len(row))) / requests_per_s)
        if own is None:
            return times[row]
        lap_s = len(self.trace.input_tokens) / own * self.rate_scale
        since_s = times[row[0]] - times[0] if len(row) else 0.0
        stretched: FloatArray = (times[row] + lap * lap_s - since_s) / self.rate_scale
        return stretched if requests_per_s == own else stretched * (own / requests_per_s)

    def _block_hashes(self, lap: IntArray, row: IntArray) -> tuple[BlockIds, ...] | None:
        hashes = self.trace.block_hashes
        assert not isinstance(hashes, TextTree)
        if hashes is None:
            return None
        own = [hashes[i] for i in row.tolist()]
        if not lap.any():
            return tuple(own)
        step = 1 + max((max(ids) for ids in hashes if ids), default=0)
        return tuple([tuple([block + k * step for block in ids]) for k, ids in zip(lap.tolist(), own, strict=True)])
