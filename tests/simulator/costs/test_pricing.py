"""Lines into seconds: peers whose traffic the host routes, and kernels that the rows of others already hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from calibration.operators.cost import INTERPOLATED, AdjustedCosts, CachedCosts, Cost
from calibration.operators.operators import Collective, Elementwise, Gemm, Operator
from calibration.operators.roofline import link_bytes
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Hardware, RoutedPeers
from simulator.core.batch import BatchShape
from simulator.costs.pricing import N_CLASSES, Pricer
from simulator.costs.tables import StepTables
from simulator.layers.operator_call import OperatorCall
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls
from tests.simulator.plants import ToySource, resolved

ROUTED = RoutedPeers(bytes_per_s=10e9, hop_s=5e-6)


def pricer(routed: RoutedPeers | None, text: str = "h100x4") -> Pricer:
    hardware = parse_hardware(text)
    return Pricer(ToySource(hardware.accelerator), replace(hardware, node=replace(hardware.node, routed=routed)))


def seconds(p: Pricer, op: Collective) -> float:
    return float(p.price([OperatorCall("x", "collective", 1, op)], ())[:N_CLASSES].sum())


def test_two_routed_peers_take_a_ring_of_hops_and_bytes() -> None:
    """1 MB between two: each sends 2 x 1/2 of it, in two hops."""
    assert seconds(pricer(ROUTED), Collective("all_reduce", 1e6, 2)) == pytest.approx(2 * 5e-6 + 1e6 / 10e9)
    assert seconds(pricer(ROUTED), Collective("all_gather", 1e6, 2)) == pytest.approx(2 * 5e-6 + 0.5e6 / 10e9)


def test_a_route_never_makes_a_collective_faster() -> None:
    fast = RoutedPeers(bytes_per_s=1e15, hop_s=1e-12)
    for size in (1e3, 1e6, 1e9):
        op = Collective("all_reduce", size, 4)
        assert seconds(pricer(fast), op) == seconds(pricer(None), op) < seconds(pricer(ROUTED), op)


def test_a_routed_collective_is_not_called_measured() -> None:
    cost = pricer(ROUTED)._collective(Collective("all_reduce", np.array([1.0, 1e6]), 2), 1)
    assert np.all(cost.origin >= INTERPOLATED)


def test_the_catalog_routes_peers_without_a_link_of_their_own() -> None:
    """LLMServingSim's NCCL all-reduces between two of these cards: 90.6 us for 1.25 MiB, 1309 us for 20 MiB."""
    hardware: Hardware = parse_hardware("rtxpro6000x2")
    routed = hardware.node.routed
    assert routed is not None
    for size, measured_s in ((139264, 22.78e-6), (1310720, 90.59e-6), (20971520, 1309.13e-6)):
        op = Collective("all_reduce", size, 2)
        ring = 2 * routed.hop_s + float(link_bytes(op)) / routed.bytes_per_s
        assert ring == pytest.approx(measured_s, rel=0.07)
    assert parse_hardware("h100x2").node.routed is None


def test_a_cache_write_that_attention_holds_is_not_charged_again() -> None:
    """Planted fault: charged twice, both steps would cost the same."""
    deployment = resolved()
    lines = step_calls(Shard.of(deployment), BatchShape(0, 0.0, 0, 4, 400, 100, 4))
    apart = ToySource(deployment.hardware.accelerator)
    held = ToySource(deployment.hardware.accelerator)
    held.attention_writes_cache = True
    (write,) = [line for line in lines if line.name == "kv_write"]
    with_it, without = (float(Pricer(s, deployment.hardware).price(lines, ())[:N_CLASSES].sum()) for s in (apart, held))
    assert with_it - without == pytest.approx(write.count * float(apart.cost(write.op).seconds))


def test_the_choice_of_experts_that_their_rows_hold_is_not_charged_again() -> None:
    """Planted fault: charged twice, both steps would cost the same."""
    deployment = resolve(Deployment.model_validate({"model": "qwen3-30b-a3b", "hardware": "h100"}))
    lines = step_calls(Shard.of(deployment), BatchShape(0, 0.0, 0, 4, 400, 100, 4))
    apart, held = (ToySource(deployment.hardware.accelerator) for _ in range(2))
    held.experts_are_chosen = True
    (choice,) = [line for line in lines if line.name == "routing"]
    with_it, without = (float(Pricer(s, deployment.hardware).price(lines, ())[:N_CLASSES].sum()) for s in (apart, held))
    assert with_it - without == pytest.approx(choice.count * float(apart.cost(choice.op).seconds))


@dataclass(frozen=True, slots=True)
class CountingSource(AdjustedCosts):
    """Counts the operators that a source computes."""

    computed: list[Operator] = field(default_factory=list)

    def cost(self, op: Operator) -> Cost:
        self.computed.append(op)
        return self.source.cost(op)


def test_an_operator_is_computed_once_and_costs_the_same() -> None:
    counting = CountingSource(ToySource(parse_hardware("h100x1").accelerator))
    cached = CachedCosts(counting)
    gemms = [Gemm(m=np.array(m), n=4096, k=k, dtype="bf16") for m in ([1.0, 64.0], [1.0, 65.0]) for k in (512, 1024)]
    for _ in range(2):
        for op in gemms:
            again = replace(op, m=op.m.copy())
            assert np.array_equal(cached.cost(again).seconds, counting.source.cost(op).seconds)
    assert len(counting.computed) == len(gemms)


def test_operators_that_differ_in_anything_are_computed_apart() -> None:
    """Also where their numbers read alike in a row, and where an array is a view of every second entry of another."""
    counting = CountingSource(ToySource(parse_hardware("h100x1").accelerator))
    cached, many = CachedCosts(counting), np.arange(1.0, 7.0)
    sizes = (many, many[::2], many.reshape(2, 3), many.astype(np.int64), 1, 11)
    gemms = [Gemm(m=m, n=n, k=k, dtype="bf16") for m in sizes for n, k in ((12, 3), (1, 23))]
    ops: list[Operator] = [*gemms, replace(gemms[0], dtype="fp8"), Elementwise("norm", many, 2.0)]
    for op in ops:
        assert np.array_equal(cached.cost(op).seconds, counting.source.cost(op).seconds)
    assert len(counting.computed) == len(ops)
    cached.cost(replace(gemms[2], m=many[::2].copy()))
    assert len(counting.computed) == len(ops)


def test_step_costs_of_cached_operators_are_equal_bit_for_bit() -> None:
    source = ToySource(parse_hardware("h100x1").accelerator)
    cached = CachedCosts(source)
    for _ in range(2):  # the second time from the cache
        for kv_dtype in ("bf16", "fp8"):
            deployment = resolved(hardware="h100x1", kv_dtype=kv_dtype)
            tables, own = (StepTables.build(deployment, s) for s in (source, cached))
            for name in ("rank", "logits", "prefill"):
                assert np.array_equal(getattr(tables, name).at_nodes(), getattr(own, name).at_nodes())
            assert np.array_equal(tables.decode.even.at_nodes(), own.decode.even.at_nodes())
