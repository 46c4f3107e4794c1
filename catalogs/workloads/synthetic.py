"""Synthetic workloads: distributions from which requests, their contents and their LoRA adapters are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field, NonNegativeFloat

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.io.yaml_files import Share, YamlBlock
from catalogs.models.spec import ModelSpec
from catalogs.workloads.arrivals import AllAtOnce, Arrivals, ClosedLoopArrivals, Rateless
from catalogs.workloads.lengths import Lengths, sample_pairs
from catalogs.workloads.media import RequestMedia, media_block_ids
from catalogs.workloads.media_blocks import MediaBlocks
from catalogs.workloads.request_set import BlockHashes, RequestSet, taken
from catalogs.workloads.service_classes import ServiceClass, draw_service_levels
from catalogs.workloads.sessions.agents import AgentSessions, draw_sessions
from catalogs.workloads.sessions.conversations import Sessions, conversation_texts
from catalogs.workloads.sessions.schedule import SessionSchedule
from catalogs.workloads.sessions.texts import BLOCK_TOKENS
from catalogs.workloads.sessions.turns import SharedPrefix, Turns


def _drawn(rng: np.random.Generator, weights: FloatArray, n: int) -> IntArray:
    """Return n indices, drawn in proportion to their weights. Shape (n,)."""
    return rng.choice(len(weights), n, p=weights / weights.sum())


def _streams(seed: int) -> list[np.random.Generator]:
    """Return the independent streams of a seed."""
    return [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(15)]


class Adapters(YamlBlock):
    """The `adapters` block of a workload file: the LoRA adapters of requests.

    Adapter i (from 0) is drawn in proportion to (i + 1) ** -skew. The fraction base_fraction of the requests, or
    sessions, uses no adapter.
    """

    count: Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
    skew: NonNegativeFloat = 0.0
    base_fraction: Share = 0.0

    def draw(self, rng: np.random.Generator, n: int) -> IntArray:
        """Return n adapters, BASE_MODEL for none. Shape (n,)."""
        found = _drawn(rng, np.arange(1, self.count + 1, dtype=np.float64) ** -self.skew, n)
        return np.where(rng.random(n) < self.base_fraction, BASE_MODEL, found)


@dataclass(frozen=True, slots=True)
class SyntheticWorkload:
    """Distributions of arrivals and lengths, and the content that prompts share.

    Attributes:
        models: Weights by name; empty if requests name no model.
        random_prompts: Whether prompts are random tokens instead of text.
        steady_sessions: Whether turns that would arrive after n requests' time arrive as much after its beginning, as
            the turns of sessions that began before. Otherwise a run begins without sessions and ends without new ones,
            and its rate is lower, the shorter it is compared with a session.
        sized: Whether `n_requests` is the workload's own; otherwise it is a default.

    Raises:
        InputError: The sessions have several turns, and all requests arrive at once.
    """

    arrivals: Arrivals
    input_tokens: Lengths
    output_tokens: Lengths
    n_requests: int
    seed: int = 0
    shared_prefix: SharedPrefix | None = None
    turns: Turns | None = None
    models: Mapping[str, float] = field(default_factory=dict)
    classes: tuple[ServiceClass, ...] = ()
    adapters: Adapters | None = None
    steady_sessions: bool = False
    media: MediaBlocks | None = None
    reader: ModelSpec | None = None
    random_prompts: bool = False
    sized: bool = True

    def __post_init__(self) -> None:
        if self.turns and self.media:
            rule = "images, videos and audio of earlier turns are not simulated; give each request its own, or a trace"
            raise InputError(rule, f"turns with {self.media.given[0].key}", f"{self.media.given[0].key} without turns")
        if self.turns and isinstance(self.arrivals, AllAtOnce):
            raise InputError("turns of a session cannot arrive all at once; choose other arrivals", "all_at_once")

    @property
    def requests_per_s(self) -> float | None:
        """Return the workload's own mean rate; None where it has none."""
        return self.arrivals.mean_per_s

    @property
    def concurrency(self) -> int | None:
        """Return the number of clients of a closed loop; None for open arrivals."""
        return self.arrivals.concurrency if isinstance(self.arrivals, ClosedLoopArrivals) else None

    @property
    def has_rate(self) -> bool:
        """Return whether the workload has a rate to set."""
        return not isinstance(self.arrivals, Rateless)

    @property
    def scales(self) -> bool:
        """Return whether another rate changes nothing but the times of arrival, each of which is divided by it."""
        return self.turns is None and self.arrivals.scales

    def draw(self, seed: int, n: int, requests_per_s: float) -> RequestSet:
        """Return n requests.

        Arrivals, inputs, outputs, prefix groups, turns, think times, models, classes, adapters and media come from
        independent streams of the seed, so that changing one distribution leaves the draws of the others unchanged.
        """
        if self.turns is not None and self.turns.gap_s is not None:
            return self._draw_waiting(seed, n, requests_per_s)
        streams = _streams(seed)
        sessions, inputs, outputs = self._sessions(streams, n)
        arrival_s = self._arrival_s(sessions, streams, requests_per_s)
        order = self._order(sessions, arrival_s)[:n]
        media = self._media(streams, inputs)
        hashes = self._block_hashes(sessions, inputs, outputs, media, streams[3])
        inputs = inputs + media.tokens if media is not None and media.is_read else inputs
        session, n_sessions = sessions.session[order], sessions.n_sessions  # one model, adapter and class per session
        think_s = self.arrivals.think_time_s if isinstance(self.arrivals, ClosedLoopArrivals) else 0.0
        return RequestSet(
            arrival_s=arrival_s[order],
            input_tokens=inputs[order],
            output_tokens=outputs[order],
            concurrency=self.concurrency,
            block_hashes=taken(hashes, order),
            hash_block_tokens=BLOCK_TOKENS,
            random_prompts=self.random_prompts,
            sessions=session if self.turns else None,
            think_s=streams[9].standard_exponential(len(order)) * think_s if think_s else None,
            media=None if media is None else media[order],
            seed=seed,
            **self._labels(streams, session, n_sessions),
        )

    def _labels(self, streams: list[np.random.Generator], session: IntArray, n_sessions: int) -> dict[str, Any]:
        """Return the columns that are the same for all requests of a session: model, adapter and service class."""
        weights = np.array(list(self.models.values()))
        return {
            "requested_models": _drawn(streams[6], weights, n_sessions)[session] if self.models else None,
            "models": tuple(self.models),
            "adapters": self.adapters.draw(streams[8], n_sessions)[session] if self.adapters else None,
            "terms": draw_service_levels(self.classes, streams[7], n_sessions)[session] if self.classes else None,
        }

    def _draw_waiting(self, seed: int, n: int, requests_per_s: float) -> RequestSet:
        """Return n requests of sessions whose turns wait for each other."""
        streams, turns = _streams(seed), self.turns
        assert turns is not None
        schedule = SessionSchedule(
            self.concurrency,
            self.steady_sessions,
            mean_turns=float(turns.per_session.sample(np.random.default_rng(0), 4096).mean()),
            span_s=turns.span_s,
            think_s=self.arrivals.think_time_s if isinstance(self.arrivals, ClosedLoopArrivals) else 0.0,
        )
        drawn = self._whole_sessions(streams, schedule.needed(n, requests_per_s))
        per_session = len(drawn.session) / drawn.n_sessions
        starts_s = self.arrivals.starts_s(streams[0], drawn.n_sessions, requests_per_s, per_session)
        found = schedule.requests(drawn, n, starts_s, streams[11])
        labels = self._labels(streams, found.sessions, drawn.n_sessions)
        return RequestSet.of_sessions(found, seed=seed, **labels)

    def whole_sessions(self, seed: int, n: int) -> AgentSessions:
        """Return whole sessions, whose turns wait for each other, with at least n requests in all."""
        return self._whole_sessions(_streams(seed), n)

    def _whole_sessions(self, streams: list[np.random.Generator], n: int) -> AgentSessions:
        assert self.turns is not None
        own = [streams[k] for k in (4, 12, 1, 13, 2, 5, 14, 3)]
        return draw_sessions(self.turns, (self.input_tokens, self.output_tokens), self.shared_prefix, own, n)

    def draw_lengths(self, seed: int, n: int) -> tuple[IntArray, IntArray]:
        """Return the input and output lengths of n requests, without their arrivals and contents. Shape (n,) each."""
        if self.turns is not None and self.turns.gap_s is not None:
            drawn = self._draw_waiting(seed, n, self.requests_per_s or 1.0)
            return drawn.input_tokens, drawn.output_tokens
        streams = _streams(seed)
        _, inputs, outputs = self._sessions(streams, n)
        media = self._media(streams, inputs)
        inputs = inputs + media.tokens if media is not None and media.is_read else inputs
        return inputs[:n], outputs[:n]

    def _sessions(self, streams: list[np.random.Generator], n: int) -> tuple[Sessions, IntArray, IntArray]:
        """Return sessions with at least n requests in all, and the lengths of these requests. Shape (requests,)."""
        sessions = Sessions.drawn(self.turns, streams[4], n) if self.turns else Sessions.single(n)
        drawn = len(sessions.session)
        inputs, outputs = sample_pairs(self.input_tokens, self.output_tokens, (streams[1], streams[2]), drawn)
        return sessions, inputs + sessions.context_tokens(inputs, outputs) if self.turns else inputs, outputs

    def _arrival_s(self, sessions: Sessions, streams: list[np.random.Generator], rate: float) -> FloatArray:
        """Return arrival times in seconds; sessions start such that turns arrive at `rate` on average. Shape (n,)."""
        if self.turns is None or not self.has_rate:
            return self.arrivals.starts_s(streams[0], sessions.n_sessions, rate)[sessions.session]
        per_session = len(sessions.session) / sessions.n_sessions
        starts = self.arrivals.starts_s(streams[0], sessions.n_sessions, rate, per_session)
        thinking = streams[5].standard_exponential(len(sessions.session)) * self.turns.think_time_s
        waited = np.cumsum(np.where(sessions.turn == 0, 0.0, thinking))
        arrival_s = np.asarray(starts[sessions.session] + np.maximum(waited - waited[sessions.first], 0.0))
        return np.mod(arrival_s, len(arrival_s) / rate) if self.steady_sessions else arrival_s

    def _order(self, sessions: Sessions, arrival_s: FloatArray) -> IntArray:
        """Return the order of the requests. Shape (n,).

        Open loop: by arrival. Closed loop: `concurrency` sessions in parallel, turn by turn, so that a client requests
        its next turn after its previous turn has ended.
        """
        if self.turns and self.concurrency:
            return np.lexsort((sessions.session, sessions.turn, sessions.session // self.concurrency))
        return np.argsort(arrival_s, kind="stable")

    def _media(self, streams: list[np.random.Generator], inputs: IntArray) -> RequestMedia | None:
        """Return the media of requests with these texts, behind the shared prefix; None without media."""
        if self.media is None:
            return None
        drawn = self.media.draw(streams[10], len(inputs))
        if self.shared_prefix is not None:
            drawn = replace(drawn, before=np.minimum(inputs, self.shared_prefix.tokens))
        return drawn if self.reader is None else drawn.read_by(self.reader)

    def _block_hashes(
        self,
        sessions: Sessions,
        inputs: IntArray,
        outputs: IntArray,
        media: RequestMedia | None,
        rng: np.random.Generator,
    ) -> BlockHashes:
        repeats = media is not None and media.repeats and media.is_read
        if self.turns is None and self.shared_prefix is None and not repeats:
            return None
        groups = rng.integers(0, self.shared_prefix.groups if self.shared_prefix else 1, sessions.n_sessions)
        if media is not None:
            prefix = self.shared_prefix
            prefixes = None if prefix is None else conversation_texts(sessions, media.before, prefix, groups)
            return media_block_ids(media, BLOCK_TOKENS, prefixes, groups) if media.is_read else prefixes
        return conversation_texts(sessions, inputs + outputs if self.turns else inputs, self.shared_prefix, groups)


#: The adapter index of requests that use the base model.
BASE_MODEL: Final = -1
