"""Collectives worked out by hand, published measurements, and laws over ranks, nodes and bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.bundles.bundle import load_bundle
from calibration.operators.cost import ROOFLINE
from calibration.operators.operators import Collective
from calibration.operators.roofline import link_bytes
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.hardware.catalog import parse_hardware
from simulator.core.batch import BatchShape
from simulator.costs.pricing import N_CLASSES, Pricer
from simulator.interconnect.collectives import ExpertRouting, Interconnect
from simulator.layers.operator_call import CLASSES, OperatorCall
from simulator.layers.shard import Shard
from simulator.layers.step import StepCalls, step_calls
from tests.simulator.plants import ToySource, resolved

MB = 1e6


def network(text: str) -> Interconnect:
    return Interconnect(parse_hardware(text))


def seconds(text: str, op: Collective, stride: int = 1, count: int = 1) -> float:
    """Of one operator with the toy calibration: 1.25 x roofline + 2 us in a node."""
    hardware = parse_hardware(text)
    line = OperatorCall("x", "collective", count, op, stride=stride)
    return float(Pricer(ToySource(hardware.accelerator), hardware).price([line], ())[:N_CLASSES].sum()) / count


def test_ranks_lie_in_nodes_and_racks() -> None:
    two = network("2*h100x8")
    assert [(s.inside, s.nodes) for s in (two.span(8), two.span(16), two.span(2, 8), two.span(4, 4))] == [
        (8, 1),
        (8, 2),
        (1, 2),
        (2, 2),
    ]
    assert network("18*gb200x4").span(72).nodes == 1  # trays of a rack are one NVLink domain
    assert network("19*gb200x4").span(76).nodes == 2
    assert network("gb200-nvl72x72").span(72).nodes == 1


def test_large_messages_over_two_nodes_by_hand() -> None:
    """1 GB over 2 x 8 H100: the ring's eight cards of 50 GB/s at 88 % are slower than NVLink; 2 x 15/16 of the message
    in each rank's part over them, 28 hops inside and 2 between in the Simple protocol."""
    rate = 8 * 50e9 * 0.88
    by_hand = 8.4e-6 + 28 * 3.4e-6 + 2 * 14e-6 + 2 * 15 / 16 * 1e9 / rate
    assert seconds("2*h100x8", Collective("all_reduce", 1e9, 16)) == pytest.approx(by_hand)


@pytest.mark.parametrize(("text", "rate"), [("h100x8", 0.85 * 450e9), ("gb200-nvl72x72", 0.74 * 900e9)])
def test_the_switch_adds_large_messages_at_its_share_of_the_links(text: str, rate: float) -> None:
    """1 GB over all ranks of an NVLink domain: 25 us, and the message once at 85 % (Hopper) or 74 % (Blackwell)."""
    links = network(text)
    ranks = links.hardware.n_accelerators
    took_s = float(links.collective_s(Collective("all_reduce", 1e9, ranks), links.span(ranks)))
    assert took_s == pytest.approx(25e-6 + 1e9 / rate)


def test_no_switch_of_older_links_adds() -> None:
    """1 GB over eight A100: twice 7/8 of the message at 300 GB/s and 14 hops, as a ring."""
    links = network("a100-80gbx8")
    took_s = float(links.collective_s(Collective("all_reduce", 1e9, 8), links.span(8)))
    assert took_s == pytest.approx(8.4e-6 + 14 * 3.4e-6 + 2 * 7 / 8 * 1e9 / 300e9)


def test_small_messages_over_two_nodes_take_the_tree() -> None:
    """8 bytes: LL tree, a chain of seven in each node (1.8 x 0.6 us there and back) and one hop of 5 us between."""
    assert seconds("2*h100x8", Collective("all_reduce", 8.0, 16)) == pytest.approx(
        (6.8 + 2 * (7 * 0.6 * 1.8 + 5.0)) * 1e-6, rel=1e-3
    )


def test_one_rank_in_each_node_has_one_card() -> None:
    """The ranks of a data-parallel group, a node apart: 100 MB gathered, half of it through one card."""
    assert seconds("2*h100x8", Collective("all_gather", 100 * MB, 2), stride=8) == pytest.approx(
        8.4e-6 + 14e-6 + 50e6 / (50e9 * 0.88)
    )


