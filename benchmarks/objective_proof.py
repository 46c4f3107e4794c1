"""Does the search find the optimum of every objective within its default budget?

Random spaces of real models and hardware are measured candidate by candidate, without a comparison that ends a
measurement early: that is the truth. Then the search of `plan` runs with its default budget. A space counts as found if
the best outcome is at most 2 % worse than the optimum. The search must also never return a plan that is more than 2 %
worse than one that it has measured itself.

python benchmarks/objective_proof.py                         # 30 spaces for each of six objectives: hours
python benchmarks/objective_proof.py --spaces 3 --objectives energy,carbon
python benchmarks/objective_proof.py --store DIR             # brute force once, then minutes for each new search
python benchmarks/objective_proof.py --store DIR --only 0/2  # every second space, for two processes at a time
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from planner.answer.candidate_search import group_search, simplest_best
from planner.answer.plan_evaluator import PlanEvaluator
from planner.evaluation.capacity import find_capacity
from planner.evaluation.evaluator import apply_bounds
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator, open_evaluator
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.verdict import Verdict
from planner.problem.candidate import Candidate
from planner.problem.price_list import PriceList
from planner.problem.reproduction import digest
from planner.problem.request import OBJECTIVES, PlanRequest
from planner.search.candidate_tester import TIE, CandidateTester
from planner.search.workers import ONE_PROCESS

MODELS = ("llama3.1-8b", "qwen2.5-14b", "qwen3-30b-a3b", "mistral-nemo")
HARDWARE = ("h100x4", "h200x2", "l40sx4", "a100-80gbx4", "h100x2,l40sx4", "h200x1,a100-80gbx2", "rtxpro6000x2,l40sx2")
WORKLOADS = ("azure-conv", "azure-code", "sharegpt")

#: A space must have at least this multiple of the default budget.
LEAST_SPACE = 5

#: The sizes with which `plan` itself searches for objectives on p90.
SIZES = RunSizes(300, 1000)


#: Brute force determines capacities to this tolerance, finer than the difference that it decides about.
TOLERANCE = 0.005

#: A candidate that misses at this share of the best capacity is not the optimum: its own capacity is not needed.
FAR_BELOW = 0.9

#: The verdict of one run at one rate is uncertain within this share of a capacity: near it, most deployments meet the
#: objectives at some rates and miss them at rates in between.
NOISE = 0.03

#: Objectives whose candidates also use a part of the hardware.
OF_PARTS = ("cost", "energy", "carbon")

#: Candidates whose runs identify the simulator and its stated error.
SAMPLE = 5


@dataclass(frozen=True)
class Proof:
    """The result of one search: scores, lower is better; None if nothing meets the objectives."""

    optimum: float | None
    found: float | None
    n_space: int
    n_measured: int
    best_measured: float | None
    n_requests: int = 0

    @property
    def loss(self) -> float:
        """Return by what share of the optimum the plan found is worse; infinite if only one of the two exists."""
        if self.optimum is None or self.found is None:
            return 0.0 if self.optimum is self.found else float("inf")
        return max((self.found - self.optimum) / abs(self.optimum), 0.0)

    @property
    def is_found(self) -> bool:
        """Whether the search found the optimum, or rightly nothing."""
        return self.loss <= TIE

    @property
    def is_consistent(self) -> bool:
        """Whether the best outcome is no worse than any other that was measured."""
        if self.found is None or self.best_measured is None:
            return self.found is self.best_measured
        return self.found <= self.best_measured + TIE * abs(self.best_measured)


@dataclass(frozen=True)
class Measured:
    """One candidate, measured by itself.

    Attributes:
        ratio: The largest value / limit at the load; infinite if the candidate does not keep up.
        joules: Energy of an output token at the load; None if the candidate does not carry it.
        requests_per_s: Its capacity, or a rate far below the best at which it misses an objective; None if it does not
            carry the load, or is not compared by capacity.
    """

    ratio: float
    joules: float | None
    requests_per_s: float | None


Truth = dict[Candidate, Measured]

T = TypeVar("T")


def draw(n: int, seed: int) -> list[PlanRequest]:
    """Return random requests whose spaces are large enough, with a load that part of the candidates carry."""
    rng, found = np.random.default_rng(seed), list[PlanRequest]()
    while len(found) < n:
        ttft_s, tpot_s = float(rng.choice([0.5, 1.0, 3.0])), float(rng.choice([0.03, 0.05, 0.1]))
        request = PlanRequest(
            model=str(rng.choice(MODELS)),
            hardware=str(rng.choice(HARDWARE)),
            slo=f"ttft.p90={ttft_s:g}s,tpot.mean={1e3 * tpot_s:g}ms",
            workload=str(rng.choice(WORKLOADS)),
            objective="throughput",  # of all objectives, its space is the smallest: whole hardware
        )
        evaluator = open_evaluator(request)
        left, _ = apply_bounds(request, evaluator)
        if len(left) >= LEAST_SPACE * request.search.trials:
            full_per_s = max(evaluator.fluid_requests_per_s(c) for c in left)
            found.append(request.replace(requests_per_s=float(f"{full_per_s * rng.uniform(0.05, 0.5):.2g}")))
    return found


def measure(tester: CandidateTester, left: Sequence[Candidate], whole: Sequence[Candidate]) -> Truth:
    """Return every candidate of `left`, measured by itself, with the capacity of those that are also in `whole`.

    A candidate that misses at a rate far below the best capacity so far, in total and per accelerator, is not bisected.
    The capacities near the best are then determined from many rates.
    """
    found, raced, rate = Truth(), set(whole), tester.requests_per_s or 0.0
    best_per_s = best_each_per_s = 0.0
    for c in sorted(left, key=tester.evaluator.fluid_requests_per_s, reverse=True):
        verdict = tester.probe(c, rate, SIZES.full)
        if not verdict.met:
            found[c] = Measured(verdict.ratio, None, None)
            continue
        capacity, n = None, c.hardware.n_accelerators
        if c in raced:
            far_below = max(FAR_BELOW * min(best_per_s, best_each_per_s * n), rate)
            floor = tester.probe(c, far_below, SIZES.full)
            capacity = far_below
            if floor.met:
                guess_per_s = tester.evaluator.fluid_requests_per_s(c)
                runs = partial(tester.probe, c, n_requests=SIZES.full)
                capacity = find_capacity(runs, guess_per_s, floor, TOLERANCE).requests_per_s
                best_per_s, best_each_per_s = max(best_per_s, capacity), max(best_each_per_s, capacity / n)
        found[c] = Measured(verdict.ratio, tester.simulated(c, rate, SIZES.full).joules_per_output_token, capacity)
    for c, known in found.items():
        best = min(best_per_s, best_each_per_s * c.hardware.n_accelerators)
        if known.requests_per_s is not None and known.requests_per_s >= max((1 - NOISE) * best, rate):
            runs = partial(tester.probe, c, n_requests=SIZES.full)
            found[c] = replace(known, requests_per_s=separating_rate(runs, max((1 - 2 * NOISE) * best, rate), best))
    return found


def separating_rate(probe: Callable[[float], Verdict], low_per_s: float, high_per_s: float) -> float:
    """Return the rate that separates the rates that meet the objectives from those that miss, with fewest exceptions.

    A bisection ends at one of several changes between the two, so that equal deployments have capacities that differ by
    some percent. Here many rates between two limits decide, the same for every candidate.
    """
    rates = np.geomspace(low_per_s, high_per_s * (1 + NOISE), round(3 * NOISE / TOLERANCE) + 1)
    met = np.array([probe(float(r)).met for r in rates])
    missed_below, met_above = np.cumsum([False, *~met]), np.cumsum([False, *met[::-1]])[::-1]
    exceptions = missed_below + met_above
    place = np.mean(np.flatnonzero(exceptions == exceptions.min()))  # how many of the rates count as met
    return float(np.interp(place - 0.5, np.arange(len(rates)), rates))


@dataclass(frozen=True)
class Space:
    """One request for each objective, with what its candidates are worth.

    Attributes:
        request: The request; its objective is replaced.
        evaluator: Evaluates the candidates of every objective.
        parts: Candidates of the objectives whose plans may use a part of the hardware.
        whole: Candidates of the other objectives.
    """

    request: PlanRequest
    evaluator: HardwareChoiceEvaluator
    parts: list[Candidate]
    whole: list[Candidate]

    @classmethod
    def of(cls, request: PlanRequest) -> Space:
        """Return the space of a request."""
        thrifty = request.replace(objective="energy")  # its runs have energy, and serve all objectives
        evaluator = open_evaluator(thrifty)
        whole, _ = apply_bounds(request, open_evaluator(request))
        return cls(request, evaluator, apply_bounds(thrifty, evaluator)[0], whole)

    @property
    def tester(self) -> CandidateTester:
        """Return what measures candidates under the load of the request."""
        request = self.request
        return CandidateTester(
            self.evaluator, request.slos, SIZES, request.seed, request.confidence, request.requests_per_s
        )

    @property
    def identity(self) -> str:
        """Return a text that changes with the simulator, its stated error or the method: a digest of a few runs.

        Stored results of another version would be compared with a search that measures other values.
        """
        tester, rate = self.tester, self.request.requests_per_s or 0.0
        fastest = sorted(self.parts, key=tester.evaluator.fluid_requests_per_s, reverse=True)
        verdicts = [tester.probe(c, rate, SIZES.full) for c in fastest[:: max(len(fastest) // SAMPLE, 1)][:SAMPLE]]
        seen = [(v.value_ratio, v.stable, v.observations[0].load.requests_per_s) for v in verdicts]
        return digest(repr((self.evaluator.fingerprint, seen, FAR_BELOW, TOLERANCE, NOISE)))

    def truth(self) -> Truth:
        """Return every candidate, measured by itself."""
        return measure(self.tester, self.parts, self.whole)

    def prove(self, objective: str, truth: Truth) -> Proof:
        """Return what the search finds and what brute force finds for one objective."""
        request, left = self.request.replace(objective=objective), self.parts if objective in OF_PARTS else self.whole
        prices = PriceList(request.tariff, self.evaluator.names.hardware)
        values = {c: _value(objective, prices, c, truth[c]) for c in left}
        optimum = min((v for v in values.values() if v is not None), default=None)
        evaluator = PlanEvaluator(self.evaluator, self.tester, prices)
        result = group_search(request, evaluator, left, ONE_PROCESS, None).run()
        feasible = [o for o in result.outcomes if o.feasible]
        found = values[simplest_best(request, evaluator, feasible).candidate] if feasible else None
        seen = [values[o.candidate] for o in result.outcomes]
        best = min((v for v in seen if v is not None), default=None)
        return Proof(optimum, found, len(left), len(result.outcomes), best, result.n_requests)


def _value(objective: str, prices: PriceList, candidate: Candidate, measured: Measured) -> float | None:
    """Return the quantity that the objective minimises; None if the candidate does not carry the load."""
    if measured.joules is None:
        return None
    if objective == "cost":
        return prices.usd_per_hour(candidate)
    if objective == "energy":
        return measured.joules
    if objective == "carbon":
        return measured.joules * prices.grid(candidate).grid.gco2e_per_kwh
    if objective == "latency":
        return measured.ratio
    each = candidate.hardware.n_accelerators if objective == "goodput" else 1
    return None if measured.requests_per_s is None else -measured.requests_per_s / each


def _kept(store: Path | None, name: str, make: Callable[[], T]) -> T:
    """Return a stored result, or make it and store it."""
    path = None if store is None else store / f"{name}.pickle"
    if path is not None and path.is_file():
        found: T = pickle.loads(path.read_bytes())
        return found
    made = make()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(made))
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each objective, and one for each space that was not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", type=int, default=30)
    parser.add_argument("--objectives", default=",".join(OBJECTIVES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, help="directory that keeps the results of brute force")
    parser.add_argument("--only", default="0/1", help="I/N: only the spaces whose number leaves the rest I of N")
    given = parser.parse_args(arguments)
    objectives = [name for name in given.objectives.split(",") if name]
    rows: dict[str, list[Proof]] = {objective: [] for objective in objectives}
    requests: list[PlanRequest] = _kept(given.store, f"{given.seed}-requests", lambda: draw(given.spaces, given.seed))
    rest, parts = map(int, given.only.split("/"))
    for i, request in enumerate(requests[: given.spaces]):
        if i % parts != rest:
            continue
        space = Space.of(request)
        truth = _kept(given.store, f"{given.seed}-{i}-{space.identity}", space.truth)
        for objective in objectives:
            proof = space.prove(objective, truth)
            rows[objective].append(proof)
            words = f"{request.model} on {request.hardware}, {request.requests_per_s:g} requests/s, {objective}"
            verdict = "found" if proof.is_found else "MISSED"
            print(f"{i}: {words}: {verdict}: {proof}", file=sys.stderr, flush=True)
    medians = "candidates (median) | measured (median) | simulated requests (median)"
    print(f"| objective | spaces | optimum found | consistent | largest loss | {medians} |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for objective, proofs in rows.items():
        if proofs:
            sizes = np.median([(p.n_space, p.n_measured, p.n_requests) for p in proofs], axis=0)
            found, same = sum(p.is_found for p in proofs), sum(p.is_consistent for p in proofs)
            counts = f"{len(proofs)} | {found} | {same} | {max(p.loss for p in proofs):.1%}"
            print(f"| {objective} | {counts} | {sizes[0]:.0f} | {sizes[1]:.0f} | {sizes[2]:.0f} |")


if __name__ == "__main__":
    main()
