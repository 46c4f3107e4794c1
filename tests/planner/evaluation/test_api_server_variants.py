"""More API server processes are candidates where the default number binds, and only there."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from planner.evaluation.api_server_variants import BINDING, more_api_servers, sufficient_count
from planner.evaluation.capacity import find_capacity
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.problem.candidate import API_SERVERS, Candidate, deployment_words
from planner.problem.overrides import Overrides
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.search.candidate_tester import CandidateTester
from planner.space.candidates import candidates, distance_from_defaults

#: The capacities are compared with each other.
pytestmark = pytest.mark.usual_runs


@cache
def evaluator(hardware: str, model: str = "llama3.1-8b", **fixed: object) -> SimulatedEvaluator:
    slos = parse_slos(["tpot.p99=40ms,ttft.p99=1s"])
    request = PlanRequest(model=model, hardware=hardware, slos=slos, workload="lmsys-turns", fixed=Overrides.of(fixed))
    made = open_evaluator(request)
    return next(iter(made.evaluators.values()))


@cache
def capacities_per_s(hardware: str, api_servers: int) -> np.ndarray:
    """Return the capacity of the simplest candidate with each of three seeds. Shape (3,)."""
    own = evaluator(hardware)
    candidate = own.space()[0].with_api_servers(api_servers)
    sizes = RunSizes.for_slos(own.request.slos).at_most(2000)
    found = []
    for seed in range(3):
        tester = CandidateTester(own, own.request.slos, sizes, seed, 0.5, None)
        floor = tester.probe(candidate, own.light_requests_per_s(candidate), sizes.quick)
        probe = partial(tester.probe, candidate, n_requests=sizes.full)
        found.append(find_capacity(probe, own.fluid_requests_per_s(candidate), floor).requests_per_s)
    return np.array(found)


def test_a_faster_accelerator_carries_no_less() -> None:
    """One API server process limits both, and its work does not grow with the number of steps."""
    h200_per_s, b200_per_s = (capacities_per_s(hardware, 1) for hardware in ("h200", "b200"))
    interval = 2 * h200_per_s.std(ddof=1) / math.sqrt(3)
    assert b200_per_s.mean() >= h200_per_s.mean() * 0.99 - interval


def test_four_processes_carry_far_more() -> None:
    """Four processes carry less than four times as much, because the engine limits them."""
    assert capacities_per_s("b200", 4).mean() > 2.2 * capacities_per_s("b200", 1).mean()


def test_variants_are_where_the_api_server_binds() -> None:
    small, plain = evaluator("b200").space(), candidates(evaluator("b200").request, evaluator("b200").names)
    added = [c for c in small if c not in plain]
    assert added
    for c in added:
        base = replace(c, rest=c.rest.without(API_SERVERS))
        assert base in plain
        assert evaluator("b200").utilisation(base, evaluator("b200").fluid_requests_per_s(base)).api_server > BINDING
        assert evaluator("b200").utilisation(c, evaluator("b200").fluid_requests_per_s(c)).api_server <= BINDING
        assert c.api_servers > 1
        assert distance_from_defaults(c, evaluator("b200").names) > distance_from_defaults(
            base, evaluator("b200").names
        )
    large = evaluator("h100x4", "llama3.1-70b")
    assert large.space() == candidates(large.request, large.names)


@pytest.mark.parametrize(("hardware", "fixed"), [("b200", {API_SERVERS: 1}), ("epyc-9654", {})])
def test_a_fixed_number_and_a_cpu_have_no_variants(hardware: str, fixed: dict[str, object]) -> None:
    own = evaluator(hardware, **fixed)
    assert {c.api_servers for c in own.space()} == {1}


def test_each_process_has_a_core() -> None:
    own = evaluator("b200")
    candidate = own.space()[0]
    counts = [c.api_servers for c in more_api_servers(candidate, own.names)]
    assert counts == [2, 4, 8, 12]  # 112 cores for 8 accelerators: 14 each, less the engine core and the worker
    assert sufficient_count(candidate, own) in counts
    assert sufficient_count(candidate.with_api_servers(12), own) is None


def test_the_number_is_part_of_every_description() -> None:
    own = evaluator("b200")
    candidate = own.space()[0].with_api_servers(4)
    assert candidate.words.endswith("4 API servers")
    facts = own.facts(candidate)
    assert facts.deployment[API_SERVERS] == 4
    assert "--api-server-count 4" in facts.command
    assert deployment_words(facts.deployment).endswith("4 API servers")
    default = own.facts(own.space()[0])
    assert default.deployment[API_SERVERS] == 1
    assert "api-server" not in default.command
    assert "API servers" not in deployment_words(default.deployment)


def test_the_steps_of_a_variant_are_those_of_its_base() -> None:
    """So one compilation serves both, and equal runs are shared."""
    own = evaluator("b200")
    base: Candidate = own.space()[0]
    assert own.deployments.step_cost(base) is own.deployments.step_cost(base.with_api_servers(4))
    assert base.replica_choices != base.with_api_servers(4).replica_choices
