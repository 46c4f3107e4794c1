"""Encoder pools and whole towers among the candidates of a plan: which are tried, and what closed forms expect."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from catalogs.errors import InputError
from planner.evaluation.closed_forms.encoder_pools import EncoderPoolQueueing
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.observation import Load
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.problem.candidate import Candidate, deployment_words
from planner.problem.overrides import Overrides
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos
from planner.space.candidates import limits
from planner.studies.rerun import found_again

IMAGES = (
    "{arrivals: {poisson: {}}, input_tokens: 200, output_tokens: 20, images: {per_request: 2, resolution: 896x896}}"
)


def asking(workload: str = IMAGES, **more: object) -> PlanRequest:
    keys = {"hardware": "h100x2", "model": "qwen2.5-vl-7b", "precisions": ("native",)} | more
    return PlanRequest(
        slos=parse_slos(["ttft.p99=5s"]),
        workload=workload,
        search=SearchOptions(trials=1),
        **keys,  # type: ignore[arg-type]
    )


def evaluator_of(request: PlanRequest) -> SimulatedEvaluator:
    found = open_evaluator(request)
    candidate = found.space()[0]
    return found.of(candidate) if hasattr(found, "of") else found


@dataclass(frozen=True)
class Found:
    """The candidates of a request for two accelerators."""

    evaluator: SimulatedEvaluator
    space: list[Candidate]

    @property
    def pooled(self) -> list[Candidate]:
        return [c for c in self.space if c.encoders[0]]

    @property
    def plain(self) -> list[Candidate]:
        return [c for c in self.space if not c.encoders[0] and not c.whole_towers]

    def without_pool(self, candidate: Candidate) -> Candidate:
        """The candidate without a pool on the same hardware."""
        same = ("hardware", "layout", "kv_dtype", "weight_dtype", "max_num_seqs", "max_num_batched_tokens")
        return next(c for c in self.plain if all(getattr(c, key) == getattr(candidate, key) for key in same))


@pytest.fixture(scope="module")
def found() -> Found:
    evaluator = evaluator_of(asking())
    return Found(evaluator, evaluator.space())


def test_a_few_more_candidates_are_tried_where_images_weigh(found: Found) -> None:
    own = limits(found.evaluator.names, found.evaluator.request.fixed)[0]
    usual = [c for c in found.plain if (c.max_num_seqs, c.max_num_batched_tokens) == own]
    whole = [c for c in found.space if c.whole_towers]
    assert 0 < len(found.pooled) <= len(usual)
    assert 0 < len(whole) <= len(usual)
    assert all(c.layout.tensor_parallel > 1 for c in whole)
    assert all((c.max_num_seqs, c.max_num_batched_tokens) == own for c in (*found.pooled, *whole))
    assert all(c.accelerators <= c.hardware.n_accelerators for c in found.pooled)
    assert len(set(found.space)) == len(found.space)


def test_text_and_one_accelerator_have_none() -> None:
    for request in (asking("lmsys-turns"), asking(hardware="h100")):
        assert not any(c.encoders[0] or c.whole_towers for c in evaluator_of(request).space())


def test_a_candidate_with_a_pool_has_its_encoders_first(found: Found) -> None:
    candidate = next(c for c in found.pooled if c.layout.tensor_parallel == 1 and c.hardware.n_accelerators == 2)
    (role, encoders), (behind, language) = candidate.pools
    assert (role, behind) == ("encode", "both")
    assert encoders.replicas + language.replicas == candidate.accelerators == 2
    assert candidate.words.startswith(f"{encoders.replicas} encoder")
    compiled = [found.evaluator.deployments.compiled(pool) for _, pool in candidate.pools]
    assert [each.resolved.role for each in compiled] == ["encode", "both"]
    assert compiled[1].resolved.encodes_elsewhere
    assert compiled[0].memory.weights_bytes + compiled[1].memory.weights_bytes == pytest.approx(
        found.evaluator.deployments.compiled(found.without_pool(candidate)).memory.weights_bytes
    )
    block = found.evaluator.facts(candidate).deployment
    assert "encoder" in deployment_words(block)


def test_the_number_of_encoders_carries_the_most(found: Found) -> None:
    """Each pool is at least as good by its closed form as any other number of encoders on the same hardware."""
    for candidate in found.pooled:
        total, each = candidate.hardware.n_accelerators, candidate.layout.accelerators
        others = [found.without_pool(candidate).with_encoders(n) for n in range(1, total - each + 1)]
        rates = [found.evaluator.fluid_requests_per_s(other) for other in others]
        assert found.evaluator.fluid_requests_per_s(candidate) == pytest.approx(max(rates), rel=1e-6)


def test_closed_forms_of_a_pool(found: Found) -> None:
    candidate = found.pooled[0]
    model = found.evaluator.closed_forms.queueing(candidate)
    assert isinstance(model, EncoderPoolQueueing)
    assert model.saturation_per_s == min(model.language.saturation_per_s, model.encoders / model.encode_s)
    light = 0.01 * model.saturation_per_s
    first_s, behind_s = model.latency_s(light, "ttft"), model.language.latency_s(light, "ttft")
    assert first_s - behind_s == pytest.approx(model.encode_s, rel=0.1)
    assert model.latency_s(light, "tpot") == model.language.latency_s(light, "tpot")
    assert found.evaluator.guess_w(candidate, light) > 0


def test_a_run_of_a_pool_holds_its_light_load(found: Found) -> None:
    """At a light load the simulated first token is about the estimated one, and every request passes the encoders."""
    candidate = next(c for c in found.pooled if c.replicas + c.encoders[0] == 2 and c.layout.tensor_parallel == 1)
    rate = found.evaluator.light_requests_per_s(candidate)
    seen = found.evaluator.observe(candidate, Load(rate, 60, 0))
    mean_s = float(seen.samples_s["ttft"].mean())
    assert mean_s == pytest.approx(found.evaluator.guess_s(candidate, rate, "ttft"), rel=0.35)
    assert found.evaluator.detail(candidate, Load(rate, 60, 0)).metrics["encoder_pool"]["n_requests"] > 0


def test_a_fixed_pool_is_part_of_every_candidate_and_of_the_answer() -> None:
    request = asking(fixed=Overrides.of({"encoder_pool": {"replicas": 1}}))
    evaluator = evaluator_of(request)
    space = evaluator.space()
    assert space
    assert all(c.encoders[0] == 1 for c in space)
    assert all(c.accelerators <= c.hardware.n_accelerators for c in space)
    block = evaluator.facts(space[0]).deployment
    assert block["encoder_pool"]["replicas"] == 1

    class _Plan:
        deployment = json.loads(json.dumps(block))  # as an answer file holds it

    assert found_again(_Plan(), space, request) == space[0]  # type: ignore[arg-type]


def test_a_pool_elsewhere_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="plan places the encoder pool on the hardware of the other replicas"):
        Overrides.of({"encoder_pool": {"replicas": 1, "encode": {"hardware": "l40s"}}})


def test_candidates_without_a_pool_are_as_before(found: Found) -> None:
    plain = found.plain[0]
    assert plain.pools == ((plain.pools[0].role, plain),)
    assert plain.encoders[0] == 0
    assert "encoder" not in plain.words
