"""Each objective's search finds, with a fifth of a space, what brute force finds, though its estimates are off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from zlib import crc32

import numpy as np
import pytest

from catalogs.hardware.catalog import parse_hardware
from planner.evaluation.capacity import find_capacity
from planner.evaluation.observation import Load, Observation
from planner.evaluation.run_sizes import RunSizes
from planner.problem.candidate import Candidate
from planner.problem.slo import parse_slos
from planner.search.candidate_tester import TIE, CandidateTester, Outcome
from planner.search.objectives import LowestEnergy, ObjectiveAssess, assess_for
from planner.search.optuna_study import SearchSettings
from planner.search.search import search
from tests.planner.queue_toy import QueueToy, candidate

SLOS = parse_slos(["ttft.p90=0.3s"])
SIZES = RunSizes(300, 1500)
TRIALS = 40
DRAWS = 5

#: Standard deviation of the logarithm of true over estimated service times: of a placement, and of each limit.
OFF, LIMITS_OFF = 0.1, 0.03


@dataclass
class MisledToy(QueueToy):
    """A queue whose true service times differ from the estimates, by placement and by limits.

    The differences are drawn from what varies in `space`, so that a new key of a placement does not draw others.
    """

    draw: int = 0
    simulating: bool = False

    def candidate_service_s(self, c: Candidate) -> float:
        plain_s = super().candidate_service_s(c)
        if not self.simulating:
            return plain_s
        # the effects of the two limits add up, as far as they limit different resources
        own = c.hardware.text, c.replicas, c.layout.tensor_parallel
        limits = self._normal((own, "seqs", c.max_num_seqs)) + self._normal((own, "tokens", c.max_num_batched_tokens))
        return plain_s * float(np.exp(OFF * self._normal((*own, c.kv_dtype)) + LIMITS_OFF * limits))

    def _joules(self, c: Candidate, requests_per_s: float) -> float:
        """Idle power of every accelerator, and as much again for the time in which a replica serves."""
        busy_j = self.candidate_service_s(c) * c.layout.accelerators
        return self.joules * (c.hardware.n_accelerators / requests_per_s + busy_j)

    def _normal(self, key: object) -> float:
        return float(np.random.default_rng(crc32(f"{self.draw} {key}".encode())).standard_normal())

    def observe(self, c: Candidate, load: Load) -> Observation:
        self.simulating = True
        try:
            return super().observe(c, load)
        finally:
            self.simulating = False


def space() -> list[Candidate]:
    """240 candidates: six times the trials."""
    return [
        candidate(
            hardware=parse_hardware(f"h100x{n}"),
            tensor_parallel=tp,
            replicas=n // tp,
            kv_dtype=kv,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
        )
        for n, tp in ((8, 8), (8, 4), (8, 2), (8, 1), (4, 4), (4, 2))
        for kv in ("bf16", "fp8")
        for seqs in (1024, 512, 256, 128, 64)
        for tokens in (8192, 2048, 4096, 16384)
    ]


def assess_of(objective: str, tester: CandidateTester) -> ObjectiveAssess:
    def accelerators(c: Candidate) -> float:
        return float(c.hardware.n_accelerators)

    unit_cost = accelerators if objective == "goodput" else lambda _: 1.0
    return assess_for(objective, tester, lambda _: (0,), unit_cost)


def value(objective: str, tester: CandidateTester, c: Candidate) -> float:
    """What the objective minimises, measured by itself; infinite if the load is not carried."""
    rate = tester.requests_per_s or 0.0
    floor = tester.probe(c, rate, SIZES.full)
    if not floor.met:
        return np.inf
    if objective == "energy":
        return tester.simulated(c, rate, SIZES.full).joules_per_output_token
    if objective == "latency":
        return floor.ratio
    runs = partial(tester.probe, c, n_requests=SIZES.full)
    found = find_capacity(runs, tester.evaluator.fluid_requests_per_s(c), floor, TIE / 4)
    return -found.requests_per_s / (c.hardware.n_accelerators if objective == "goodput" else 1)


def found_by(assess: ObjectiveAssess, seed: int) -> tuple[Outcome | None, list[Candidate]]:
    candidates, settings = space(), SearchSettings(TRIALS, seed)
    orders = assess.in_order(candidates), assess.safest_first(candidates)
    result = search(orders[0], assess, settings, outclassed=assess.outclassed, safest=orders[1])
    return result.best, [o.candidate for o in result.outcomes]


@pytest.mark.parametrize("objective", ["throughput", "goodput", "energy", "latency"])
def test_a_sixth_of_the_space_holds_the_optimum(objective: str) -> None:
    for draw in range(DRAWS):
        tester = CandidateTester(MisledToy(0.4, draw=draw), SLOS, SIZES, draw, 0.9, 4.0)
        best, tried = found_by(assess_of(objective, tester), draw)
        assert best is not None
        assert len(tried) <= TRIALS
        found, seen = value(objective, tester, best.candidate), [value(objective, tester, c) for c in tried]
        assert found <= min(seen) + TIE * abs(min(seen)), f"draw {draw}: a better plan was tried"
        rest = [value(objective, tester, c) for c in space()]
        assert found <= min(rest) + TIE * abs(min(rest)), f"draw {draw}"


def test_goodput_under_a_load_counts_accelerators() -> None:
    """Eight accelerators carry more in total, four of the same kind more each: the objectives differ."""
    tester = CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, 0.9, 1.0)
    wide = candidate(tensor_parallel=4, replicas=1, hardware=parse_hardware("h100x8"))
    narrow = candidate(tensor_parallel=4, replicas=1, hardware=parse_hardware("h100x4"))
    scores = {}
    for c in (wide, narrow):
        score = assess_of("goodput", tester)(c, None).score
        assert score is not None
        scores[c] = score
    assert scores[wide] == pytest.approx(scores[narrow] / 2)
    throughput = assess_of("throughput", tester)
    assert throughput(wide, None).score == throughput(narrow, None).score


def test_a_simpler_plan_that_ties_must_carry_the_load() -> None:
    toy, rate = QueueToy(0.4), 4.0
    tester = CandidateTester(toy, SLOS, SIZES, 0, 0.9, rate)
    c = candidate(tensor_parallel=8)
    barely = Outcome(candidate(tensor_parallel=4, replicas=2), "measured", rate, rate, 1.0, "ttft.p90", -rate)
    outcome = assess_for("throughput", tester, lambda x: (int(x != c),), lambda _: 1.0)(c, barely)
    assert outcome.requests_per_s == 0 or outcome.requests_per_s >= rate


# ---- no means no

OBJECTIVES = ("throughput", "goodput", "energy", "latency")


def test_a_no_has_tried_the_safest_candidate_on_the_largest_hardware_of_each_kind() -> None:
    """Nothing meets the objectives, and the order of promise begins with the candidates that promise least."""
    kinds = ("h100", "l4", "a100-80gb")
    candidates = [
        replace(c, hardware=parse_hardware(f"{kind}x{c.hardware.n_accelerators}"))
        for kind in kinds
        for c in space()
        if c.max_num_seqs in (1024, 64) and c.max_num_batched_tokens in (8192, 2048)
    ]
    tester = CandidateTester(MisledToy(0.4), SLOS, SIZES, 0, 0.9, 1000.0)
    for objective in OBJECTIVES:
        assess = assess_of(objective, tester)
        safest, worst_first = assess.safest_first(candidates), assess.in_order(candidates)[::-1]
        for trials in (4, 5, 12):
            result = search(worst_first, assess, SearchSettings(trials, 0), safest=safest)
            tried = [o.candidate for o in result.outcomes]
            assert result.best is None
            assert len(tried) == trials
            for kind in kinds:
                own = [c for c in candidates if c.hardware == parse_hardware(f"{kind}x8")]
                least = min(tester.guessed_ratio(c, 1000.0) for c in own)
                fastest = max(tester.evaluator.fluid_requests_per_s(c) for c in own)
                assert any(
                    c in own
                    and tester.guessed_ratio(c, 1000.0) == least
                    and tester.evaluator.fluid_requests_per_s(c) == fastest
                    for c in tried
                ), (objective, trials, kind)


@cache
def capacities(draw: int) -> list[float]:
    """The capacity of every candidate of the space, in requests per second, ascending."""
    tester = CandidateTester(MisledToy(0.4, draw=draw), SLOS, SIZES, draw, 0.9, 4.0)
    return sorted(-value("throughput", tester, c) for c in space())


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_plan_is_found_where_few_candidates_hold(objective: str) -> None:
    """The load is just below what the best candidate carries, so that 1 to 5 % of all carry it."""
    held = []
    for draw in range(2):
        carried = capacities(draw)
        rate = 0.97 * carried[-3]
        tester = CandidateTester(MisledToy(0.4, draw=draw), SLOS, SIZES, draw, 0.9, rate)
        held.append(sum(x >= rate for x in carried) / len(carried))
        best, tried = found_by(assess_of(objective, tester), draw)
        assert best is not None, f"draw {draw}: {held[-1]:.1%} of all candidates hold, none of {len(tried)} tried"
    assert min(held) < 0.05


@dataclass
class UnluckyToy(QueueToy):
    """A queue whose short runs show latencies that are too long by a factor."""

    factor: float = 1.0

    def observe(self, c: Candidate, load: Load) -> Observation:
        seen = super().observe(c, load)
        if load.n_requests > SIZES.quick:
            return seen
        return replace(seen, samples_s={metric: self.factor * s for metric, s in seen.samples_s.items()})


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_unlucky_short_run_does_not_rule_out_what_the_estimate_allows(objective: str) -> None:
    c = candidate(tensor_parallel=8)
    lucky = CandidateTester(UnluckyToy(0.4), SLOS, SIZES, 0, 0.9, 4.0)
    plain = assess_of(objective, lucky)(c, None)
    ratio = lucky.probe(c, 4.0, SIZES.quick).value_ratio
    assert plain.feasible
    for over, feasible in ((1.2, True), (1.5, True), (1.8, False)):
        toy = UnluckyToy(0.4, factor=over / ratio)
        tester = replace(lucky, evaluator=toy)
        outcome = assess_of(objective, tester)(c, None)
        assert outcome.feasible == feasible, over
        if feasible:
            assert outcome.score == plain.score
        else:
            assert [load.n_requests for _, load in toy.loads] == [SIZES.quick]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_short_run_that_agrees_with_the_estimate_needs_no_full_run(objective: str) -> None:
    c, toy = candidate(tensor_parallel=8), UnluckyToy(0.4, factor=1.0)
    tester = CandidateTester(toy, SLOS, SIZES, 0, 0.9, 4.0)
    slow = replace(tester, slos=tuple(replace(s, limit_s=s.limit_s / 100) for s in SLOS))
    assert slow.guessed_ratio(c, 4.0) > 1
    toy.factor = 1.5 / slow.probe(c, 4.0, SIZES.quick).value_ratio
    toy.loads.clear()
    assert not assess_of(objective, slow)(c, None).feasible
    assert [load.n_requests for _, load in toy.loads] == [SIZES.quick]


# ---- few full runs


def test_energy_needs_no_full_run_of_a_candidate_that_uses_more_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same optimum with fewer simulated requests than if every candidate that meets the objectives is scored.

    How many fewer depends on the order of a draw, so they are counted over several draws.
    """
    cost: dict[bool, list[int]] = {True: [], False: []}
    for draw in range(8):
        best: list[Candidate] = []
        for early, n_requests in cost.items():
            if not early:
                monkeypatch.setattr(LowestEnergy, "_loses", lambda *_: False)
            toy = MisledToy(0.4, draw=draw)
            outcome, _ = found_by(assess_of("energy", CandidateTester(toy, SLOS, SIZES, draw, 0.9, 4.0)), draw)
            assert outcome is not None
            best.append(outcome.candidate)
            n_requests.append(sum(load.n_requests for _, load in dict.fromkeys(toy.loads)))
        monkeypatch.undo()
        assert best[0] == best[1]
    assert all(early <= late for early, late in zip(cost[True], cost[False], strict=True))
    assert sum(cost[True]) < 0.85 * sum(cost[False])


