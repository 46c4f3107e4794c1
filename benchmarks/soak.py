"""Simulates random deployments and workloads, and reports broken invariants, hangs and growth of memory.

    python benchmarks/soak.py --minutes 60             # from seed 0 on
    python benchmarks/soak.py --minutes 5 --seed 4711  # from another seed on
    python benchmarks/soak.py --only 4711              # one case, reduced if it fails

Every case is drawn by its seed from the schemas of deployment.yaml and of workloads. It runs step by step and
fast-forwarded with all invariants checked, and the two runs are compared. If a case is not valid (InputError), keys are
changed or removed until it is. Any other exception is a finding: its seed, its files and the traceback are printed. The
exit status is 1 if there is a finding and 0 otherwise.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import yaml
from fuzz_cases import Case, draw_case
from fuzz_check import Outcome, run_case
from fuzz_repair import repaired
from fuzz_shrink import shrink

#: Most changes to a case that is not valid. A judgement: nearly all cases are valid by then.
REPAIRS = 24

#: Share of the run in which memory is not judged: what is kept between runs (models, hardware, bundles) fills up first.
WARM_UP_FRACTION = 0.3

#: Growth of memory that is permitted from then on, MiB.
MOST_GROWTH_MIB = 64.0

#: Longest time of one case, seconds.
LIMIT_S = 60.0


@dataclass
class SoakResults:
    """The cases that were run, and the findings."""

    started_s: float = field(default_factory=time.monotonic)
    cases: int = 0
    ran: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    findings: dict[str, int] = field(default_factory=dict)  # signature: first seed
    again: Counter[str] = field(default_factory=Counter)
    memory_mib: list[tuple[float, float]] = field(default_factory=list)  # (seconds, resident MiB)

    def add(self, case: Case, outcome: Outcome) -> None:
        """Add a case that ran."""
        self.ran += 1
        self.keys.update([*case.deployment, *(f"workload.{key}" for key in case.workload)])
        self.policies.update(outcome.policies)
        for name in ("n_requests", "n_completed", "n_steps", "n_preempted", "n_handed_over", "n_restarted"):
            self.sums[name] += getattr(outcome, name)

    def remember_memory(self) -> None:
        gc.collect()
        self.memory_mib.append((time.monotonic() - self.started_s, resident_mib()))

    @property
    def growth_mib(self) -> float:
        """The growth of the median resident memory from the first to the last third after the warm-up, MiB."""
        after = self.memory_mib[int(len(self.memory_mib) * WARM_UP_FRACTION) :]
        third = len(after) // 3
        if not third:
            return 0.0
        early, late = sorted(m for _, m in after[:third]), sorted(m for _, m in after[-third:])
        return late[third // 2] - early[third // 2]


def resident_mib() -> float:
    """Return the resident memory of this process, MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def signature(error: BaseException) -> str:
    """Return the kind of a finding: the exception, and the function that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.endswith(".py") and "/benchmarks/" not in f.filename and f.name != "_run"]
    at = own[-1] if own else frames[-1]
    words = "".join(c for c in str(error) if not c.isdigit())[:60]
    return f"{type(error).__name__} in {Path(at.filename).name}:{at.name}: {words}"


def attempt(case: Case, folder: Path, results: SoakResults | None = None) -> tuple[Case, Outcome]:
    """Run a case, changed until it is valid, and return it with its outcome."""
    rng, followed = Random(case.seed), set[str]()
    for _ in range(REPAIRS):
        try:
            outcome = run_case(case, folder, LIMIT_S)
        except Exception as error:
            error.add_note(repr(case))
            error.case = case  # type: ignore[attr-defined]
            raise
        if outcome.refused is None:
            break
        if results is not None:
            results.refusals["".join(c for c in str(outcome.refused) if not c.isdigit())[:70]] += 1
        case = repaired(case, outcome.refused, rng, followed)
    return case, outcome


def report(case: Case, error: BaseException) -> None:
    print(f"\n=== seed {case.seed}: {signature(error)}")
    print("".join(traceback.format_exception_only(error)).strip().split("\nCase(")[0])
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    print("".join(traceback.format_list(frames)).rstrip())
    print(f"--- deployment.yaml\n{yaml.safe_dump(case.deployment, sort_keys=False)}--- workload.yaml")
    print(yaml.safe_dump(case.workload, sort_keys=False).rstrip())
    if case.trace:
        print(f"--- trace.csv\n{case.trace.rstrip()}")
    print(f"--- options {case.options}", flush=True)


def soak(minutes: float, seed: int, most_findings: int, shrinks: bool) -> SoakResults:
    results = SoakResults()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while time.monotonic() - results.started_s < 60.0 * minutes and len(results.findings) < most_findings:
            case = draw_case(seed)
            try:
                case, outcome = attempt(case, folder, results)
                if outcome.refused is None:
                    results.add(case, outcome)
            except Exception as error:
                _note(results, getattr(error, "case", case), error, folder if shrinks else None)
            results.cases += 1
            seed += 1
            if results.cases % 20 == 0:
                results.remember_memory()
    return results


def _note(results: SoakResults, case: Case, error: Exception, folder: Path | None) -> None:
    kind = signature(error)
    results.again[kind] += 1
    if kind in results.findings:
        return
    results.findings[kind] = case.seed
    if folder is not None:
        case = shrink(case, lambda smaller: _fails_equally(smaller, folder, kind))
    report(case, error)


def _fails_equally(case: Case, folder: Path, kind: str) -> bool:
    try:
        run_case(case, folder, LIMIT_S)
    except Exception as error:
        return signature(error) == kind
    return False


def summary(results: SoakResults) -> int:
    """Print the results and return the exit status."""
    seconds = time.monotonic() - results.started_s
    steps = results.sums.pop("n_steps", 0)
    print(f"\n{results.cases} cases in {seconds / 60:.1f} min: {results.ran} ran, {steps:,} steps,")
    print("  " + ", ".join(f"{name[2:].replace('_', ' ')} {n:,}" for name, n in results.sums.items()))
    print("  policies: " + ", ".join(f"{name} {n}" for name, n in results.policies.most_common()))
    print("  keys: " + ", ".join(f"{name} {n}" for name, n in results.keys.most_common()))
    print(f"  not valid as drawn: {sum(results.refusals.values())}, in {len(results.refusals)} kinds of errors")
    if results.memory_mib:
        print(
            f"  memory: {results.memory_mib[-1][1]:.0f} MiB, {results.growth_mib:+.1f} MiB from the warm-up to the end"
        )
    for kind, seed in results.findings.items():
        print(f"  FOUND {results.again[kind]}x, first with --only {seed}: {kind}")
    grew = results.growth_mib > MOST_GROWTH_MIB
    if grew:
        print(f"  FOUND memory grew by more than {MOST_GROWTH_MIB:g} MiB")
    return 1 if results.findings or grew else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the first case; each further case has the next seed"
    )
    parser.add_argument("--only", type=int, help="run the case of this seed and no other")
    parser.add_argument("--findings", type=int, default=20, help="stop after so many kinds of findings")
    parser.add_argument("--no-shrink", action="store_true", help="print failing cases as they were drawn, not reduced")
    asked = parser.parse_args()
    if asked.only is None:
        return summary(soak(asked.minutes, asked.seed, asked.findings, not asked.no_shrink))
    results = SoakResults()
    case = draw_case(asked.only)
    with tempfile.TemporaryDirectory() as name:
        try:
            case, outcome = attempt(case, Path(name), results)
            print(outcome)
            results.add(case, outcome)
        except Exception as error:
            folder = None if asked.no_shrink else Path(name)
            _note(results, getattr(error, "case", case), error, folder)
    return summary(results)


if __name__ == "__main__":
    sys.exit(main())
