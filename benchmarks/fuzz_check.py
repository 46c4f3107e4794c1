"""Runs a case step by step and fast-forwarded with every invariant checked; InputError is no finding, all else is."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from fuzz_cases import Case

from catalogs.deployments.schema import load_deployment
from catalogs.errors import InputError
from catalogs.workloads.workload import load_workload
from simulator.cli import outputs
from simulator.cli.outputs import RequestedOutputs
from simulator.cli.requests import with_media
from simulator.cluster.compiled import compile_fleet
from simulator.cluster.run import Run
from simulator.cluster.serving_options import serving_options
from simulator.cluster.simulate import simulate

#: Largest difference of times with and without fast-forward, seconds.
EXACT_S: Final = 1e-9

#: Further difference as a share of the time: the spacing of floats in long runs.
FLOAT_STEPS: Final = 1e-12

#: One case in this many is run once more, its replicas shared by two processes.
SHARED_BETWEEN: Final = 16

#: One case in this many is explained, which takes a while.
EXPLAINED: Final = 12
TIMES: Final = ("arrival_s", "started_s", "first_token_s", "last_token_s")
COUNTS: Final = ("status", "replica", "preemptions", "cached_tokens")


class Hang(Exception):
    """A case took longer than its limit of processor time."""


class Differs(AssertionError):
    """Two runs of a case that must be equal differ."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a case; `refused` is the error if the case is not valid."""

    refused: InputError | None = None
    n_requests: int = 0
    n_completed: int = 0
    n_steps: int = 0
    n_preempted: int = 0
    n_handed_over: int = 0
    n_restarted: int = 0
    policies: tuple[str, ...] = ()


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Hang after a number of seconds of processor time."""

    def stop(*_: Any) -> None:
        raise Hang(f"more than {seconds:g} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def write(case: Case, folder: Path) -> tuple[Path, Path]:
    """Write the deployment, the workload and the trace of a case, and return the paths of the first two."""
    for name, data in (("deployment", case.deployment), ("workload", case.workload)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    (folder / "trace.csv").write_text(case.trace)
    return folder / "deployment.yaml", folder / "workload.yaml"


def run_case(case: Case, folder: Path, limit_s: float = 60.0) -> Outcome:
    """Run a case as the command `simulate` does, step by step and fast-forwarded, and write its output files.

    Raises:
        Hang: The case takes more than `limit_s` seconds of processor time.
        Differs: The two runs differ.
    """
    try:
        with limited(limit_s):
            return _run(case, folder)
    except InputError as refusal:
        return Outcome(refused=refusal)


def _run(case: Case, folder: Path) -> Outcome:
    deployment, workload = write(case, folder)
    written, asked = load_deployment(deployment), load_workload(str(workload))
    written = with_media(written, str(workload)) if asked.sends_media else written
    fleet = compile_fleet(written)
    requests = fleet.reads(asked).materialise()
    some = case.seed % EXPLAINED == 0
    views = RequestedOutputs(folder / "trace.json", None, folder / "series.csv", 1.0, some, None, some)

    def serve(**how: Any) -> Run:
        return simulate(fleet, requests, replace(serving_options(written, fleet), **case.options, **how))

    slow = serve(check_invariants=True, fast_forward=False)
    fast = serve(check_invariants=True, event_log=views.event_log())
    assert_same(slow, fast)
    if case.seed % SHARED_BETWEEN == 0:
        assert_same(slow, serve(processes=2))
    document = outputs.document(fast, written, asked)
    views.write(fast, document)
    json.dumps(document, allow_nan=False)
    outputs.write_csv(fast, folder / "requests.csv")
    return Outcome(
        n_requests=slow.requests.n,
        n_completed=int(slow.completed.sum()),
        n_steps=sum(len(log) for log in slow.logs),
        n_preempted=int(slow.preemptions.sum()),
        n_handed_over=len(slow.handovers),
        n_restarted=slow.restarts,
        policies=tuple(dict.fromkeys(pool.rules.policy for pool in slow.pools)),
    )


def assert_same(slow: Run, fast: Run) -> None:
    """Raise Differs, with the first request that differs, if two runs are not equal."""
    for name in COUNTS:
        _compare(name, getattr(slow, name), getattr(fast, name), 0.0)
    for name in TIMES:
        _compare(name, getattr(slow, name), getattr(fast, name), EXACT_S)
    if len(slow.replicas) != len(fast.replicas):
        raise Differs(f"{len(slow.replicas)} replicas step by step, {len(fast.replicas)} fast-forwarded")
    for i, (a, b) in enumerate(zip(slow.logs, fast.logs, strict=True)):
        if a.steps.sum() != b.steps.sum():
            raise Differs(f"log {i}: {a.steps.sum()} steps one by one, {b.steps.sum()} fast-forwarded")
        _compare(f"seconds of log {i}", np.array([a.total_s.sum()]), np.array([b.total_s.sum()]), EXACT_S)


def _compare(name: str, slow: np.ndarray, fast: np.ndarray, tolerance: float) -> None:  # type: ignore[type-arg]
    close = np.isclose(slow, fast, rtol=FLOAT_STEPS, atol=tolerance, equal_nan=True)
    if not close.all():
        at = int(np.flatnonzero(~close)[0])
        raise Differs(f"{name} of {at}: {slow[at]!r} step by step, {fast[at]!r} fast-forwarded")
