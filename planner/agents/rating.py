"""Runs of choices under the load of agents: single ones that rate a choice, and those that judge the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.ui.words import percent
from planner.agents.agent_runs import TURNS, AgentObservation
from planner.agents.choices import Choice
from planner.answer.plan_schema import SloResult
from planner.evaluation.confidence import SEEDS, SPEED, error_levels
from planner.problem.request import PlanRequest
from planner.search.workers import ProcessPool
from planner.sections.users import slo_row
from simulator.cluster.compiled import CompiledFleet
from simulator.core.outcomes import STATUS, TOO_LONG


@dataclass(frozen=True, slots=True)
class RunOfChoice:
    """One run: a choice, the agents, the requests of each, the seed, and the factor by which steps are slower."""

    choice: Choice
    agents: int
    turns: int = TURNS
    seed: int = 0
    speed: float = 1.0

    def observe(self) -> AgentObservation:
        """Simulate the run and return its latencies, hit rates and rates of tokens."""
        c = self.choice
        return c.serving.observe(c.candidate, c.tier, c.router, self.agents, self.turns, self.seed, self.speed)

    def prepare(self) -> None:
        """Compile the deployment and draw the requests, which other runs share."""
        self.choice.serving.compiled(self.choice.candidate, self.choice.tier)
        self.choice.serving.load(self.agents, self.turns, self.seed)


@dataclass
class Runs:
    """Simulates runs, several at once, and counts them."""

    pool: ProcessPool
    n: int = 0
    n_requests: int = 0

    def observe(self, runs: Sequence[RunOfChoice]) -> list[AgentObservation]:
        """Simulate the runs, in this process and others; return what they show, in order."""
        for run in runs:
            run.prepare()
        found = self.pool.map(lambda i: runs[i].observe(), range(len(runs)))
        self.n += len(found)
        self.n_requests += sum(each.n_simulated for each in found)
        return found


@dataclass(frozen=True, slots=True)
class Rated:
    """A choice with the run that rates it.

    Attributes:
        choice: The choice.
        ratio: The highest ratio of an objective's value to its limit that is not exceeded with the required confidence.
        depth: How far the choice is from the simplest one.
        seen: The run, at the speed of this confidence.
    """

    choice: Choice
    ratio: float
    depth: int
    seen: AgentObservation

    def __lt__(self, other: Rated) -> bool:
        return (round(self.ratio, 2), self.depth) < (round(other.ratio, 2), other.depth)

    @property
    def meets(self) -> bool:
        """Return whether the objectives are met in this run."""
        return self.ratio <= 1.0


@dataclass(frozen=True, slots=True)
class Judge:
    """Rates and judges choices with the confidence of a request."""

    request: PlanRequest
    runs: Runs

    def rate(self, choices: Sequence[tuple[Choice, int]], agents: int, turns: int = TURNS) -> list[Rated]:
        """Return choices, each with its depth, rated by one run each, in order."""
        level = self.request.confidence
        errors = [choice.serving.error(choice.candidate) for choice, _ in choices]
        speeds = [float(error.factors(SPEED, np.array([level]))[0]) for error in errors]
        runs = [
            RunOfChoice(choice, agents, turns, speed=speed) for (choice, _), speed in zip(choices, speeds, strict=True)
        ]
        seen = self.runs.observe(runs)
        return [
            Rated(choice, each.ratio(choice.serving.slos, error, level), depth, each)
            for (choice, depth), error, each in zip(choices, errors, seen, strict=True)
        ]

    def full(self, choice: Choice, agents: int) -> FullRuns:
        """Simulate a choice with several seeds and slower steps, and judge the objectives."""
        error = choice.serving.error(choice.candidate)
        speeds = [float(factor) for factor in error.factors(SPEED, np.array(error_levels(self.request.confidence)))]
        seeds = [RunOfChoice(choice, agents, seed=seed) for seed in range(SEEDS)]
        found = self.runs.observe([*seeds, *(RunOfChoice(choice, agents, speed=speed) for speed in speeds)])
        loops, slower = ([run.observation for run in part] for part in (found[:SEEDS], found[SEEDS:]))
        rows = [slo_row(slo, loops, slower, error, self.request.confidence) for slo in self.request.slos]
        return FullRuns(choice, agents, found[:SEEDS], rows)


@dataclass(frozen=True, slots=True)
class FullRuns:
    """The runs that judge a choice: independent seeds, and steps that are slower by levels of the stated error.

    Attributes:
        choice: The choice.
        agents: Agents at work.
        seeds: The runs of independent seeds.
        rows: The objectives.
    """

    choice: Choice
    agents: int
    seeds: list[AgentObservation]
    rows: list[SloResult]

    @property
    def met(self) -> bool:
        """Return whether every objective is met with the confidence of the request."""
        return all(row.met for row in self.rows)

    @property
    def rejected_share(self) -> float:
        """Return the share of the measured requests of all seeds that are rejected because of their size."""
        seen = [run.observation for run in self.seeds]
        return sum(o.rejected_fraction * o.n_measured for o in seen) / max(1, sum(o.n_measured for o in seen))

    def samples_s(self, metric: str) -> FloatArray:
        """Return the samples of a metric of all seeds, in seconds. Shape (n,)."""
        return np.concatenate([run.observation.samples_s[metric] for run in self.seeds])

    def rejection_notices(self) -> Iterator[str]:
        """Yield which share of the requests is rejected because of its size, with the limit of the model."""
        if not self.rejected_share:
            return
        worst = max((run.observation for run in self.seeds), key=lambda o: o.rejected_fraction)
        longest = max(run.longest_tokens for run in self.seeds)
        why = f"{percent(self.rejected_share)} of the requests are {worst.rejected_because}"
        if worst.rejected_because == STATUS[TOO_LONG]:
            compiled = self.choice.serving.compiled(self.choice.candidate, self.choice.tier)
            pools = compiled.deployments if isinstance(compiled, CompiledFleet) else (compiled,)
            why += f", which is {min(pool.resolved.limits.max_model_len for pool in pools):,} tokens"
        yield f"{why} (the longest request has {longest:,} tokens)"
