"""The latency bounds: right on a toy by hand, and safe against simulation on random small cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalogs.deployments.layout import Layout, Limits
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.hardware.catalog import parse_hardware
from catalogs.workloads.request_set import RequestSet
from planner.evaluation.closed_forms.bounds import (
    REQUEST_LENGTH,
    fastest_decode_s,
    latency_discard,
    length_discard,
    memory_discard,
    optimistic_statistic_s,
    prefill_floor_s,
)
from planner.evaluation.observation import Load
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.evaluation.verdict import judge
from planner.problem.candidate import Candidate
from planner.problem.overrides import Overrides
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo, parse_slos
from simulator.core.batch import BatchShape
from simulator.memory.plan import size_memory

LIMITS = Limits(max_num_seqs=64, max_num_batched_tokens=1000, max_model_len=4096)


def toy_cycle_s(shape: BatchShape) -> float:
    """10 ms a step, 1 ms per prompt token."""
    return 0.010 + 0.001 * shape.prefill_tokens


def requests(inputs: list[int], outputs: list[int]) -> RequestSet:
    return RequestSet(np.zeros(len(inputs)), np.array(inputs), np.array(outputs))


def test_a_lucky_draw_is_below_the_statistic_itself() -> None:
    samples = np.random.default_rng(0).lognormal(size=5000)
    assert optimistic_statistic_s(samples, None) < samples.mean()
    assert optimistic_statistic_s(samples, 0.99) < np.quantile(samples, 0.99)
    assert optimistic_statistic_s(np.full(9, 2.0), 0.5) == optimistic_statistic_s(np.full(9, 2.0), None) == 2.0


def test_floors_by_hand() -> None:
    assert fastest_decode_s(toy_cycle_s, LIMITS) == pytest.approx(0.010)
    floors = prefill_floor_s(toy_cycle_s, LIMITS, np.array([500.0, 2500.0]))
    assert floors == pytest.approx([0.51, 2.53])  # 2500 tokens are three chunks


@pytest.mark.parametrize(
    ("slo", "refused"),
    [
        ("tpot.p99=9ms", True),
        ("tpot.p99=11ms", False),
        ("ttft.p50=300ms", True),
        ("ttft.p50=600ms", False),
        ("e2e.mean=1s", True),
        ("e2e.mean=1.6s", False),
    ],
)
def test_what_an_empty_engine_cannot_do_is_refused(slo: str, refused: bool) -> None:
    found = latency_discard(toy_cycle_s, LIMITS, requests([500] * 3, [101] * 3), parse_slos([slo]))
    assert (found is not None) == refused
    if found is not None:
        assert found.value > found.limit
        assert "above the limit of" in found.reason


def test_one_token_outputs_have_no_decode_floor() -> None:
    assert latency_discard(toy_cycle_s, LIMITS, requests([10], [1]), parse_slos(["tpot.p99=1us"])) is None


def test_shared_prompts_are_not_counted_in_full() -> None:
    shared = RequestSet(np.zeros(2), np.array([900, 900]), np.array([2, 2]), block_hashes=((1, 2), (1, 2)))
    assert latency_discard(toy_cycle_s, LIMITS, shared, parse_slos(["ttft.mean=100ms"])) is None


@pytest.fixture(scope="module")
def worlds() -> dict[str, SimulatedEvaluator]:
    slos = parse_slos(["ttft.p99=2s"])
    return {
        hardware: SimulatedEvaluator.of(
            PlanRequest(model="llama3.1-8b", hardware=hardware, slos=slos, workload=workload), parse_hardware(hardware)
        )
        for hardware, workload in (("h100x8", "lmsys-turns"), ("rtx4090", "azure-conv"))
    }


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hardware=st.sampled_from(["h100x8", "rtx4090"]),
    tp=st.sampled_from([1, 2, 8]),
    seqs=st.sampled_from([64, 256]),
    tokens=st.sampled_from([512, 2048, 8192]),
    metric=st.sampled_from(["ttft", "tpot", "e2e"]),
    stat=st.sampled_from(["mean", "p50", "p99"]),
    seed=st.integers(0, 5),
)
def test_what_is_refused_would_fail_in_simulation(
    worlds: dict[str, SimulatedEvaluator],
    hardware: str,
    tp: int,
    seqs: int,
    tokens: int,
    metric: str,
    stat: str,
    seed: int,
) -> None:
    """What the simulator reaches at a light load the bound must not call impossible; a twentieth of it, it must."""
    tp = tp if hardware == "h100x8" else 1
    world = worlds[hardware]
    tokens = max(tokens, seqs)
    candidate = Candidate(world.names.hardware, 1, Layout(tp), "bf16", "bf16", seqs, tokens)
    seen = world.observe(candidate, Load(world.light_requests_per_s(candidate), 1000, seed))
    reached = Slo(metric, stat, judge([seen], (Slo(metric, stat, 1.0),)).value_s(Slo(metric, stat, 1.0)))
    cost, limits = world.deployments.compiled(candidate).cost, Limits(seqs, tokens, 4096)
    assert latency_discard(cost.cycle_s, limits, world.statistics.sample, [reached]) is None
    far_off = Slo(metric, stat, reached.limit_s / 20)
    assert latency_discard(cost.cycle_s, limits, world.statistics.sample, [far_off]) is not None


def test_a_model_of_short_contexts_fits() -> None:
    """Whisper has 448 positions, fewer than the shortest cache that serves models of longer ones."""
    memory = size_memory(resolve(Deployment(model="whisper-large-v3", hardware="h100")))
    assert memory.longest_sequence_tokens == 448
    assert memory_discard(memory, 164) is None
    assert memory_discard(replace(memory, longest_sequence_tokens=447), 164) is not None


def test_a_stated_length_must_fit() -> None:
    """A length that is not stated is shortened to what the cache holds."""
    memory = replace(
        size_memory(resolve(Deployment(model="llama3.1-8b", hardware="h100"))), longest_sequence_tokens=9000
    )
    assert memory_discard(memory, 4096) is None
    found = memory_discard(memory, 4096, states_length=True)
    assert found is not None
    assert (found.value, found.limit) == (131_072, 9000)
    assert found.reason == "the KV cache holds one sequence of 9000 tokens, less than max_model_len 131072"


# ---- requests that exceed max_model_len


def lengths(too_long: int, n: int = 1000) -> RequestSet:
    return requests([5000] * too_long + [10] * (n - too_long), [100] * n)


@pytest.mark.parametrize(
    ("slo", "too_long", "refused"),
    [
        ("ttft.p99=2s", 0, False),
        ("ttft.p99=2s", 10, False),  # one in a hundred may be late
        ("ttft.p99=2s", 60, True),
        ("ttft.p90=2s", 60, False),
        ("ttft.p50=2s", 90, False),  # a short run may count a tenth as random
        ("ttft.p50=2s", 200, True),  # beyond this no system keeps up
        ("ttft.mean=2s", 60, True),
        ("itl.p99=2s", 60, False),  # requests that are rejected have no tokens
        ("itl.p99=2s", 200, True),
    ],
)
def test_requests_beyond_max_model_len_are_the_reason(slo: str, too_long: int, refused: bool) -> None:
    found = length_discard(4096, lengths(too_long), parse_slos([slo]))
    assert (found is not None) == refused
    if found is not None:
        assert (found.constraint, found.value, found.limit) == (REQUEST_LENGTH, 5100.0, 4096.0)
        assert f"{100 * too_long / 1000:.0f} % of requests are rejected because they exceed max_model_len 4096" in (
            found.reason
        )


@pytest.fixture(scope="module")
def short() -> dict[int, SimulatedEvaluator]:
    """Evaluators by max_model_len, of the default workload."""
    fixed = {n: Overrides.of({"max_model_len": n, "tensor_parallel": 1}) for n in (1024, 4096, 4160, 6144)}
    return {
        n: SimulatedEvaluator.of(
            PlanRequest(model="llama3.2-1b", hardware="l4", slos=parse_slos(["ttft.p99=2s"]), fixed=each),
            parse_hardware("l4"),
        )
        for n, each in fixed.items()
    }


@pytest.mark.parametrize("max_model_len", [1024, 4096, 4160, 6144])
@pytest.mark.parametrize("slo", ["ttft.p99=60s", "ttft.p90=60s", "e2e.mean=100s", "tpot.p50=1s"])
def test_what_is_ruled_out_for_its_length_fails_in_simulation_and_says_so(
    max_model_len: int, slo: str, short: dict[int, SimulatedEvaluator]
) -> None:
    evaluator, slos = short[max_model_len], parse_slos([slo])
    candidate = evaluator.space()[0]
    verdicts = [judge([evaluator.observe(candidate, Load(0.5, 600, seed))], slos) for seed in range(3)]
    if length_discard(max_model_len, evaluator.statistics.sample, slos) is not None:
        assert not any(verdict.met for verdict in verdicts)
        assert all("rejected: longer than max_model_len" in verdict.rejection for verdict in verdicts)
    for verdict in verdicts:
        assert not verdict.met or not verdict.rejection
    assert "rejected because they exceed" in evaluator.facts(candidate).notices[0]


def test_truncated_requests_are_not_rejected() -> None:
    fixed = Overrides.of({"max_model_len": 1024, "queue": {"too_long": "truncate"}})
    request = PlanRequest(model="llama3.2-1b", hardware="l4", slos=parse_slos(["ttft.p99=2s"]), fixed=fixed)
    evaluator = SimulatedEvaluator.of(request, parse_hardware("l4"))
    assert evaluator.discard(evaluator.space()[0]) is None
