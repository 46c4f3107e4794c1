"""Does the search find the optimum of every objective within its default budget?

Random spaces of real models and hardware are measured candidate by candidate, without a comparison that ends a
measurement early: that is the truth. Then the search of `plan` runs with its default budget. A space counts as found if
the best outcome is at most 2 % worse than the optimum. The search must also never return a plan that is more than 2 %
worse than one that it has measured itself.

python benchmarks/objective_proof.py                         # 30 spaces for each of six objectives: hours
python benchmarks/objective_proof.py --spaces 3 --objectives energy,carbon
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.answer.evaluate import PlanEvaluator
from planner.evaluation.evaluator import apply_bounds
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator, open_evaluator
from planner.pipeline import ONE_PROCESS, search_candidates
from planner.problem.candidate import Candidate
from planner.problem.price_list import PriceList
from planner.problem.request import OBJECTIVES, PlanRequest
from planner.search.objectives import TIE, CandidateTester, RunSizes

MODELS = ("llama3.1-8b", "qwen2.5-14b", "qwen3-30b-a3b", "mistral-nemo")
HARDWARE = ("h100x4", "h200x2", "l40sx4", "a100-80gbx4", "h100x2,l40sx4", "h200x1,a100-80gbx2", "rtxpro6000x2,l40sx2")
WORKLOADS = ("azure-conv", "azure-code", "sharegpt")

#: A space must have at least this multiple of the default budget.
LEAST_SPACE = 5

#: Short runs keep brute force affordable: only candidates are compared, under the same requests.
SIZES = RunSizes(200, 600)


@dataclass(frozen=True)
class Proof:
    """The result of one search: scores, lower is better; None if nothing meets the objectives."""

    optimum: float | None
    found: float | None
    n_space: int
    n_measured: int
    best_measured: float | None

    @property
    def is_found(self) -> bool:
        """Whether the search found the optimum, or rightly nothing."""
        if self.optimum is None or self.found is None:
            return self.optimum is None and self.found is None
        return self.found <= self.optimum + TIE * abs(self.optimum)

    @property
    def is_consistent(self) -> bool:
        """Whether the best outcome is no worse than any other that was measured."""
        if self.found is None or self.best_measured is None:
            return self.found is self.best_measured
        return self.found <= self.best_measured + TIE * abs(self.best_measured)


def requests(n: int, seed: int) -> Iterator[tuple[PlanRequest, HardwareChoiceEvaluator, list[Candidate]]]:
    """Yield random requests whose spaces are large enough, with a load that part of the candidates carry."""
    rng = np.random.default_rng(seed)
    while n:
        ttft_s, tpot_s = float(rng.choice([0.5, 1.0, 3.0])), float(rng.choice([0.03, 0.05, 0.1]))
        request = PlanRequest(
            model=str(rng.choice(MODELS)),
            hardware=str(rng.choice(HARDWARE)),
            slo=f"ttft.p90={ttft_s:g}s,tpot.mean={1e3 * tpot_s:g}ms",
            workload=str(rng.choice(WORKLOADS)),
            objective="energy",  # its runs have energy, and serve all objectives
        )
        evaluator = open_evaluator(request)
        left, _ = apply_bounds(request, evaluator)
        if len(left) < LEAST_SPACE * request.search.trials:
            continue
        full_per_s = max(evaluator.fluid_requests_per_s(c) for c in left)
        rate = float(f"{full_per_s * rng.uniform(0.05, 0.5):.2g}")
        n -= 1
        yield request.replace(requests_per_s=rate), evaluator, left


def prove(request: PlanRequest, evaluator: HardwareChoiceEvaluator, left: Sequence[Candidate]) -> Proof:
    """Return what the search finds and what brute force finds for one request."""
    tester = CandidateTester(evaluator, request.slos, SIZES, request.seed, request.confidence, request.requests_per_s)
    prices = PriceList(request.tariff, evaluator.names.hardware)
    truth = {c: _value(request, prices, tester, c) for c in left}
    optimum = min((v for v in truth.values() if v is not None), default=None)
    result = search_candidates(request, PlanEvaluator(evaluator, tester, prices), left, ONE_PROCESS, None)
    found = None if result.best is None else truth[result.best.candidate]
    measured = [truth[o.candidate] for o in result.outcomes if o.feasible]
    best = min((v for v in measured if v is not None), default=None)
    return Proof(optimum, found, len(left), len(result.outcomes), best)


def _value(request: PlanRequest, prices: PriceList, tester: CandidateTester, candidate: Candidate) -> float | None:
    """Return the quantity that the objective minimises, measured by itself; None if the load is not carried."""
    rate = request.requests_per_s or 0.0
    verdict = tester.probe(candidate, rate, SIZES.full)
    if not verdict.met:
        return None
    if request.objective == "cost":
        return prices.usd_per_hour(candidate.hardware)
    if request.objective in ("energy", "carbon"):
        return tester.simulated(candidate, rate, SIZES.full).joules_per_output_token
    if request.objective == "latency":
        return verdict.ratio
    found = tester.capacity(candidate, verdict, tester.evaluator.fluid_requests_per_s(candidate)).requests_per_s
    return -found / (candidate.hardware.n_accelerators if request.objective == "goodput" else 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each objective, and one for each space that was not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", type=int, default=30)
    parser.add_argument("--objectives", default=",".join(OBJECTIVES))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    objectives = given.objectives.split(",")
    rows: dict[str, list[Proof]] = {objective: [] for objective in objectives}
    for i, (request, evaluator, left) in enumerate(requests(given.spaces, given.seed), 1):
        for objective in objectives:
            proof = prove(request.replace(objective=objective), evaluator, left)
            rows[objective].append(proof)
            words = f"{request.model} on {request.hardware}, {request.requests_per_s:g} requests/s, {objective}"
            print(f"{i}: {words}: {proof}", file=sys.stderr, flush=True)
    print("| objective | spaces | optimum found | consistent | candidates (median) | measured (median) |")
    print("|---|---:|---:|---:|---:|---:|")
    for objective, proofs in rows.items():
        sizes = np.median([p.n_space for p in proofs]), np.median([p.n_measured for p in proofs])
        found, same = sum(p.is_found for p in proofs), sum(p.is_consistent for p in proofs)
        print(f"| {objective} | {len(proofs)} | {found} | {same} | {sizes[0]:.0f} | {sizes[1]:.0f} |")


if __name__ == "__main__":
    main()
