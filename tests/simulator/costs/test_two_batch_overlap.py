"""Two halves of a step whose exchange with experts and kernels overlap: prices by hand, and laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.operators.operators import Collective, Elementwise
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from simulator.costs.compile import compile_step_cost
from simulator.costs.pricing import EXCHANGE_SMS, N_CLASSES, Pricer
from simulator.costs.step_cost import StepCost
from simulator.costs.totals import total
from simulator.interconnect.collectives import ExpertRouting
from simulator.layers.operator_call import OperatorCall
from simulator.layers.step import LEAST_OVERLAPPED
from tests.simulator.plants import ToySource, resolved

KEYS = {"model": "deepseek-v3", "hardware": "2*h100x8", "data_parallel": 16, "expert_parallel": True,
        "weight_dtype": "fp8"}  # fmt: skip


def costing(backend: str, overlap: bool) -> StepCost:
    there = resolved(**KEYS, all2all_backend=backend, two_batch_overlap=overlap, max_num_batched_tokens=8192)  # type: ignore[arg-type]
    return compile_step_cost(there, ToySource(there.hardware.accelerator))


def decodes(each: int, context: int = 500) -> BatchShape:
    n = 16 * each
    return BatchShape(0, 0.0, 0, n, n * context, context, n)


def prompts(each: int) -> BatchShape:
    return BatchShape(16 * each, 16 * each * each / 2, 16, logits=16)


def parts_s(cost: StepCost, shape: BatchShape) -> dict[str, float]:
    log = StepLog()
    log.add(0.0, 1, shape, 1.0, 0.0, 1.0)
    return total(cost.tables, log).seconds


@pytest.mark.parametrize(("low_latency", "taken"), [(True, 0.0), (False, EXCHANGE_SMS)])
@pytest.mark.parametrize("kernel_bytes", [1e8, 2e9, 2e10])
def test_an_exchange_is_hidden_behind_half_of_the_other_kernels(
    low_latency: bool, taken: float, kernel_bytes: float
) -> None:
    """Each layer has two exchanges, so half of its kernels is beside each; normal kernels of an exchange slow them."""
    unit = resolved(**KEYS).hardware  # type: ignore[arg-type]
    pricer = Pricer(ToySource(unit.accelerator), unit)
    kernel = OperatorCall("norm", "elementwise", 10, Elementwise("norm", np.ones(1), kernel_bytes))
    routing = ExpertRouting(8, 7168.0, low_latency)
    op = Collective("all_to_all", np.full(1, 2048 * 7168.0), 16, False)
    alone = OperatorCall("dispatch", "collective", 10, op, routing=routing, parts=np.full(1, 2.0))
    exchange_s, kernel_s = (pricer.price([call], (1,))[0, :N_CLASSES].sum() for call in (alone, kernel))
    behind = replace(alone, behind=(kernel,))
    shown_s = pricer.price([behind], (1,))[0, :N_CLASSES].sum()
    hiding_s = 2 * kernel_s / 2  # both halves run the kernel, and half of it is beside this exchange
    assert shown_s == pytest.approx(max(exchange_s - hiding_s, taken * min(exchange_s, hiding_s)), rel=1e-12)


@pytest.mark.parametrize("backend", ["deepep_low_latency", "deepep_high_throughput"])
def test_small_steps_run_in_one_batch(backend: str) -> None:
    plain, halves = costing(backend, False), costing(backend, True)
    few, many = decodes(LEAST_OVERLAPPED // 2), decodes(LEAST_OVERLAPPED)
    assert halves.cycle_s(few) == pytest.approx(plain.cycle_s(few), rel=1e-12)
    assert halves.cycle_s(many) != pytest.approx(plain.cycle_s(many), rel=1e-3)


def test_halves_read_the_weights_twice_and_hide_the_exchange() -> None:
    """The exchange becomes shorter; products and experts become longer, and large steps gain more than they lose."""
    for shape in (decodes(64), prompts(4096)):
        plain, halves = (parts_s(costing("deepep_high_throughput", on), shape) for on in (False, True))
        assert halves["collective"] < plain["collective"]
        assert halves["moe"] >= plain["moe"]
        assert halves["gemm"] >= plain["gemm"]
    times = [costing("deepep_high_throughput", on).cycle_s(prompts(4096)) for on in (False, True)]
    assert times[1] < times[0]


@pytest.mark.parametrize("shape", [decodes(40), prompts(1024)])
def test_both_readings_of_a_step_agree(shape: BatchShape) -> None:
    cost, log = costing("deepep_low_latency", True), StepLog()
    step_s = cost.cycle_s(shape)
    log.add(0.0, 1, shape, step_s, 0.0, step_s)
    assert total(cost.tables, log).busy_s == pytest.approx(step_s, rel=1e-9)


def test_halves_need_an_exchange_that_sends_tokens_to_their_experts() -> None:
    with pytest.raises(InputError, match="two_batch_overlap is simulated with the backends") as wrong:
        resolve(Deployment(**KEYS, two_batch_overlap=True))  # type: ignore[arg-type]
    assert wrong.value.nearest == "all2all_backend: deepep_low_latency"
    dense = Deployment(model="llama3.1-8b", hardware="h100", two_batch_overlap=True)
    with pytest.raises(InputError, match="-8b has none") as wrong:
        resolve(dense)
    assert wrong.value.nearest == "two_batch_overlap: false"
    other = KEYS | {"engine": "trtllm", "all2all_backend": "deepep_low_latency"}
    with pytest.raises(InputError, match="not simulated for trtllm"):
        resolve(Deployment(**other, two_batch_overlap=True))  # type: ignore[arg-type]
