"""What binds a plan is the input whose improvement raises the capacity most: held to the counterfactual itself."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.evaluation.capacity import find_capacity
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.run_sizes import RunSizes
from planner.problem.candidate import Candidate
from planner.problem.overrides import Overrides
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.search.candidate_tester import CandidateTester
from planner.studies import binding as binding_study
from planner.studies import capacity_inputs as inputs
from planner.studies.binding import IMPROVEMENT, RESOLUTION, Binding, CapacityGain, find_binding, ranked
from planner.studies.bottleneck import ResourceUse, gain_text
from planner.studies.capacity_inputs import capacity_inputs
from planner.studies.explain import ruled_out
from planner.studies.rerun import Rerun
from planner.studies.sensitivity import shorter
from simulator.cluster.compiled import CompiledDeployment
from simulator.costs.compile import compile_step_cost
from simulator.costs.counterfactual import DeviceResource, ImprovedSource
from tests.planner.report.test_plan_report import answer, material

pytestmark = pytest.mark.runs_of(200)

CHAT = "tpot.p99=40ms,ttft.p99=1s"


#: Long prompts with one token of output.
PROMPTS = """
arrivals: {poisson: {requests_per_s: 1}}
requests: 4000
seed: 0
input_tokens: {uniform: {low: 3000, high: 5000}}
output_tokens: {constant: 1}
"""


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("binding") / "prompts.yaml"
    path.write_text(PROMPTS)
    return str(path)


@cache
def rerun(hardware: str, slo: str, workload: str = "lmsys-turns", **fixed: object) -> Rerun:
    """The simplest candidate with fixed keys, without a search."""
    model = "llama3.1-8b"
    request = PlanRequest(
        model=model, hardware=hardware, slos=parse_slos([slo]), workload=workload, fixed=Overrides.of(fixed)
    )
    evaluator = open_evaluator(request)
    return Rerun(request, evaluator, (evaluator.space()[0],))


@cache
def binding(hardware: str, slo: str, workload: str = "lmsys-turns", **fixed: object) -> Binding:
    made = rerun(hardware, slo, workload, **fixed)
    guess = made.evaluator_of(0).fluid_requests_per_s(made.candidates[0])
    found = find_binding(made, guess)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("hardware", "slo", "workload", "fixed", "name"),
    [
        ("b200", CHAT, "lmsys-turns", {"api_server_count": 1}, inputs.API_SERVER),
        ("b200", CHAT, "lmsys-turns", {"api_server_count": 8, "max_num_seqs": 16}, inputs.SEATS),
        ("h100", "ttft.p90=2s", "PROMPTS", {}, inputs.COMPUTE),
        ("h100", "tpot.mean=9ms", "lmsys-turns", {}, inputs.MEMORY),
    ],
)
def test_the_planted_bottleneck_binds(
    hardware: str, slo: str, workload: str, fixed: dict[str, object], name: str, prompts: str
) -> None:
    """One process for every token, few seats, long prompts only, or a tight time per token."""
    found = binding(hardware, slo, prompts if workload == "PROMPTS" else workload, **fixed)
    assert [gain.input for gain in found.binding] == [name], found.gains
    assert found.gains[0].gain == max(gain.gain for gain in found.gains) > 2 * RESOLUTION


@pytest.mark.parametrize("hardware", ["b200", "h100"])
def test_what_binds_is_what_its_counterfactual_shows(hardware: str) -> None:
    """Beyond the largest gain every other input misses the objectives, and without it so does the plan."""
    fixed = {"api_server_count": 1} if hardware == "b200" else {}
    slo = CHAT if hardware == "b200" else "tpot.mean=9ms"
    made, found = rerun(hardware, slo, **fixed), binding(hardware, slo, **fixed)
    sizes = RunSizes(made.tester.sizes.quick, max(made.tester.sizes.full, binding_study.LEAST_REQUESTS))
    tester, best = replace(made.tester, evaluator=made.evaluator_of(0), sizes=sizes), found.binding[0]
    tester = replace(tester, fixed_allowance=tester.allowance(made.candidates[0]))
    reached = found.capacity_requests_per_s * (1 + best.gain)
    beyond = reached * (1 + 3 * RESOLUTION)

    def met(name: str, requests_per_s: float) -> bool:
        each = next(each for each in capacity_inputs(made) if each.words == name)
        improved = replace(tester, evaluator=each.improved(IMPROVEMENT))
        return improved.probe(made.candidates[0], requests_per_s, tester.sizes.full).met

    assert met(best.input, reached)
    assert not tester.probe(made.candidates[0], reached, tester.sizes.full).met
    others = [gain.input for gain in found.gains if not gain.binds]
    assert others
    assert not any(met(name, beyond) for name in others)


@pytest.mark.parametrize(
    ("hardware", "slo", "fixed"), [("b200", CHAT, {"api_server_count": 1}), ("h100", "tpot.mean=9ms", {})]
)
def test_faster_steps_never_lower_the_capacity(hardware: str, slo: str, fixed: dict[str, object]) -> None:
    """Every step time halved, at the same limits and seeds: the capacity stays within its interval or rises."""
    made = rerun(hardware, slo, **fixed)
    plain, candidate = made.evaluator_of(0), made.candidates[0]
    halved = plain.with_(improve=lambda _, compiled: faster(compiled, 0.5))
    base_per_s, fast_per_s = (
        np.array(
            [capacity_per_s(replace(shorter(made.tester), evaluator=e, seed=seed), candidate) for seed in range(3)]
        )
        for e in (plain, halved)
    )
    interval = 2 * base_per_s.std(ddof=1) / math.sqrt(len(base_per_s))
    assert fast_per_s.mean() >= base_per_s.mean() * (1 - RESOLUTION) - interval


def capacity_per_s(tester: CandidateTester, candidate: Candidate) -> float:
    evaluator, sizes = tester.evaluator, tester.sizes
    floor = tester.probe(candidate, evaluator.light_requests_per_s(candidate), sizes.quick)
    guess = evaluator.fluid_requests_per_s(candidate)
    return find_capacity(lambda rate: tester.probe(candidate, rate, sizes.full), guess, floor).requests_per_s


def faster(compiled: CompiledDeployment, factor: float) -> CompiledDeployment:
    """Return a deployment with every part of its steps times a factor."""
    source, host = compiled.bundle, compiled.resolved.engine.host
    resources: tuple[DeviceResource, ...] = ("compute", "memory", "link", "fixed")
    shorter = {name: getattr(host, name) * factor for name in inputs.STEP_TIMES}
    engine = replace(compiled.resolved.engine, host=replace(host, **shorter))
    resolved, accelerator = replace(compiled.resolved, engine=engine), compiled.resolved.hardware.accelerator
    wrapped = ImprovedSource(source, accelerator, resources[0], 1 / factor)
    for resource in resources[1:]:
        wrapped = ImprovedSource(wrapped, accelerator, resource, 1 / factor)
    return replace(compiled, resolved=resolved, cost=compile_step_cost(resolved, wrapped))


def test_gains_tie_within_the_resolution_and_nothing_binds_without_a_gain() -> None:
    made = [CapacityGain(name, gain, "") for name, gain in (("a", 0.035), ("b", 0.05), ("c", 0.045), ("d", 0.0))]
    tied = Binding(1.0, ranked(made))
    assert [gain.input for gain in tied.gains] == ["b", "c", "a", "d"]
    assert [gain.input for gain in tied.binding] == ["b", "c", "a"]
    assert "b and c and a tie" in tied.words
    assert "raises the capacity by 4 to 5 %" in tied.words
    alone = Binding(1.0, ranked([made[1], made[3]]))
    assert alone.words.startswith("b binds: 10 % more of it raises the capacity by 5 %")
    none = Binding(1.0, ranked([made[3]]))
    assert not none.binding
    assert none.words.startswith("no single input binds")


def test_the_table_holds_every_input_once_and_what_it_uses() -> None:
    simulated = material().simulated
    assert simulated is not None
    rows = simulated.uses
    names = [row.resource for row in rows]
    assert len(names) == len(set(names))
    gains = [row.gain for row in rows if row.gain is not None]
    assert gains == sorted(gains, reverse=True)
    assert rows[0].binds == (gains[0] > 0)
    gained = {row.resource for row in rows if row.gain is not None}
    assert {row.name for row in inputs.REPLICA_INPUTS if row.name not in (inputs.LINK, inputs.HOST_LINK)} <= gained
    used = {row.resource for row in rows if row.share is not None}
    assert {inputs.API_SERVER, inputs.HOST, inputs.KV_CACHE, inputs.SEATS, inputs.ARRIVALS, inputs.MEMORY} <= used
    assert all(0 <= row.share <= 1 for row in rows if row.share is not None)


def test_ruled_out_deployments_are_named() -> None:
    request = PlanRequest(model="llama3.1-70b", hardware="h100x4", slos=parse_slos(["tpot.p99=60ms"]))
    evaluator = open_evaluator(request)
    reason = next(found for c in evaluator.space() if (found := evaluator.discard(c)) is not None).reason
    summary = answer().search.model_copy(update={"bounded_out": {reason: 3}})
    changed = answer().model_copy(update={"request": request, "search": summary})
    lines = list(ruled_out(changed, Rerun(request, evaluator, ())))
    assert len(lines) == 1
    assert lines[0].startswith(f"3 ruled out, because {reason}: ")
    assert "x TP1 on h100" in lines[0]


def test_a_gain_within_the_resolution_of_both_capacities_is_not_told_from_none() -> None:
    """Capacities are bisected to 1 %, so four inputs that hardly matter had gains of 1.1 %."""
    small, large = CapacityGain("host", 0.011, "a faster host"), CapacityGain("compute", 0.05, "a faster device")
    assert [gain.binds for gain in ranked([small, large])] == [True, False]
    assert not any(gain.binds for gain in ranked([small]))
    texts = [gain_text(ResourceUse("host", None, "", "", gain)) for gain in (None, 0.0, 0.011, 0.02)]
    assert texts == ["", "under 2 %", "under 2 %", "+2.0 %"]
