"""Where the processor time of one `plan` command goes: seconds by phase, and the requests that were simulated.

python benchmarks/plan_phases.py                                                      # the first question of the README
python benchmarks/plan_phases.py --model llama3.1-8b --slo p99=1s --hw l40s --rate 2  # another

The command runs in this process, with one worker. A phase includes what it calls, except other phases of the table.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

README_QUESTION = ("--model", "llama3.1-405b", "--slo", "p99=2s", "--hw", "h100x8")


@dataclass
class Phases:
    """Processor seconds and calls by phase; the innermost phase that runs receives the time."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _inner_s: list[float] = field(default_factory=lambda: [0.0])

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time added to a phase."""

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            began = time.process_time()
            self._inner_s.append(0.0)
            try:
                return function(*args, **keywords)
            finally:
                took_s = time.process_time() - began
                own_s = took_s - self._inner_s.pop()
                self._inner_s[-1] += took_s
                self.seconds[name] = self.seconds.get(name, 0.0) + own_s
                self.calls[name] = self.calls.get(name, 0) + 1

        return call


def main() -> None:
    """Run one question and print its phases on stderr, after the answer on stdout."""
    phases = Phases()
    command = phases.timed("imports", _import_and_wrap)(phases)
    sys.argv = ["plan", *(sys.argv[1:] or README_QUESTION), "--set", "search.workers=1"]
    try:
        command()
    except SystemExit as end:
        print(f"exit {end.code}", file=sys.stderr)
    total_s = time.process_time()
    for name, seconds in sorted(phases.seconds.items(), key=lambda pair: -pair[1]):
        print(f"{seconds:8.2f} s {phases.calls[name]:6d} calls  {name}", file=sys.stderr)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{total_s:8.2f} s in all, {peak_mib:.0f} MiB at the peak", file=sys.stderr)
    print(f"{_requests.total:8d} requests simulated in {_requests.runs} runs", file=sys.stderr)


@dataclass
class _Requests:
    total: int = 0
    runs: int = 0


_requests = _Requests()


def _import_and_wrap(phases: Phases) -> Callable[[], None]:
    """Import the product and time its phases; return the command `plan`."""
    import planner.pipeline as pipeline
    from planner.answer.candidate_search import GroupSearch
    from planner.evaluation import runs
    from planner.evaluation.simulated_evaluator import SimulatedEvaluator
    from planner.main import main as command

    simulate = runs.run

    def counted(part: Any, requests: Any) -> Any:
        _requests.total, _requests.runs = _requests.total + requests.n, _requests.runs + 1
        return simulate(part, requests)

    runs.run = phases.timed("simulated requests", counted)  # type: ignore[assignment]
    runs.observe_run = phases.timed("statistics of runs", runs.observe_run)
    runs.reusable_run = phases.timed("reuse of runs", runs.reusable_run)
    for name, label in (("discard", "bounds"), ("detail", "details of the plans' runs"), ("facts", "facts of plans")):
        setattr(SimulatedEvaluator, name, phases.timed(label, getattr(SimulatedEvaluator, name)))
    pipeline.apply_bounds = phases.timed("space", pipeline.apply_bounds)
    GroupSearch.run = phases.timed("search, without its runs", GroupSearch.run)  # type: ignore[method-assign]
    pipeline._entries = phases.timed("winner and alternatives, without their runs", pipeline._entries)
    pipeline.compute_sections = phases.timed("sections, without their runs", pipeline.compute_sections)
    return command


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # an installed planner comes first
    main()