def test_stages_in_different_nodes_send_over_the_network() -> None:
    op = Collective("send_recv", 10 * MB, 2)
    inside = seconds("h100x8", op, stride=4)
    across = seconds("2*h100x8", op, stride=8)
    assert across == pytest.approx(14e-6 + 10e6 / (50e9 * 0.88))
    # four stages of four: boundaries 1 and 3 lie inside a node, 2 between
    assert seconds("2*h100x8", op, stride=4, count=3) == pytest.approx((2 * inside + across) / 3)


def test_a_bridge_joins_pairs_only() -> None:
    """Four H100 NVL: a pair has its bridge, a group of four the slots. It was 300 GB/s for both."""
    pair, four = network("h100-nvlx4"), network("h100-nvlx4")
    assert pair.link_bytes_per_s(pair.span(2)) == 300e9
    assert four.link_bytes_per_s(four.span(4)) == 64e9
    op = Collective("all_reduce", 100 * MB, 4)
    assert seconds("h100-nvlx4", op) >= float(link_bytes(op)) / 64e9
    assert seconds("h100-nvlx2", replace(op, ranks=2)) < 0.3 * seconds("h100-nvlx4", op)


@pytest.mark.parametrize(("text", "ranks"), [("gb200-nvl72x72", 72), ("gb200-nvl72x72", 16), ("2*h100x8", 16)])
def test_what_nobody_measured_is_marked(text: str, ranks: int) -> None:
    hardware = parse_hardware(text)
    pricer = Pricer(load_bundle(hardware.accelerator), hardware)
    cost = pricer._collective(Collective("all_reduce", np.array([1e3, 1e6, 1e9]), ranks), 1)
    assert (cost.origin == ROOFLINE).all()
    eight = pricer._collective(Collective("all_reduce", np.array([1e3, 1e6, 1e9]), 8), 1)
    assert (cost.seconds > eight.seconds).all()


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["4*h100x8", "2*l40sx8", "4*a100-80gbx8", "18*gb200x4", "2*h100-nvlx8"]),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    st.floats(1.0, 1e10),
    st.floats(1.0, 1e10),
)
def test_more_ranks_or_bytes_are_never_faster_and_no_link_is_beaten(
    text: str, kind: str, size: float, other: float
) -> None:
    hardware = parse_hardware(text)
    most = hardware.n_accelerators
    small, large = sorted((size, other))
    ranks = [r for r in (2, 4, 8, 16, 32, 64) if r <= most]
    times = [seconds(text, Collective(kind, small, r)) for r in ranks]
    assert (np.diff(times) >= -1e-12).all()
    for r, taken in zip(ranks, times, strict=True):
        assert seconds(text, Collective(kind, large, r)) >= taken - 1e-12
        span = network(text).span(r)
        if span.nodes > 1:
            cards = span.inside * hardware.node.network_bytes_per_s
            assert taken >= float(link_bytes(Collective(kind, small, r))) / cards


@pytest.mark.parametrize("text", ["h100x8", "gb200-nvl72x72"])
def test_shipped_calibrations_rise_with_ranks_and_bytes(text: str) -> None:
    hardware = parse_hardware(text)
    pricer = Pricer(load_bundle(hardware.accelerator), hardware)
    sizes = np.geomspace(1e2, 1e9, 80)
    ranks = [r for r in (8, 16, 32, 72) if r <= hardware.accelerators_per_node]
    for kind in ("all_reduce", "all_gather"):
        table = np.array([pricer._collective(Collective(kind, sizes, r), 1).seconds for r in ranks])
        assert (np.diff(table, axis=1) >= -1e-12).all()
        assert (np.diff(table, axis=0) >= -1e-12).all()


DISPATCH_US = {8: 77, 16: 118, 32: 155, 64: 173, 128: 192, 256: 194}
COMBINE_US = {8: 114, 16: 195, 32: 273, 64: 314, 128: 369, 256: 360}
FP8, BF16 = 7168 * (1 + 4 / 128), 7168 * 2.0


def exchange(text: str, tokens: float, each: float, ranks: int, low_latency: bool) -> float:
    """Seconds on nodes of H800, whose NVLink has 200 GB/s."""
    hardware = parse_hardware(text)
    h800 = Interconnect(replace(hardware, node=replace(hardware.node, link_bytes_per_s=200e9)))
    return float(h800.exchange_s(Collective("all_to_all", tokens * each, ranks), ExpertRouting(8, each, low_latency)))


