"""Simulated requests are counted, once each, per candidate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.evaluation.observation import Load, Observation
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import CandidateTester, Outcome, RequestCounter
from planner.search.objectives import CountedAssess
from planner.search.optuna_study import SearchSettings
from planner.search.search import search
from tests.planner.queue_toy import QueueToy, candidate
from tests.planner.search.test_search import SIZES, SLOS, race_of, space


class CountingToy(QueueToy):
    """A toy whose runs say how long they were."""

    def observe(self, c: Candidate, load: Load) -> Observation:
        return replace(super().observe(c, load), n_simulated=load.n_requests)


@dataclass(frozen=True)
class LooksThrice:
    """At two loads, at one of them twice."""

    tester: CandidateTester

    def __call__(self, c: Candidate, best: Outcome | None) -> Outcome:  # noqa: ARG002
        for rate, n in ((1.0, 300), (1.0, 300), (2.0, 1500)):
            self.tester.probe(c, rate, n)
        return Outcome(c, "measured", 1.0, 2.0, 0.5, "ttft.p90", -1.0)


def test_a_run_that_is_remembered_counts_once_and_every_candidate_afresh() -> None:
    tester = CandidateTester(CountingToy(0.4), SLOS, SIZES, 0, 0.9, None, counter=RequestCounter())
    counted = CountedAssess(LooksThrice(tester), tester.counter)
    assert [counted(candidate(max_num_seqs=s), None).n_requests for s in (64, 256)] == [1800, 1800]


def test_a_search_says_what_it_simulated() -> None:
    toy = CountingToy(0.4)
    counter = RequestCounter()
    counted = CountedAssess(race_of(CandidateTester(toy, SLOS, SIZES, 0, 0.9, None, counter=counter)), counter)
    found = search(space(), counted, SearchSettings(100, 0))
    assert sum(o.n_requests for o in found.outcomes) == sum(load.n_requests for _, load in set(toy.loads))
    pruned = [o.n_requests for o in found.outcomes if o.status == "pruned"]
    assert min(pruned) == SIZES.quick  # most losers cost one short run
