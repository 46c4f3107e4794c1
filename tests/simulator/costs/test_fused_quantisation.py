"""Norms and activations that write FP8: the product after them does without the kernel that quantises its input."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.operators.operators import Elementwise, Gemm
from calibration.operators.roofline import memory_s
from simulator.costs.pricing import N_CLASSES, QUANTISE_BYTES, Pricer
from simulator.layers.operator_call import OperatorCall
from simulator.layers.step import StepCalls
from tests.simulator.plants import ToySource, resolved

FUSED = {"qkv_proj", "gate_up_proj", "down_proj"}


def marked(engine: str = "vllm", hardware: str = "h100x1", dtype: str = "fp8", **keys: object) -> set[str]:
    deployment = resolved(hardware=hardware, engine=engine, weight_dtype=dtype, **keys)
    calls = StepCalls.of(deployment, ToySource(deployment.hardware.accelerator)).rank(np.array([8.0]))
    return {call.name for call in calls if call.quantised_before}


def test_only_products_after_a_norm_or_an_activation_are_fused() -> None:
    assert marked() == FUSED
    assert marked("trtllm") == FUSED
    assert marked("sglang") == set()
    assert marked("vllm-v0", max_num_batched_tokens=4096) == set()


def test_no_other_format_is_fused() -> None:
    assert marked(dtype="bf16") == set()
    assert marked(hardware="a100-80gbx1") == set()  # dequantises weights; its inputs stay 16 bit


@pytest.mark.parametrize("rows", [1.0, 64.0, 4096.0])
def test_the_product_costs_less_by_the_kernel_and_never_less_than_its_bytes(rows: float) -> None:
    deployment = resolved(weight_dtype="fp8")
    source = ToySource(deployment.hardware.accelerator)
    pricer, op = Pricer(source, deployment.hardware), Gemm(rows, 4096.0, 4096.0, "fp8")

    def seconds(fused: bool) -> float:
        call = OperatorCall("x", "gemm", 1, op, quantised_before=fused)
        return float(pricer.price([call], ())[:N_CLASSES].sum())

    kernel_s = float(source.cost(Elementwise("quantize", rows, QUANTISE_BYTES * 4096.0)).seconds)
    least_s = float(memory_s(op, deployment.hardware.accelerator))
    assert seconds(True) == pytest.approx(max(seconds(False) - kernel_s, least_s))
