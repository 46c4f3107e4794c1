"""Hands on the machines of a Ray cluster that assess the candidates of one search.

Hands are sent the question once, with all that was read to answer it, so no file needs to be on their machines; the
planner itself must be, in the same version. A hand that dies gives its candidate to another one, and a machine that
joins gets hands. Where none is left this process goes on alone.

A Ray cluster that a search runs on: joined where it is, or started on this machine. This process keeps the study and
decides; see `planner.search.ray_workers` for who assesses.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import socket
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.ui.entry_point import OUR_PACKAGES
from planner.problem.candidate import Candidate
from planner.search.objectives import Assess, Outcome

INSTALL: Final = "pip install '.[ray]'"

#: Candidates begun with for each hand: so many that none waits while the first in line is bisected.
_AHEAD: Final = 3

#: Seconds to wait for the first hand, and for a new one where all were lost.
PATIENCE_S: Final = 60.0

_LOOK_S: Final = 1.0

#: A candidate whose hands died so often is looked at here.
_TRIES: Final = 3

#: Hands lost, for each there was, after which nobody is hired any more.
_LOSSES: Final = 3


class RayWorker:
    """What runs on the cluster, one on each CPU."""

    def __init__(self, assess: Assess) -> None:
        self._assess = assess

    def code(self) -> str:
        """Names the planner it runs."""
        return code_digest()

    def look(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        """Assess; what was simulated for earlier candidates is remembered."""
        return self._assess(candidate, best)


@cache
def code_digest() -> str:
    """Names the source code of our packages, wherever they are installed."""
    root, found = Path(__file__).resolve().parents[2], hashlib.sha256()
    for package in OUR_PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


@dataclass(slots=True)
class _Job:
    hand: Any
    candidate: Candidate
    best: Outcome | None


class RayCluster:
    """A Ray cluster this process has joined. lost: hands that died so far."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.lost = 0
        self.n_hands = 0

    @property
    def cpus(self) -> int:
        return int(self.ray.cluster_resources().get("CPU", 0))

    @property
    def words(self) -> str:
        """For a progress bar."""
        return f"{self.n_hands} worker{'' if self.n_hands == 1 else 's'}"

    @property
    def said(self) -> str:
        """What a user should know afterwards; empty where nothing happened."""
        if not self.lost:
            return ""
        who, what = (f"{self.lost} workers", "they") if self.lost > 1 else ("1 worker", "it")
        return f"{who} of the cluster died; what {what} had begun was looked at again"

    @contextmanager
    def crew(self, assess: Assess) -> Iterator[RayWorkerPool]:
        """Hands for one question, gone when the block ends. Raises InputError where none can be had."""
        crew = RayWorkerPool(self, assess)
        try:
            crew.open()
            yield crew
        finally:
            crew.close()


