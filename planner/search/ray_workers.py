"""A Ray cluster as the workers of a search: an existing one, or one started on this machine.

Ray distributes the question to the workers, with the contents of all files that were read for it: other machines need
the same version of the planner, but no files. It runs evaluations on free CPUs, also on machines that join later. This
process alone decides about the candidates, in the order of a search with one process.
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

from catalogs.errors import InputError
from catalogs.ui.entry_point import OUR_PACKAGES
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import Assess, Outcome
from planner.search.optuna_study import message_lines

LOCAL: Final = "ray://local"

AUTO: Final = "auto"

INSTALL: Final = "pip install '.[ray]'"

#: Seconds without a result after which a candidate is evaluated in this process.
PATIENCE_S: Final = 60.0

_CONNECT_S: Final = 5.0

_POLL_S: Final = 1.0

#: Workers that may die at a candidate before it is evaluated in this process.
_MAX_LOSSES: Final = 3

#: Parts into which the replicas of a fleet are divided, for each CPU of the cluster.
_PARTS_PER_CPU: Final = 4

T = TypeVar("T")

R = TypeVar("R")


class RayPool:
    """A Ray cluster that this process has joined; `n_lost` counts the workers that died so far."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.n_lost = 0

    @property
    def n_cpus(self) -> int:
        """Return the number of CPUs of the cluster."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    @property
    def words(self) -> str:
        """Return the number of workers in words, for a progress bar."""
        return f"{self.n_cpus} worker{'' if self.n_cpus == 1 else 's'}"

    @property
    def loss_notice(self) -> str:
        """Return a notice about workers that died; empty if there were none."""
        workers, they = (f"{self.n_lost} workers", "they") if self.n_lost > 1 else ("1 worker", "it")
        return f"{workers} of the cluster died; what {they} had begun was evaluated again" if self.n_lost else ""

    def map(self, work: Callable[[T], R], tasks: Sequence[T], /) -> list[R]:
        """Return `work(task)` for each task, done in this process: only the search runs on the cluster."""
        return [work(task) for task in tasks]

    def spread(self, work: Callable[[int], R], n: int) -> list[R]:
        """Return `work(i)` for 0 to n - 1, in order, computed by the cluster: `RunOptions.spread` of a fleet.

        The work is sent once. What is lost with a worker is computed again.

        Raises:
            InputError: A machine of the cluster has another version of the planner.
        """
        ray, reference = self.ray, [self.ray.put(work)]
        each = max(1, -(-n // (_PARTS_PER_CPU * max(self.n_cpus, 1))))
        task = ray.remote(num_cpus=1, max_retries=_MAX_LOSSES)(_computed)
        parts = [task.remote(code_digest(), reference, range(i, min(i + each, n))) for i in range(0, n, each)]
        try:
            return [result for part in ray.get(parts) for result in part]
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None

    @contextmanager
    def lookahead(self, assess: Assess, n_candidates: int) -> Iterator[RayLookahead]:  # noqa: ARG002
        """Yield the cluster's workers for one search, which give the CPUs back at its end.

        Raises:
            InputError: No CPU is free, or the machines have no planner or another version of it.
        """
        lookahead = RayLookahead(self, assess)
        lookahead.check()
        try:
            yield lookahead
        finally:
            with suppress(ConnectionError, self.ray.exceptions.RayError):
                for reference in lookahead.running:
                    self.ray.cancel(reference, force=True)


class RayLookahead:
    """Evaluates candidates on a cluster, one per CPU at a time; candidates that fail there are evaluated here."""

    def __init__(self, pool: RayPool, assess: Assess) -> None:
        self.assess = assess
        self._pool = pool
        self._question = [pool.ray.put(assess)]  # in a list: Ray hands the reference on, and each worker reads it once
        self._task = pool.ray.remote(num_cpus=1, max_retries=0)(_evaluate)
        self.running: dict[Any, tuple[Candidate, Outcome | None]] = {}
        self._found: dict[tuple[Candidate, Outcome | None], Outcome] = {}
        self._n_losses: Counter[Candidate] = Counter()
        self._is_gone = False  # the whole cluster

    @property
    def depth(self) -> int:
        """Return the number of later candidates that can be evaluated in advance."""
        return 0 if self._is_gone else self._pool.n_cpus

    def check(self) -> None:
        """Raise InputError unless a worker of the cluster can run this planner."""
        ray = self._pool.ray
        try:
            digest = ray.get(ray.remote(num_cpus=1)(_digest_there).remote(), timeout=PATIENCE_S)
        except ray.exceptions.GetTimeoutError:
            rule = f"no CPU of the cluster became free in {PATIENCE_S:.0f} s"
            raise InputError(rule, f"{self._pool.n_cpus} CPUs") from None
        except ray.exceptions.RayError as error:
            rule = f"the cluster's machines cannot run the planner ({message_lines(error)[-1]})"
            raise InputError(rule, None, hint=INSTALL) from None
        if digest != code_digest():
            raise InputError("a machine of the cluster has another version of the planner", digest, code_digest())

    def evaluate(self, candidate: Candidate, best: Outcome | None, upcoming: Sequence[Candidate]) -> Outcome:
        """Return the outcome of `candidate` against `best`; free workers begin with `upcoming`."""
        self._found = {(c, b): outcome for (c, b), outcome in self._found.items() if b == best}
        until = time.monotonic() + PATIENCE_S
        try:
            while not self._is_gone and (candidate, best) not in self._found:
                n_cpus = self._pool.n_cpus
                if not n_cpus or self._n_losses[candidate] >= _MAX_LOSSES or time.monotonic() > until:
                    break
                self._submit([candidate, *upcoming], best, n_cpus)
                self._collect()
        except ConnectionError:
            self._is_gone = True
            self._pool.n_lost += len(self.running)
            self.running.clear()
        outcome = self._found.pop((candidate, best), None)
        return self.assess(candidate, best) if outcome is None else outcome

    def _submit(self, candidates: Sequence[Candidate], best: Outcome | None, n_cpus: int) -> None:
        """Start the first candidate in any case, and the others while CPUs are free."""
        begun = {*self.running.values(), *self._found}
        left = [c for c in candidates if (c, best) not in begun and self._n_losses[c] < _MAX_LOSSES]
        for candidate in left:
            if candidate == candidates[0] or len(self.running) < n_cpus:
                self.running[self._task.remote(code_digest(), self._question, candidate, best)] = (candidate, best)

    def _collect(self) -> None:
        """Wait up to a second for a result."""
        ray = self._pool.ray
        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=_POLL_S)
        for reference in ready:
            candidate, best = self.running.pop(reference)
            try:
                self._found[candidate, best] = ray.get(reference)
            except ray.exceptions.RayTaskError:  # raised again here, at the candidate's turn
                self._n_losses[candidate] = _MAX_LOSSES
            except ray.exceptions.RayError:
                self._n_losses[candidate] += 1
                self._pool.n_lost += 1


def _digest_there() -> str:
    """Return the digest of a worker's planner. Ray runs plain functions only, not cached ones."""
    return code_digest()


