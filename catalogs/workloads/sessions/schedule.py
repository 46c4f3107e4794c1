"""Sessions as the requests of a run: in an open loop at a rate, or one after the other by a number of clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.workloads.sessions.agents import AgentSessions
from catalogs.workloads.sessions.request_graph import RequestGraph
from catalogs.workloads.sessions.texts import TextTree

#: A session under way at the start of a run is at a random time within this many sessions of its client.
SESSIONS_BEFORE: Final = 3


@dataclass(frozen=True, slots=True)
class ScheduledRequests:
    """The requests of sessions in the order of a run; arrays have shape (n,).

    Attributes:
        arrival_s: When each would be sent in an open loop; zeros in a closed one.
        input_tokens: Tokens of each prompt.
        output_tokens: Tokens of each output.
        concurrency: The clients of a closed loop; None for an open loop.
        texts: The texts of prompts and outputs.
        sessions: Session of each request.
        tasks: Task of each request; see `AgentSessions.tasks`.
        graph: Which requests wait for which.
    """

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    concurrency: int | None
    texts: TextTree
    sessions: IntArray
    tasks: IntArray
    graph: RequestGraph


@dataclass(frozen=True, slots=True)
class SessionSchedule:
    """How sessions become the requests of a run.

    Attributes:
        clients: The clients of a closed loop, each with one session at a time; None for an open loop.
        steady: Whether sessions are under way when the run begins: what would have been sent before a random time of
            each client, or before a time of the arrivals, is left out.
        mean_turns: Mean requests of a session.
        span_s: Mean time from the first request of a session to its last, seconds.
        think_s: Mean of the exponential time between two sessions of a client, seconds.
        begun_shares: The first session of each client of a closed loop begins after a share of its requests between
            these two, whatever `steady` is; None where it does not.
    """

    clients: int | None
    steady: bool
    mean_turns: float
    span_s: float
    think_s: float = 0.0
    begun_shares: tuple[float, float] | None = None

    def needed(self, n: int, requests_per_s: float) -> int:
        """Return how many requests to draw for a run of n at this rate, with those that are left out."""
        if self.begun_shares is not None:
            return n + round((self.clients or 0) * self.mean_turns)
        if not self.steady:
            return n
        before = self.clients * self.mean_turns if self.clients else requests_per_s * self.span_s
        return n + round(SESSIONS_BEFORE * before) + 1

    def requests(
        self, drawn: AgentSessions, n: int, starts_s: FloatArray, rng: np.random.Generator
    ) -> ScheduledRequests:
        """Return the first n requests of the run.

        Args:
            drawn: Whole sessions with enough requests.
            n: The number of requests.
            starts_s: When each session starts in an open loop. Shape (sessions,).
            rng: The random stream of the clients.
        """
        clients = self.clients
        at_s = drawn.client_times_s(clients) if clients else drawn.start_s() + starts_s[drawn.session]
        if self.begun_shares is not None and clients:
            at_s = at_s - self._begun_s(drawn, at_s, rng)[drawn.session % clients]
        elif self.steady:
            zero_s = SESSIONS_BEFORE * self.span_s
            at_s = at_s - (rng.random(clients)[drawn.session % clients] * zero_s if clients else zero_s)
        order = np.argsort(at_s, kind="stable")
        order = order[at_s[order] >= 0.0][:n]
        session = drawn.session[order]
        graph = RequestGraph(drawn.waits, drawn.gap_s).taken(order)
        gap_s = self._first_gaps_s(session, at_s[order], rng) if clients else np.zeros(len(order))
        firsts = np.array(graph.awaited()) == 0
        return ScheduledRequests(
            arrival_s=np.zeros(len(order)) if clients else at_s[order],
            input_tokens=drawn.inputs[order],
            output_tokens=drawn.outputs[order],
            concurrency=clients,
            texts=drawn.texts.taken(order),
            sessions=session,
            tasks=drawn.tasks()[order],
            graph=replace(graph, gap_s=np.where(firsts, gap_s, graph.gap_s)),
        )

    def _begun_s(self, drawn: AgentSessions, at_s: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return when each client sends the first request that is not left out, seconds. Shape (clients,).

        Args:
            drawn: Whole sessions, of which client k has session k first.
            at_s: When each request would be sent without anything left out. Shape (requests,).
            rng: The random stream of the clients.
        """
        clients, (low, high) = self.clients or 0, self.begun_shares or (0.0, 0.0)
        shares = low + (high - low) * rng.random(clients)
        found = np.zeros(clients)
        for client in range(min(clients, drawn.n_sessions)):
            times_s = np.sort(at_s[drawn.session == client])
            found[client] = times_s[int(shares[client] * len(times_s))]
        return found

    def _first_gaps_s(self, session: IntArray, at_s: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return the gap of each request if it is the first of its session in the run, seconds. Shape (n,)."""
        found: FloatArray = rng.standard_exponential(len(session)) * self.think_s
        if self.steady or self.begun_shares is not None:
            names, first = np.unique(session, return_index=True)
            under_way = np.isin(session, names[np.argsort(first)][: self.clients])
            found = np.where(under_way, at_s, found)
        return found