@dataclass(slots=True)
class RayWorkerPool:
    """Hands, what each is at, and what they found. An outcome against an older best is asked for again."""

    cluster: RayCluster
    assess: Assess
    hands: int = 1
    _question: Any = None
    _hired: dict[Any, Any] = field(default_factory=dict)  # hands that have not reported yet, by their first answer
    _free: list[Any] = field(default_factory=list)
    _busy: dict[Any, _Job] = field(default_factory=dict)
    _asked: set[Candidate] = field(default_factory=set)
    _queue: deque[Candidate] = field(default_factory=deque)
    _found: dict[Candidate, tuple[Outcome | None, Outcome]] = field(default_factory=dict)
    _losses: Counter[Candidate] = field(default_factory=Counter)
    _why: str = ""
    _counted_s: float = 0.0

    @property
    def ahead(self) -> int:
        return _AHEAD * self.hands

    def open(self) -> None:
        """Hire one hand for each CPU and wait for the first."""
        self._question = self.cluster.ray.put(self.assess)
        self.hands = max(1, self.cluster.cpus)
        for _ in range(self.hands):
            self._hire()
        until = time.monotonic() + PATIENCE_S
        while not self._free:
            if not self._hired:
                raise InputError(f"the cluster's machines cannot run the planner ({self._why})", None, INSTALL)
            if time.monotonic() > until:
                raise InputError(
                    f"no CPU of the cluster became free in {PATIENCE_S:.0f} s", f"{self.cluster.cpus} CPUs"
                )
            self._collect()

    def close(self) -> None:
        with suppress(ConnectionError, self.cluster.ray.exceptions.RayError):
            for hand in (*self._free, *self._hired.values(), *(job.hand for job in self._busy.values())):
                self.cluster.ray.kill(hand)

    def begin(self, candidate: Candidate) -> None:
        if candidate not in self._asked:
            self._asked.add(candidate)
            self._queue.append(candidate)

    def outcome(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        self.begin(candidate)
        found = self._wait(candidate, best)
        self._asked.discard(candidate)
        return found

    def _wait(self, candidate: Candidate, best: Outcome | None) -> Outcome:
        alone_at = time.monotonic() + PATIENCE_S
        while True:
            against, outcome = self._found.pop(candidate, (None, None))
            if outcome is not None and against == best:
                return outcome
            if outcome is not None:
                self._queue.appendleft(candidate)
            nobody = not (self._free or self._busy or self._hired) or time.monotonic() > alone_at
            if nobody or self._losses[candidate] >= _TRIES:
                self._queue.remove(candidate)
                return self.assess(candidate, best)
            self._dispatch(best)
            if self._busy:
                alone_at = time.monotonic() + PATIENCE_S
            try:
                self._collect()
                self._grow()
            except ConnectionError as error:  # to the whole cluster
                self._lose_all(error)

    # ---- hands

    def _hire(self) -> None:
        hand = self.cluster.ray.remote(num_cpus=1, max_restarts=0)(RayWorker).remote(self._question)
        self._hired[hand.code.remote()] = hand

    def _dispatch(self, best: Outcome | None) -> None:
        while self._free and self._queue:
            hand, candidate = self._free.pop(), self._queue.popleft()
            self._busy[hand.look.remote(candidate, best)] = _Job(hand, candidate, best)

    def _collect(self) -> None:
        """Wait a little for anybody to report."""
        waiting = [*self._busy, *self._hired]
        ready, _ = self.cluster.ray.wait(waiting, num_returns=1, timeout=_LOOK_S) if waiting else ([], [])
        for ref in ready:
            if ref in self._hired:
                self._welcome(ref, self._hired.pop(ref))
            else:
                self._take(ref, self._busy.pop(ref))
        self.cluster.n_hands = len(self._free) + len(self._busy)

    def _grow(self) -> None:
        """Hands for machines that have joined, and in place of those that died."""
        if time.monotonic() > self._counted_s + _LOOK_S and self.cluster.lost < _LOSSES * self.hands:
            self._counted_s = time.monotonic()
            for _ in range(self.cluster.cpus - self.cluster.n_hands - len(self._hired)):
                self._hire()

    def _welcome(self, ref: Any, hand: Any) -> None:
        try:
            code = self.cluster.ray.get(ref)
        except self.cluster.ray.exceptions.RayError as error:
            self._lose(error)
            return
        if code != code_digest():
            raise InputError("a machine of the cluster has another version of the planner", code, code_digest())
        self._free.append(hand)

    def _take(self, ref: Any, job: _Job) -> None:
        try:
            outcome = self.cluster.ray.get(ref)
        except self.cluster.ray.exceptions.RayTaskError as error:  # what assessing raises here, too
            raise error.cause from None
        except self.cluster.ray.exceptions.RayError as error:
            self._losses[job.candidate] += 1
            self._queue.appendleft(job.candidate)
            self._lose(error)
            return
        self._free.append(job.hand)
        self._found[job.candidate] = (job.best, outcome)

    def _lose(self, error: Exception) -> None:
        self._why = next(
            (line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "no reason given"
        )
        self.cluster.lost += 1

    def _lose_all(self, error: Exception) -> None:
        for job in self._busy.values():
            self._queue.appendleft(job.candidate)
        for _ in (*self._busy, *self._free):
            self._lose(error)
        for held in (self._busy, self._free, self._hired):
            held.clear()
        self.cluster.n_hands = 0


LOCAL: Final = "ray://local"

AUTO: Final = "auto"

_CONNECT_S: Final = 5.0


def check_address(text: str) -> tuple[str, int] | None:
    """Host and port of ray://HOST:PORT, None of the other two ways to name a cluster. Raises InputError."""
    if text in (AUTO, LOCAL):
        return None
    found = re.fullmatch(r"ray://(\[[0-9a-fA-F:.]+\]|[^:/\s]+):(\d{1,5})", text)
    if found is None or not 0 < int(found[2]) < 65536:
        raise InputError(f"a cluster is ray://HOST:PORT, {LOCAL} or {AUTO}", text, LOCAL)
    return found[1].strip("[]"), int(found[2])


@contextmanager
def join_cluster(address: str) -> Iterator[RayCluster]:
    """Connected to a cluster, or with one of this machine's own started, until the block ends.

    Raises InputError in one line: Ray is not installed, the address is none, nobody answers there.
    """
    server = check_address(address)
    if server is not None and _has_token():  # Ray itself looks for one only where it starts or joins without a client
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("a search on a cluster needs Ray, which is not installed", address, INSTALL) from None
    if server is not None:
        _need_server(address, *server)
    handlers = _handlers()
    _connect(ray, address)
    for sign, handler in handlers.items():  # Ray's own ends this process without a word
        signal.signal(sign, handler)
    try:
        yield RayCluster(ray)
    finally:
        ray.shutdown()


def _need_server(address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"nobody answers at this cluster's address ({why})", address, LOCAL) from None
    if find_spec("grpc") is None:
        raise InputError("a cluster elsewhere needs Ray's client, which is not installed", address, INSTALL)


def _has_token() -> bool:
    """Of clusters that ask for one, as Ray keeps it."""
    kept = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return "RAY_AUTH_TOKEN" in os.environ or kept.is_file()


def _handlers() -> dict[signal.Signals, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}


def _connect(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    where = {"include_dashboard": False, "address": "local"} if address == LOCAL else {"address": address}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(**quiet, **where)
    except Exception as error:  # of many kinds, from connections to versions that differ
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if "timeout" in why:
            why += (
                ": not the port for clients (10001 unless changed), or a cluster that asks for a token (RAY_AUTH_TOKEN)"
            )
        raise InputError(f"the cluster cannot be joined ({why})", address, LOCAL) from None
