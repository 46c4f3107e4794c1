"""How often does a short run of a search rule out a candidate that would meet the objectives?

Random candidates of random requests are simulated near their estimated capacity with the short and the full run of a
search. A full run decides what is true. The table has one row for each margin: of the candidates that meet the
objectives, the share that the margin rules out (the error rate), and of those that miss, the share that needs no full
run. `ruled_out` is the rule of the search, which asks for the square of the margin where the estimate disagrees.

python benchmarks/short_runs.py                             # 8 requests with 20 candidates each
python benchmarks/short_runs.py --requests 4 --seed 2
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass

import numpy as np
from objective_proof import draw

from catalogs.ui.words import percent
from planner.evaluation.evaluator import apply_bounds
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.verdict import SHORT_RUN_MARGIN
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.search.candidate_tester import CandidateTester

MARGINS = (1.0, 1.1, 1.2, SHORT_RUN_MARGIN, 1.5, SHORT_RUN_MARGIN**2)

#: Loads as shares of the estimated capacity: where a short run is most likely to be wrong.
SHARES = (0.6, 1.15)


@dataclass(frozen=True)
class Pair:
    """The short and the full run of a candidate at one rate.

    Attributes:
        short: Value / limit of the short run.
        full: Value / limit of the full run; infinite if the system does not keep up.
        full_value: Value / limit of the full run, whether the system keeps up or not.
        far_behind: Whether the short run is far overloaded.
        ruled_out: Whether the search rules the candidate out after the short run.
        energy: Energy of an output token in the short run over that in the full run.
    """

    short: float
    full: float
    full_value: float
    far_behind: bool
    ruled_out: bool
    energy: float

    @property
    def meets(self) -> bool:
        """Whether the candidate meets the objectives."""
        return self.full <= 1


def pairs_of(request: PlanRequest, n: int, rng: np.random.Generator) -> list[Pair]:
    """Return the runs of random candidates of a request."""
    evaluator = open_evaluator(request)
    left, _ = apply_bounds(request, evaluator)
    sizes = RunSizes.for_slos(request.slos)
    tester = CandidateTester(evaluator, request.slos, sizes, request.seed, request.confidence, None)
    found = list[Pair]()
    for i in rng.permutation(len(left)):
        capacity_per_s = tester.guessed_capacity_per_s(left[i])
        if capacity_per_s <= 0:
            continue
        rate = capacity_per_s * float(rng.uniform(*SHARES))
        short = tester.probe(left[i], rate, sizes.quick)
        full = tester.probe(left[i], rate, sizes.full)
        out = tester.ruled_out(left[i], short)
        energy = short.joules_per_output_token / full.joules_per_output_token
        found.append(Pair(short.value_ratio, full.ratio, full.value_ratio, short.far_behind, out, energy))
        if len(found) == n:
            break
    return found


def table(pairs: list[Pair]) -> str:
    """Return the error rates as a table in Markdown, with the spread of a short run below it."""
    meets, misses = [p for p in pairs if p.meets], [p for p in pairs if not p.meets]
    rules = {f"{margin:.3g}": [p.short > margin or p.far_behind for p in pairs] for margin in MARGINS}
    rules["`ruled_out`"] = [p.ruled_out for p in pairs]
    lines = [
        f"| margin | ruled out of {len(meets)} that meet | at most, with 95 % confidence | ruled out of "
        f"{len(misses)} that miss |",
        "|---|---:|---:|---:|",
    ]
    for name, out in rules.items():
        wrong = sum(o for o, p in zip(out, pairs, strict=True) if p.meets)
        right = sum(o for o, p in zip(out, pairs, strict=True) if not p.meets)
        shares = wrong / max(len(meets), 1), _most(wrong, len(meets)), right / max(len(misses), 1)
        lines.append(f"| {name} | " + " | ".join(percent(share, 1) for share in shares) + " |")
    ratios = [p.short / p.full_value for p in meets if p.short > 0 and p.full_value > 0]
    for words, values in (("value", ratios), ("energy per output token", [p.energy for p in meets])):
        ends = " / ".join(f"{end:.2f}" for end in np.quantile(values, [0.05, 0.5, 0.95]))
        lines += [
            "",
            f"{words}, short over full run of those that meet, 5 / 50 / 95 %: {ends}, at most {max(values):.2f}",
        ]
    return "\n".join(lines)


def _most(n: int, of: int) -> float:
    """Return the upper end of the one-sided 95 % interval of a share (Clopper and Pearson)."""
    from scipy.stats import beta

    return 1.0 if n >= of else float(beta.ppf(0.95, n + 1, of - n))


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--requests", type=int, default=8)
    options.add_argument("--candidates", type=int, default=20, help="candidates of each request")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    rng, pairs = np.random.default_rng(given.seed), list[Pair]()
    for i, request in enumerate(draw(given.requests, given.seed)):
        stat = "p99" if i % 2 else "p90"
        text = ",".join(
            f"{slo.metric}.{stat if slo.metric == 'ttft' else slo.stat}={slo.limit_s}s" for slo in request.slos
        )
        own = request.replace(slos=parse_slos([text]), requests_per_s=None, objective="energy")
        pairs += pairs_of(own, given.candidates, rng)
        known = sum(p.meets for p in pairs)
        print(f"{own.model} on {own.hardware}: {len(pairs)} candidates, {known} meet", file=sys.stderr, flush=True)
    print(table([p for p in pairs if math.isfinite(p.short)]))


if __name__ == "__main__":
    main()