# ---- energy without a load: at a candidate's own capacity


def without_a_load(draw: int) -> CandidateTester:
    return CandidateTester(MisledToy(0.4, draw=draw), SLOS, SIZES, draw, 0.9, None)


def test_the_energy_at_the_capacity_needs_no_capacity_of_a_candidate_that_uses_more() -> None:
    """The same optimum with far fewer requests than if the capacity of every candidate is determined."""
    cost: dict[bool, list[int]] = {True: [], False: []}
    for draw in range(3):
        scores: list[float] = []
        for early, n_requests in cost.items():
            tester = without_a_load(draw)
            with pytest.MonkeyPatch.context() as patch:
                if not early:
                    patch.setattr(LowestEnergy, "_compared_at_some_rate", lambda *_: None)
                outcome, _ = found_by(assess_of("energy", tester), draw)
            assert outcome is not None
            assert outcome.score is not None
            scores.append(outcome.score)
            assert isinstance(tester.evaluator, MisledToy)
            n_requests.append(sum(load.n_requests for _, load in dict.fromkeys(tester.evaluator.loads)))
        assert scores[0] <= scores[1] * (1 + TIE)
    assert sum(cost[True]) < 0.6 * sum(cost[False])


@pytest.mark.parametrize(("simpler", "least"), [(True, 1 + TIE), (False, 1 - TIE)])
def test_what_loses_at_some_rate_loses_at_its_capacity(simpler: bool, least: float) -> None:
    """A simpler candidate that is left out would have needed more at its capacity, another one no less than a tie."""
    left_out = kept = 0
    for draw in range(2):
        best, *others = (c for c in space() if c.hardware.n_accelerators == 8 and c.max_num_seqs in (1024, 128))
        distance = partial(_distance_from, best, -1 if simpler else 1)
        assess = assess_for("energy", without_a_load(draw), distance, lambda _: 1.0)
        found = assess(best, None)
        assert found.score is not None
        for c in others:
            alone, against = assess(c, None), assess(c, found)
            if against.feasible:
                kept += 1
            elif alone.score is not None:
                left_out += 1
                assert alone.score > found.score * least, c
    assert left_out > 20
    assert kept > 5