@pytest.mark.parametrize("ranks", list(DISPATCH_US))
def test_low_latency_exchange_of_deepep(ranks: int) -> None:
    """DeepEP docs/legacy.md: 128 tokens, hidden 7168, top 8, FP8 there and BF16 back."""
    for published, each in ((DISPATCH_US, FP8), (COMBINE_US, BF16)):
        assert exchange("32*h100x8", 128, each, ranks, True) * 1e6 == pytest.approx(published[ranks], rel=0.15)


def test_normal_exchange_of_deepep_in_a_node() -> None:
    """4096 tokens, 8 ranks: 153 GB/s dispatched, where a token's bytes count once for each rank it goes to, itself
    included: 8 (1 - (7/8)^8) of them."""
    taken = exchange("h100x8", 4096, FP8, 8, False)
    assert 4096 * FP8 * 8 * (1 - (7 / 8) ** 8) / taken == pytest.approx(153e9, rel=0.1)


@pytest.mark.parametrize(("ranks", "logical"), [(16, 43e9), (32, 58e9), (64, 51e9)])
def test_normal_exchange_of_deepep_over_nodes(ranks: int, logical: float) -> None:
    """Bytes count once for each node, the own included."""
    nodes, taken = ranks // 8, exchange("32*h100x8", 4096, FP8, ranks, False)
    assert 4096 * FP8 * nodes * (1 - (1 - 1 / nodes) ** 8) / taken == pytest.approx(logical, rel=0.35)


def test_many_tokens_are_quicker_by_normal_kernels() -> None:
    assert exchange("8*h100x8", 2048, BF16, 64, False) < exchange("8*h100x8", 2048, BF16, 64, True)


def test_exchange_rises_with_ranks_and_tokens() -> None:
    for low_latency in (True, False):
        table = np.array(
            [[exchange("32*h100x8", n, BF16, r, low_latency) for n in (1, 30, 256, 257, 5000)] for r in (2, 8, 16, 64)]
        )
        assert (np.diff(table) >= 0).all()
        assert (np.diff(table, axis=0) >= -1e-12).all()


def test_tensor_parallel_over_nodes_is_allowed_noticed_and_dearer() -> None:
    here = resolve(Deployment(model="llama3.1-405b-fp8", hardware="h100x8", tensor_parallel=8))
    there = resolve(Deployment(model="llama3.1-405b-fp8", hardware="2*h100x8", tensor_parallel=16))
    assert any("network" in n for n in there.notices)
    cost = []
    for r in (here, there):
        lines = [line for line in StepCalls(Shard.of(r)).rank(np.array([32.0])) if line.kind == "collective"]
        cost.append(float(Pricer(ToySource(r.hardware.accelerator), r.hardware).price(lines, (1,)).sum()))
    assert cost[1] > 2 * cost[0]


def test_a_rack_of_72_says_what_is_not_measured() -> None:
    found = resolved("llama3.1-405b", "gb200-nvl72x72", tensor_parallel=16)
    assert any("16 ranks" in n for n in found.notices)


def test_a_step_is_its_computation_and_what_the_network_adds() -> None:
    """Links ten times as quick change no class but collectives; with no peers there are none."""
    keys: dict[str, object] = {"tensor_parallel": 8, "data_parallel": 2, "expert_parallel": True}
    found = resolved("qwen3-30b-a3b", "2*h100x8", **keys)
    node = found.hardware.node
    quick = replace(
        node, link_bytes_per_s=10 * node.link_bytes_per_s, network_bytes_per_s=10 * node.network_bytes_per_s
    )
    lines = step_calls(Shard.of(found), BatchShape(512, 512 * 256.0, 1, 64, 64_000, 1000, 65))
    source = ToySource(found.hardware.accelerator)
    slow_s, quick_s = (
        Pricer(source, h).price(lines, ())[:N_CLASSES] for h in (found.hardware, replace(found.hardware, node=quick))
    )
    other = [i for i, name in enumerate(CLASSES) if name != "collective"]
    assert slow_s[other].tolist() == quick_s[other].tolist()
    assert slow_s[CLASSES.index("collective")] > quick_s[CLASSES.index("collective")] > 0
    alone = step_calls(Shard.of(resolved("mixtral-8x7b", "h200x1")), BatchShape(0, 0.0, 0, 64, 64_000, 1000, 64))
    assert not [line for line in alone if line.kind == "collective"]
