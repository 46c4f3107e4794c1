"""Measured kernels in the price of a network: where they count, and how host and device add up."""

from __future__ import annotations

from dataclasses import asdict, replace

import pandas as pd
import pytest

from calibration.bundles.bundle import Bundle, load_bundle
from calibration.families.network_kernels import ConvolutionModel, HostLaunchModel, MatmulModel, StreamingModel
from calibration.families.noncausal_attention import NonCausalAttentionModel
from calibration.operators.network_operators import converts_nothing, network_operator
from calibration.operators.roofline import roofline_s
from calibration.power.model import load_power
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator
from catalogs.networks.files import load_network
from simulator.networks.execution import Execution
from simulator.networks.factors import load_factors
from simulator.networks.job import price_job
from simulator.networks.measured import host_launch_s

EAGER = Execution(mode="eager", precision="fp32")
HARDWARE = parse_hardware("h100")
CPU = Accelerator("cpu", "cpu", 80e9, 25e9, {"bf16": 2e11, "fp32": 1e11}, 200.0, 50.0, kind="cpu")
FAMILIES = {
    "matmul": MatmulModel,
    "convolution": ConvolutionModel,
    "streaming": StreamingModel,
    "noncausal_attention": NonCausalAttentionModel,
}
NETWORKS = ("resnet50", "vit_base_patch16_224", "t5-small-encoder")
UTILISATION = 0.5


def bundle(unit: Accelerator, batches: tuple[int, ...] = (1, 4)) -> Bundle:
    """A calibration that holds every kernel of three networks in fp32, each at half of its roofline."""
    found: dict[str, dict[object, dict[str, object]]] = {family: {} for family in FAMILIES}
    for name in NETWORKS:
        for batch in batches:
            for stage in load_network(name).at({"batch": batch}, 4):
                for sized in stage.operators:
                    op = None if converts_nothing(sized) else network_operator(sized, "fp32")
                    if op is not None:
                        seconds = float(roofline_s(op, unit)) / UTILISATION
                        found[op.family][op] = {**asdict(op), "seconds": seconds, "source": "test"}
    models = {f: FAMILIES[f].fit(pd.DataFrame(list(rows.values())), unit) for f, rows in found.items()}
    launch = HostLaunchModel({"modules": 9e-6, "calls": 4e-6})
    return Bundle("test", unit, {**models, "host_launch": launch}, load_power(), {}, [])


@pytest.fixture(scope="module")
def cpu() -> Bundle:
    return bundle(CPU)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_measured_network_is_the_sum_of_its_kernels_and_launches(cpu: Bundle, name: str) -> None:
    """At a measured batch every kernel but attention, whose grid smooths, costs exactly what was measured."""
    (stage,) = load_network(name).at({"batch": 4}, 4)
    kept = [op for op in stage.operators if not converts_nothing(op)]
    found = price_job(load_network(name), cpu, HARDWARE, EAGER, {"batch": 4}).stages[0]
    pairs = [(op, network_operator(op, "fp32")) for op in kept]
    kernels = sum(op.times * float(roofline_s(mapped, CPU)) for op, mapped in pairs if mapped) / UTILISATION
    assert found.device_s == pytest.approx(kernels, rel=0.02)
    assert found.host_s == pytest.approx(sum(op.times for op in kept) * 5e-6)
    assert found.seconds == pytest.approx(found.device_s + found.host_s)
    assert found.measured > 0.9


def test_on_a_gpu_the_longer_of_host_and_kernels_counts() -> None:
    gpu = bundle(replace(CPU, kind="gpu", peak_flops={"bf16": 2e15, "fp32": 1e15}, memory_bandwidth_bytes_per_s=3e12))
    found = price_job(load_network("resnet50"), gpu, HARDWARE, EAGER).stages[0]
    assert found.host_s == pytest.approx(174 * 9e-6)
    assert found.seconds == pytest.approx(max(found.host_s, found.device_s))


def test_a_batch_that_was_not_measured_is_interpolated(cpu: Bundle) -> None:
    network = load_network("resnet50")
    one, two, four = (price_job(network, cpu, HARDWARE, EAGER, {"batch": b}).stages[0] for b in (1, 2, 4))
    assert one.seconds < two.seconds < four.seconds
    assert two.interpolated > 0.5


def test_only_torch_runs_the_measured_kernels(cpu: Bundle) -> None:
    """torch.compile fuses the memory-bound ones; TensorRT and other precisions have kernels of their own."""
    network = load_network("resnet50")

    def measured(execution: Execution) -> float:
        return price_job(network, cpu, HARDWARE, execution).stages[0].measured

    assert measured(EAGER) > 0.99
    assert 0.5 < measured(Execution(mode="compiled", precision="fp32")) < 0.999
    assert measured(Execution(mode="tensorrt", precision="fp32")) == 0.0
    assert measured(Execution(mode="eager", precision="bf16")) == 0.0  # measured in fp32 only
    assert host_launch_s(Execution(mode="compiled"), cpu) is None


def test_without_measured_kernels_prices_stay_as_they_were() -> None:
    shipped = load_bundle(HARDWARE.accelerator)
    assert not {"matmul", "convolution", "streaming", "host_launch"} & shipped.models.keys()
    found = price_job(load_network("resnet50"), shipped, HARDWARE, Execution(mode="eager", precision="bf16"))
    assert found.stages[0].host_s == pytest.approx(174 * load_factors().host_launch_s["eager"])