def _distance_from(best: Candidate, of_others: int, c: Candidate) -> tuple[int, ...]:
    return (0 if c == best else of_others,)


def test_a_tie_that_is_not_simpler_needs_no_capacity() -> None:
    """Limits that the best plan does not reach change nothing: one rate is simulated, and no capacity sought."""
    tester = CandidateTester(QueueToy(0.4), SLOS, SIZES, 0, 0.9, None)
    best, twin = candidate(tensor_parallel=8, max_num_seqs=1024), candidate(tensor_parallel=8, max_num_seqs=512)
    floor = tester.probe(best, tester.floor_per_s(best), SIZES.full)
    carried = tester.capacity(best, floor, tester.start_per_s(best))
    score = tester.simulated(best, carried.requests_per_s, SIZES.full).joules_per_output_token
    for of_others, feasible in ((-1, True), (1, False)):
        toy = QueueToy(0.4)
        own = CandidateTester(toy, SLOS, SIZES, 0, 0.9, None)
        assess = assess_for("energy", own, partial(_distance_from, best, of_others), lambda _: 1.0)
        assert assess(twin, replace(carried, score=score)).feasible == feasible
        n_full = sum(load.n_requests == SIZES.full for _, load in dict.fromkeys(toy.loads))
        assert (n_full > 3) == feasible
