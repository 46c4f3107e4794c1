"""Does the search find what brute force finds, and how much does it simulate for it?

Four small spaces (a model, a node, cost against a latency) are simulated in full, under several draws of the requests
each: that is the truth. Then each method may simulate a fifth of the points, and its front is compared:

  exact     every point of the true front was found, to the last bit
  within 2 % every point of the true front has a found one at most 2 % worse in both objectives

python benchmarks/search_proof.py             # 5 draws of the requests, 5 seeds of the search: 100 fronts
python benchmarks/search_proof.py --draws 1   # a quick look
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from planner.candidate import Candidate
from planner.front import Front, Objectives
from planner.request import PlanRequest
from planner.simulated import SimulatedWorld
from planner.slo import Slo, parse_slos
from planner.trade import Trade

SHARE = 0.2
TIE = 0.02
SPACES = (
    ("llama3.1-8b", "h100x8", "e2e.mean=60s", (128, 1024)),
    ("llama3.1-70b", "h200x8", "tpot.p90=1s", (128, 1024)),
    ("llama3.1-8b", "h100x8", "ttft.p90=60s", (128, 1024)),
    ("qwen3-30b-a3b", "h100x8", "e2e.p90=60s", (1024,)),
)
LADDER = (0.1, 0.3, 0.5, 0.7, 0.9)
TOKENS = (2048, 8192)
#: The search has a seed of its own, for its first point; other methods draw all of theirs. TPE is slow: fewer of its.
SEARCH_SEEDS, TPE_SEEDS = 5, 2


@dataclass
class Score:
    """Of one method over all seeds."""

    exact: int = 0
    within: int = 0
    n: int = 0
    simulated: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, front: Front, truth: Front, n_points: int, seconds: float) -> None:
        found = [front.measured[i] for i in front.members]
        wanted = [truth.measured[i] for i in truth.members]
        self.exact += all(w in found for w in wanted)
        self.within += all(any(_close(f, w) for f in found) for w in wanted)
        self.n += 1
        self.simulated.append(len(front.measured) / n_points)
        self.seconds.append(seconds)

    def row(self, name: str) -> str:
        used = f"{np.mean(self.simulated):.1%} (at most {max(self.simulated):.1%})"
        times = f"{1000 * np.mean(self.seconds):.0f} ms"
        return f"| {name} | {self.within} of {self.n} | {self.exact} of {self.n} | {used} | {times} |"


def _close(found: Objectives, wanted: Objectives) -> bool:
    return all(f <= w * (1 + TIE) for f, w in zip(found, wanted, strict=True))


def trades(seeds: int) -> Iterator[tuple[str, Trade]]:
    """Every space under every seed of the requests."""
    for model, hardware, slo, seqs in SPACES:
        world = SimulatedWorld(PlanRequest(model, hardware, parse_slos([slo]), objective="throughput"))
        left = list(small(world, seqs))
        for seed in range(seeds):
            yield f"{model} on {hardware}, {slo.partition('=')[0]}", Trade.of(world, left, slo_of(slo), seed, LADDER)


def slo_of(text: str) -> Slo:
    (slo,) = parse_slos([text])
    return slo


def small(world: SimulatedWorld, seqs: tuple[int, ...]) -> Iterator[Candidate]:
    """Candidates with limits of a coarse grid that fit in memory."""
    for c in world.space():
        if c.max_num_seqs in seqs and c.max_num_batched_tokens in TOKENS and world.discard(c) is None:
            yield c


def brute_force(trade: Trade) -> Front:
    return Front({i: trade.measure(i) for i in range(len(trade.points))}, True)


def ours(trade: Trade, truth: Front, most: int, seed: int) -> Front:
    return trade.search(most, seed).run(lambda i: truth.measured[i])


def guesses_only(trade: Trade, truth: Front, most: int, seed: int) -> Front:  # noqa: ARG001
    """Points in the order of how far their guess lies ahead: layers of the guessed front."""
    left, front = list(range(len(trade.points))), Front()
    while left and len(front.measured) < most:
        layer = Front({i: tuple(trade.guesses[i]) for i in left}).members
        front.measured |= {i: truth.measured[i] for i in layer[: most - len(front.measured)]}
        left = [i for i in left if i not in front.measured]
    return front


def at_random(trade: Trade, truth: Front, most: int, seed: int) -> Front:
    order = np.random.default_rng(seed).permutation(len(trade.points))[:most]
    return Front({int(i): truth.measured[int(i)] for i in order})


def tpe(trade: Trade, truth: Front, most: int, seed: int) -> Front:
    """Optuna's sampler over what a point is made of; points that do not exist or were seen cost it nothing."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    names = [_names(p.candidate, p.usd_per_request) for p in trade.points]
    index = {tuple(n.values()): i for i, n in enumerate(names)}
    space = {k: optuna.distributions.CategoricalDistribution(sorted({n[k] for n in names}, key=str)) for k in names[0]}
    study = optuna.create_study(directions=["minimize"] * 2, sampler=optuna.samplers.TPESampler(seed=seed))
    front = Front()
    for _ in range(2 * most):
        if len(front.measured) >= most:
            break
        trial = study.ask(space)  # type: ignore[arg-type]
        i = index.get(tuple(trial.params[k] for k in space))
        if i is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        front.measured.setdefault(i, truth.measured[i])
        study.tell(trial, [min(v, 1e6) for v in truth.measured[i]])
    return front


def _names(c: Candidate, usd: float) -> dict[str, str]:
    return {
        "layout": c.layout.words,
        "weights": c.weight_dtype,
        "kv": c.kv_dtype,
        "seqs": str(c.max_num_seqs),
        "tokens": str(c.max_num_batched_tokens),
        "load": f"{usd:.9g}",
    }


METHODS: dict[str, Callable[[Trade, Front, int, int], Front]] = {
    "guess corrected by simulation (planner/front.py)": ours,
    "guess alone, best layers first": guesses_only,
    "TPE (Optuna)": tpe,
    "random": at_random,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=5, help="draws of the requests of each space")
    seeds = parser.parse_args(arguments).draws
    scores: dict[tuple[str, str], Score] = {}
    print("| space | points | on the front | one brute force |\n|---|---:|---:|---:|")
    told: set[str] = set()
    for name, trade in trades(seeds):
        start = time.perf_counter()
        truth = brute_force(trade)
        if name not in told:
            seconds = time.perf_counter() - start
            print(f"| {name} | {len(trade.points)} | {len(truth.members)} | {seconds:.1f} s |", flush=True)
            told.add(name)
        most = int(SHARE * len(trade.points))
        for (method, run), seed in product(METHODS.items(), range(SEARCH_SEEDS)):
            if run is tpe and seed >= TPE_SEEDS:
                continue
            start = time.perf_counter()
            front = run(trade, truth, most, seed)
            score = scores.setdefault((name, method), Score())
            score.add(front, truth, len(trade.points), time.perf_counter() - start)
    print("\n| space | method | within 2 % | exact | simulated | its own time |\n|---|---|---:|---:|---:|---:|")
    for (name, method), score in scores.items():
        print(f"| {name} {score.row(method)}")


if __name__ == "__main__":
    main()
