"""The clients of sessions: each request is sent when the requests that it waits for have ended, after a gap."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from simpy import Event

from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.core.clock import ARRIVAL, Callback, Clock


class SessionClients:
    """Clients that each work through one session at a time, such as agents.

    In an open loop a client comes for each session, at the arrival of its first request. In a closed loop a fixed
    number of clients take the sessions in order, and each begins its next one when the last request of its session has
    ended. A request that is rejected or lost ends as well, and the client goes on.
    """

    def __init__(self, clock: Clock, requests: RequestSet, send: Callable[[int, float], None]) -> None:
        """Create the clients.

        Args:
            clock: The clock of the run.
            requests: The requests with their graph and sessions.
            send: Sends the request with a given index at a given time in seconds; it reaches the router later.

        Raises:
            InputError: The requests have no sessions.
        """
        graph = requests.graph
        if graph is None or requests.sessions is None:
            raise InputError("requests that wait for others need their sessions", "sessions")
        self._clock, self._clients = clock, requests.concurrency
        self._gap_s: list[float] = graph.gap_s.tolist()
        self._awaited, self._followers = graph.awaited(), graph.followers()
        self._ready_s = [-inf] * requests.n  # by request: when the last of those that it waits for has ended so far
        self._session: list[int] = requests.sessions.tolist()
        self._open_s: list[float] | None = None if self._clients is not None else requests.arrival_s.tolist()
        self._firsts: dict[int, list[int]] = {}  # by session: its requests that wait for none
        self._unanswered: dict[int, int] = {}
        self._ended_s: dict[int, float] = {}  # by session: the last end so far
        for index, session in enumerate(self._session):
            self._unanswered[session] = self._unanswered.get(session, 0) + 1
            if not self._awaited[index]:
                self._firsts.setdefault(session, []).append(index)
        self._order = list(self._unanswered)  # sessions in the order of their first requests
        self._next = 0
        self._send, self._on_time = send, list[Callback]([self._sent])
        self._longest_idle_s = graph.longest_idle_s
        self._pending: dict[int, float] = {}  # where idle times are cut: when each request is due to be sent
        self._n_under_way = 0

    def start(self) -> None:
        """Start the first sessions at time zero in a closed loop, or all sessions at their arrivals in an open one."""
        if self._open_s is None:
            for _ in range(min(self._clients or 0, len(self._order))):
                self._begin(0.0)
            return
        for indices in self._firsts.values():
            for index in indices:
                self._send_at(index, self._open_s[index] + self._gap_s[index])

    def _begin(self, at_s: float) -> None:
        """Begin the next session, if any remain."""
        if self._next < len(self._order):
            self._next += 1
            for index in self._firsts[self._order[self._next - 1]]:
                self._send_at(index, at_s + self._gap_s[index])

    def _send_at(self, index: int, at_s: float) -> None:
        if self._longest_idle_s is not None:
            self._pending[index] = at_s
        self._clock.at(at_s, ARRIVAL, self._on_time, index)

    def _sent(self, event: Event) -> None:
        """Send a request whose time has come, unless it was sent before because an idle time was cut."""
        index: int = event.value  # type: ignore[assignment]
        now = self._clock.now
        if self._longest_idle_s is not None:
            if self._pending.get(index) != now:
                return
            del self._pending[index]
            self._n_under_way += 1
        self._send(index, now)

    def _cut_idle_time(self, now: float, longest_s: float) -> None:
        """Send all pending requests earlier if none is under way and the next one is far away."""
        if self._n_under_way or not self._pending:
            return
        excess_s = min(self._pending.values()) - now - longest_s
        if excess_s > 0.0:
            for index, at_s in list(self._pending.items()):
                self._send_at(index, at_s - excess_s)

    def answered(self, index: int, at_s: float) -> None:
        """Inform the client of a request that its answer arrives at `at_s`, which may be later than now."""
        ready_s, awaited = self._ready_s, self._awaited
        for follower in self._followers[index]:
            if at_s > ready_s[follower]:
                ready_s[follower] = at_s
            awaited[follower] -= 1
            if not awaited[follower]:
                self._send_at(follower, ready_s[follower] + self._gap_s[follower])
        session = self._session[index]
        self._unanswered[session] -= 1
        ended_s = self._ended_s[session] = max(at_s, self._ended_s.get(session, -inf))
        if not self._unanswered[session] and self._open_s is None:
            self._begin(ended_s)
        if self._longest_idle_s is not None:
            self._n_under_way -= 1
            self._cut_idle_time(at_s, self._longest_idle_s)
