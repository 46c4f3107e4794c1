"""A refused request for agents: what binds on the closest deployment, and simulated changes that would meet it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware, with_nodes
from catalogs.hardware.specs import Hardware
from catalogs.ui.words import counted, percent, seconds
from catalogs.workloads.workload import Workload
from planner.agents.answer import AgentsRefusal, objective_text
from planner.agents.rating import FullRuns, Judge
from planner.agents.screen import objective_name
from planner.agents.search import Progress, find
from planner.agents.step_shares import StepShares
from planner.answer.answer_schema import Suggestion
from planner.answer.more_hardware import more_of
from planner.answer.plan_schema import SloResult
from planner.problem.candidate import deployment_words
from planner.problem.latency_metrics import TTFT
from planner.problem.request import LEAST_CONFIDENCE
from planner.problem.slo import Slo, rounded_up, seconds_text

#: Steps to larger hardware of the same kind that are searched. A judgement of cost: each step is a search.
MOST_STEPS: Final = 3

#: Factor between the value of a missed objective and the relaxed limit that is suggested.
MARGIN: Final = 1.02


@dataclass(frozen=True, slots=True)
class AgentsRefuser:
    """States why no deployment meets a request for agents, and finds what would.

    Attributes:
        judge: Judges the runs.
        workload: The sessions.
        agents: Agents at work.
        progress: Called with what is searched.
    """

    judge: Judge
    workload: Workload
    agents: int
    progress: Progress

    def refuse(self, full: FullRuns, capacity: int) -> AgentsRefusal:
        """Return the refusal of a request, of which a deployment comes closest and serves some agents."""
        missed = [row for row in full.rows if not row.met]
        worst = max(missed, key=SloResult.excess)
        changes = [*_fewer(capacity), *self._relaxed(full), *self._less_sure(full), *self._hardware(full)]
        return AgentsRefusal(
            binding_constraint=self._binding(worst, full),
            why=[*_waits(full, missed), *_cache(full)],
            what_would_meet_it=changes,
        )

    def _as_rate(self, name: str) -> bool:
        return any(slo.as_rate and slo.name == name for slo in self.judge.request.slos)

    def _binding(self, row: SloResult, full: FullRuns) -> str:
        """Return the objective that is missed by most, and by how much."""
        as_rate = self._as_rate(row.name)
        name, limit = objective_name(row.name, as_rate), objective_text(row.limit_s, as_rate)
        side = "below" if as_rate else "above"
        load = f"with {counted(self.agents, 'agent')}"
        if row.value_s is None or not math.isfinite(row.value_s):
            if full.rejected_share:
                return f"{percent(full.rejected_share)} of the requests are rejected because of their size"
            return f"{name} grows without limit {load}"
        if row.value_s > row.limit_s:
            return f"{name} is {objective_text(row.value_s, as_rate)}, {side} the limit of {limit}, {load}"
        sure = percent(self.judge.request.confidence)
        most = "may grow without limit"
        if row.value_at_confidence_s is not None:
            most = f"may be {objective_text(row.value_at_confidence_s, as_rate)} at {sure} confidence"
        return f"{name} {most}, {side} the limit of {limit}, {load}"

    def _relaxed(self, full: FullRuns) -> Iterator[Suggestion]:
        """Yield objectives that the closest deployment meets with the confidence of the request."""
        rows = full.rows
        if any(row.value_at_confidence_s is None for row in rows):
            return
        texts = [_relaxed_text(slo, row) for slo, row in zip(self.judge.request.slos, rows, strict=True)]
        yield Suggestion.simulated("slo", f"objectives of {','.join(texts)} on the closest deployment", ",".join(texts))

    def _less_sure(self, full: FullRuns) -> Iterator[Suggestion]:
        """Yield the confidence with which the closest deployment meets the objectives, in whole per cent."""
        sure = math.floor(100 * min(row.probability_met for row in full.rows)) / 100
        if LEAST_CONFIDENCE <= sure < self.judge.request.confidence:
            yield Suggestion.simulated("confidence", f"a confidence of {percent(sure)} (--confidence {sure:g})", sure)

    def _hardware(self, full: FullRuns) -> Iterator[Suggestion]:
        """Yield the first larger hardware of the same kind that meets the request, and the deployment on it."""
        own = full.choice.candidate.hardware
        named = [parse_hardware(text) for text in self.judge.request.hardware.split(",") if text.strip() != "any"]
        largest = max([own, *(h for h in named if _kind(h) == _kind(own))], key=lambda h: h.n_accelerators)
        below = largest.n_nodes
        for _, step in zip(range(MOST_STEPS), more_of(largest), strict=False):
            found = self._on(step)
            if found is None:
                below = step.n_nodes
                continue
            if step.n_nodes > below + 1 and (between := self._on(with_nodes(step, (step.n_nodes + below) // 2))):
                found = between
            text, words = found
            yield Suggestion.simulated("hardware", f"{text}: {words}", text)
            return

    def _on(self, hardware: Hardware) -> tuple[str, str] | None:
        """Return hardware that meets the request with its deployment in words; None if it does not."""
        self.progress(f"more hardware: {hardware.text}")
        try:
            request = self.judge.request.replace(hardware=hardware.text, max_usd_per_hour=None)
            judge = replace(self.judge, request=request)
            found = find(judge, self.workload, self.agents, self.progress, whole=True)
        except InputError:
            return None
        if not found.meets:
            return None
        full = judge.full(found.rated[0].choice, self.agents)
        if not full.met:
            return None
        choice = full.choice
        return choice.candidate.hardware.text, f"{deployment_words(choice.deployment)}, {choice.tier.name}"


def _fewer(capacity: int) -> Iterator[Suggestion]:
    if capacity:
        yield Suggestion.simulated(
            "agents", f"at most {counted(capacity, 'agent')} on the closest deployment", capacity
        )


def _kind(hardware: Hardware) -> str:
    return hardware.accelerator.name


def _waits(full: FullRuns, missed: list[SloResult]) -> Iterator[str]:
    """Yield what a token waits for, and how long a request waits if the time to first token is missed."""
    words = StepShares.mean([run.steps for run in full.seeds]).words
    if words:
        yield words
    queues = [run.observation.queue_s for run in full.seeds if run.observation.queue_s is not None]
    waited = np.concatenate([queue[np.isfinite(queue)] for queue in queues]) if queues else np.empty(0)
    if len(waited) and any(row.metric == TTFT.name for row in missed):
        yield f"a request waits {seconds(float(waited.mean()))} for its first step on average"


def _cache(full: FullRuns) -> Iterator[str]:
    """Yield what the contexts of all agents need of KV cache, what the tiers hold, and the hits."""
    seen, choice = full.seeds[0], full.choice
    device, behind = choice.serving.held_tokens(choice.candidate, choice.tier)
    needed = f"the contexts of {counted(full.agents, 'agent')} have {_millions(full.agents * seen.context_tokens)}"
    tiers = f", the tiers behind it {_millions(behind)}" if behind else ""
    yield f"{needed} tokens; device memory holds {_millions(device)}{tiers}"
    hits = f"{percent(seen.hits.rate)} of the prompt tokens are found in a cache"
    yield f"{hits}, {percent(seen.hits.theoretical_rate)} would be in one without limits"


def _millions(tokens: float) -> str:
    return f"{tokens / 1e6:.1f}M" if tokens >= 1e6 else f"{tokens / 1e3:,.0f}k"


def _relaxed_text(slo: Slo, row: SloResult) -> str:
    """Return the text of an objective that its value at the required confidence meets, with a margin."""
    limit_s = slo.limit_s
    if not row.met:
        limit_s = rounded_up(max(row.value_at_confidence_s or 0.0, row.value_s or 0.0, slo.limit_s) * MARGIN)
    if slo.as_rate:
        return f"{objective_name(slo.name, True)}={math.floor(10 / limit_s) / 10:g}"
    return f"{slo.name}={seconds_text(limit_s)}"
