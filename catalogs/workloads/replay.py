"""Trace workloads: recorded requests, replayed at their own or another rate."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace, replayed `rate_scale` times as fast.

    For fewer requests than the trace has, the first ones are replayed. With `pieces`, their arrivals are those of a
    piece that begins at a place drawn from the seed, and has the required rate itself. Their contents are those of this
    piece where requests share text, and otherwise those of requests at equal distances all over the trace.

    For more requests, the trace starts again one mean gap after its last request, with new block ids, so that a second
    pass does not hit the prefix cache of the first.

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
    pieces: bool = False  # fewer requests than the trace has come from anywhere in it, at the rate of the draw
    reader: ModelSpec | None = None  # the model that reads the media; without one, prompts do not include them

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
        """Return n requests, with arrival times stretched to a mean of `requests_per_s` over the whole trace.

        The seed draws Poisson arrivals where the trace has no times, and with `pieces` the first request; otherwise it
        has no effect.
        """
        if self.trace.recorded is not None:
            return self._draw_sessions(self.trace.recorded, seed, n, requests_per_s)
        lap, row = self._rows(seed, n)
        first = self._first_row(seed, n)
        arriving = np.arange(n) % len(self.trace.input_tokens) if first is None else first + np.arange(n)
        columns = rows_of(self.trace, ("output_tokens", "requested_models", "adapters", "terms"), row)
        sessions, media = self.trace.sessions, self._media(row)
        return RequestSet(
            input_tokens=self.draw_lengths(seed, n)[0],
            media=media,
            arrival_s=self._arrival_s(seed, arriving, lap, requests_per_s),
            block_hashes=self._block_hashes(int(row[0]) if n else 0, n),
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

    def _rows(self, seed: int, n: int) -> tuple[IntArray, IntArray]:
        """Return which pass over the trace each of n requests belongs to, and its row. Shape (n,) each."""
        size, first = len(self.trace.input_tokens), self._first_row(seed, n)
        apart = self.trace.block_hashes is None and self.trace.sessions is None
        if first is None:
            lap, row = np.divmod(np.arange(n), size)
            rest = n % size
            if self.pieces and apart and rest:  # a last pass that is not whole has requests from all over the trace
                row[-rest:] = np.arange(rest) * size // rest
            return lap, row
        spread = (np.arange(n) * size + first) // n  # the first row is below size - n + 1, so the last is below size
        return np.zeros(n, dtype=np.int64), spread if apart else first + np.arange(n)

    def _first_row(self, seed: int, n: int) -> int | None:
        """Return the row at which the piece of n requests begins; None where the trace is replayed from its start."""
        size = len(self.trace.input_tokens)
        if not self.pieces or n >= size:
            return None
        # A stream apart from those of `_arrival_s` and the media, which spawn theirs from the same seed.
        return int(np.random.default_rng([seed, size]).integers(size - n + 1))

    def draw_lengths(self, seed: int, n: int) -> tuple[IntArray, IntArray]:
        """Return the input and output lengths of the n requests that `draw` returns. Shape (n,) each."""
        _, row = self._rows(seed, n)
        inputs, media = self.trace.input_tokens[row], self._media(row)
        read = media is not None and media.is_read
        return inputs + media.tokens if media is not None and read else inputs, self.trace.output_tokens[row]

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
        if self.pieces and len(row) < len(times) and times[row[-1]] > times[row[0]]:
            elapsed_s: FloatArray = times[row] - times[row[0]]
            return elapsed_s * ((len(row) - 1) / requests_per_s / float(elapsed_s[-1]))
        lap_s = len(self.trace.input_tokens) / own * self.rate_scale
        stretched: FloatArray = (times[row] + lap * lap_s) / self.rate_scale
        return stretched if requests_per_s == own else stretched * (own / requests_per_s)

    def _block_hashes(self, first: int, n: int) -> tuple[BlockIds, ...] | None:
        hashes = self.trace.block_hashes
        assert not isinstance(hashes, TextTree)
        if hashes is None or first + n <= len(hashes):
            return hashes[first : first + n] if hashes else None
        step = 1 + max((max(ids) for ids in hashes if ids), default=0)
        laps = -(-n // len(hashes))
        again = [tuple([block + lap * step for block in ids]) for lap in range(laps) for ids in hashes]
        return tuple(again[:n])