def _evaluate(code: str, question: list[Any], candidate: Candidate, best: Outcome | None) -> Outcome:
    """Evaluate a candidate on a worker, which caches the simulations of earlier ones."""
    if code != code_digest():
        raise InputError("a machine of the cluster has another version of the planner", code_digest(), code)
    assess: Assess = _read(question[0])
    return assess(candidate, best)


def _computed(code: str, work: list[Any], numbers: range) -> list[Any]:
    """Return the results of some numbers on a worker."""
    if code != code_digest():
        raise InputError("a machine of the cluster has another version of the planner", code_digest(), code)
    compute: Callable[[int], Any] = _read(work[0])
    return [compute(i) for i in numbers]


@lru_cache(maxsize=1)
def _read(reference: Any) -> Any:
    """Return an object of the cluster: the latest one is kept, so that each worker reads it once."""
    import ray

    return ray.get(reference)


@cache
def code_digest() -> str:
    """Return a digest of the source code of our packages, wherever they are installed."""
    root, found = Path(__file__).resolve().parents[2], hashlib.sha256()
    for package in OUR_PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


def check_address(text: str) -> tuple[str, int] | None:
    """Return host and port of ray://HOST:PORT, None for the other two names of a cluster.

    Raises:
        InputError: The text is not an address.
    """
    if text in (AUTO, LOCAL):
        return None
    found = re.fullmatch(r"ray://(\[[0-9a-fA-F:.]+\]|[^:/\s]+):(\d{1,5})", text)
    if found is None or not 0 < int(found[2]) < 65536:
        raise InputError(f"a cluster is ray://HOST:PORT, {LOCAL} or {AUTO}", text, LOCAL)
    return found[1].strip("[]"), int(found[2])


@contextmanager
def join_cluster(address: str) -> Iterator[RayPool]:
    """Connect to a cluster, or start one on this machine, until the block ends.

    Raises:
        InputError: Ray is not installed, the text is not an address, or no cluster answers at it.
    """
    server = check_address(address)
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if server is not None and ("RAY_AUTH_TOKEN" in os.environ or token.is_file()):
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray sets it only if it starts or joins without a client
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("a search on a cluster needs Ray, which is not installed", address, hint=INSTALL) from None
    if server is not None:
        _need_server(address, *server)
    in_main = threading.current_thread() is threading.main_thread()
    handlers = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)} if in_main else {}
    _connect(ray, address)
    for sign, handler in handlers.items():  # the handler that Ray sets ends this process without a message
        signal.signal(sign, handler)
    try:
        yield RayPool(ray)
    finally:
        ray.shutdown()


def _need_server(address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        rule = f"no cluster answers at this address ({error.strerror or error})"
        raise InputError(rule, address, LOCAL) from None
    if find_spec("grpc") is None:
        raise InputError("a remote cluster needs Ray's client, which is not installed", address, hint=INSTALL)


def _connect(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    where = {"include_dashboard": False, "address": "local"} if address == LOCAL else {"address": address}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(**quiet, **where)
    except Exception as error:  # many types: failed connections, different versions
        why = message_lines(error)[0]
        if "timeout" in why:
            why += ": not the port for clients (10001 unless changed), or a cluster that wants a token (RAY_AUTH_TOKEN)"
        raise InputError(f"the cluster cannot be joined ({why})", address, LOCAL) from None
