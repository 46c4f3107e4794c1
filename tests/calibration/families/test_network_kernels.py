"""The kernels of networks: measured shapes as measured, unknown kernels by a related one, and the launches."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calibration.families.network_kernels import (
    ConvolutionModel,
    HostLaunchModel,
    MatmulModel,
    NetworkKernelModel,
    StreamingModel,
)
from calibration.operators.cost import INTERPOLATED, MEASURED, ROOFLINE
from calibration.operators.operators import Convolution, HostLaunch, Matmul, Streaming
from calibration.operators.roofline import roofline_s
from catalogs.hardware.specs import Accelerator

#: 1 TFLOP/s in fp32, 2 in bf16, 100 GB/s.
UNIT = Accelerator("toy", "toy", 80e9, 100e9, {"bf16": 2e12, "fp32": 1e12}, 200.0, 50.0, kind="cpu")
CONV = Convolution(1, 64, 64, 1, "3x3", "56x56", "56x56", "1x1", "1x1", 0, "fp32")


def rows(ops: list[Any], utilisation: float) -> pd.DataFrame:
    """Each operator at one utilisation of the roofline."""
    seconds = [float(roofline_s(op, UNIT)) / utilisation for op in ops]
    return pd.DataFrame([asdict(op) for op in ops]).assign(seconds=seconds, source="test")


def add(elements: int, operator: str = "add", kind: str = "pointwise", dtype: str = "fp32") -> Streaming:
    return Streaming(kind, operator, elements, 0, 8 * elements, 4 * elements, dtype)


MODELS: list[tuple[type[NetworkKernelModel], list[Any]]] = [
    (MatmulModel, [Matmul(m, n, 768, 1, 1, "fp32") for m in (8, 64, 512) for n in (768, 3072)]),
    (ConvolutionModel, [replace(CONV, batch=b) for b in (1, 2, 4, 8)]),
    (StreamingModel, [add(2**i) for i in range(10, 24, 2)]),
]


@pytest.mark.parametrize(("model", "ops"), MODELS)
def test_a_measured_shape_is_reproduced_and_its_parts_are_read_back(
    model: type[NetworkKernelModel], ops: list[Any]
) -> None:
    fitted = model.fit(rows(ops, 0.4), UNIT)
    again = model.from_parts(*fitted.to_parts())
    for op in ops:
        seconds, origin = again.cost(op, UNIT)
        assert float(seconds) == pytest.approx(float(roofline_s(op, UNIT)) / 0.4, rel=1e-5)
        assert float(origin) == MEASURED
        assert again.covers(op)
    assert again.family == ops[0].family


@pytest.mark.parametrize(("model", "ops"), MODELS)
def test_a_machine_with_twice_the_peaks_takes_half_the_time(model: type[NetworkKernelModel], ops: list[Any]) -> None:
    fitted = model.fit(rows(ops, 0.4), UNIT)
    fast = replace(UNIT, memory_bandwidth_bytes_per_s=200e9, peak_flops={"bf16": 4e12, "fp32": 2e12})
    largest = ops[-1]
    assert float(fitted.cost(largest, fast)[0]) == pytest.approx(float(fitted.cost(largest, UNIT)[0]) / 2, rel=1e-6)


def test_a_batch_between_two_measured_ones_takes_a_time_between() -> None:
    fitted = ConvolutionModel.fit(rows([replace(CONV, batch=b) for b in (1, 2, 4, 8)], 0.4), UNIT)
    seconds, origin = fitted.cost(replace(CONV, batch=np.array([2.0, 3.0, 4.0])), UNIT)
    assert (np.diff(seconds) > 0).all()
    assert origin.tolist() == [MEASURED, INTERPOLATED, MEASURED]


def test_fields_may_be_arrays_and_equal_single_prices() -> None:
    fitted = StreamingModel.fit(rows([add(2**i) for i in range(10, 24, 2)], 0.5), UNIT)
    elements = np.array([2.0**11, 2.0**15, 2.0**22])
    found = fitted.cost(Streaming("pointwise", "add", elements, 0, 8 * elements, 4 * elements, "fp32"), UNIT)[0]
    assert found.tolist() == [float(fitted.cost(add(int(n)), UNIT)[0]) for n in elements]


def test_an_unknown_kernel_has_the_rate_of_its_kind_and_says_so() -> None:
    fitted = StreamingModel.fit(
        pd.concat([rows([add(2**20)], 0.5), rows([add(2**20, "cat", "copy")], 0.25)], ignore_index=True), UNIT
    )
    seconds, origin = fitted.cost(add(2**20, "hardswish"), UNIT)
    assert float(seconds) == pytest.approx(float(roofline_s(add(2**20), UNIT)) / 0.5)
    assert float(origin) == ROOFLINE
    assert fitted.covers(add(1, "hardswish"))
    assert not fitted.covers(add(1, dtype="bf16"))
    assert not fitted.covers(add(1, "argsort", "sort"))


def test_no_kernel_is_faster_than_the_fastest_of_its_table() -> None:
    fitted = StreamingModel.fit(rows([add(2**12)], 0.01), UNIT)
    least = float(roofline_s(add(2**12), UNIT)) / 0.01
    assert float(fitted.cost(add(1), UNIT)[0]) == pytest.approx(least)


def test_depthwise_and_full_convolutions_do_not_mix() -> None:
    alone = replace(CONV, groups=64)
    both = pd.concat([rows([CONV], 0.5), rows([alone], 0.05)], ignore_index=True)
    fitted = ConvolutionModel.fit(both, UNIT)
    assert len(fitted.tables) == 2
    larger = replace(alone, batch=2)
    assert float(fitted.cost(larger, UNIT)[0]) == pytest.approx(float(roofline_s(larger, UNIT)) / 0.05, rel=1e-6)


def test_launches_on_a_cpu_cost_what_modules_add_to_calls() -> None:
    table = pd.DataFrame({"kind": ["modules", "calls"], "kernels": 1, "seconds": [9e-6, 4e-6], "source": "test"})
    fitted = HostLaunchModel.from_parts(*HostLaunchModel.fit(table, UNIT).to_parts())
    assert fitted.beyond_calls_s(on_host=True) == pytest.approx(5e-6)
    assert fitted.beyond_calls_s(on_host=False) == pytest.approx(9e-6)
    assert float(fitted.cost(HostLaunch("modules", 100), UNIT)[0]) == pytest.approx(9e-4)


def test_a_decode_step_of_generate_has_a_part_for_each_layer_and_a_fixed_one() -> None:
    kind = "generate ToyForConditionalGeneration"
    table = pd.DataFrame({"kind": [kind, kind, "calls"], "kernels": [2, 6, 1], "seconds": [2e-3, 4e-3, 4e-6]})
    fitted = HostLaunchModel.from_parts(*HostLaunchModel.fit(table.assign(source="test"), UNIT).to_parts())
    assert fitted.generate_step_s("ToyForConditionalGeneration", 12) == pytest.approx(1e-3 + 12 * 0.5e-3)
    assert fitted.generate_step_s("OtherForConditionalGeneration", 12) is None
    for layers, seconds in ((2, 2e-3), (6, 4e-3)):
        assert float(fitted.cost(HostLaunch(kind, layers), UNIT)[0]) == pytest.approx(seconds)
    assert float(fitted.cost(HostLaunch("calls", 10), UNIT)[0]) == pytest.approx(4e-5)
