"""Experts of architectures that no table has: the chain of small kernels around the products, on the shipped tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.bundles.bundle import load_bundle
from calibration.families.grouped_gemm import GroupedGemmModel, Key
from calibration.operators.operators import GroupedGemm
from calibration.operators.roofline import roofline_s
from catalogs.hardware.catalog import parse_hardware

H100 = parse_hardware("h100").accelerator
FEW = 64.0


def held_out_errors(model: GroupedGemmModel, dtype: str, chain: bool) -> float:
    """The median error at up to 64 tokens of curves of a dtype, each predicted from the other architectures."""
    own = [i for i, key in enumerate(model.keys) if key.dtype == dtype]
    errors = []
    for architecture in {_architecture(model.keys[i]) for i in own}:
        here = [i for i in own if _architecture(model.keys[i]) == architecture]
        others = [i for i in own if i not in here]
        rest = replace(model, keys=[model.keys[i] for i in others], log_ratio=model.log_ratio[others], log_relief=None)
        if not chain:
            rest._chains[dtype, H100.name] = (0.0, 0.0)
        for i in here:
            known = ~np.isnan(model.log_ratio[i]) & (model.tokens <= FEW)
            op = GroupedGemm(model.tokens[known], **model.keys[i]._asdict())
            measured = np.exp(model.log_ratio[i][known]) * roofline_s(op, H100)
            errors += list(np.abs(rest.cost(op, H100)[0] / measured - 1.0))
    return float(np.median(errors))


def _architecture(key: Key) -> tuple[int, int, int]:
    return key.hidden_size, key.experts_per_token, key.n_experts


@pytest.fixture(scope="module")
def experts() -> GroupedGemmModel:
    model = load_bundle(H100).models["moe"]
    assert isinstance(model, GroupedGemmModel)
    return model


@pytest.mark.parametrize(
    ("dtype", "most", "least_without"), [("bf16", 0.085, 0.09), ("fp8_block", 0.065, 0.075), ("mxfp4", 0.2, 0.2)]
)
def test_the_chain_lowers_the_error_of_architectures_held_out(
    experts: GroupedGemmModel, dtype: str, most: float, least_without: float
) -> None:
    with_chain, without = (held_out_errors(experts, dtype, chain) for chain in (True, False))
    assert with_chain < most
    assert without > least_without
    assert with_chain < 0.9 * without


def test_the_chain_is_tens_of_microseconds_and_grows_with_the_experts(experts: GroupedGemmModel) -> None:
    for dtype in ("bf16", "fp8_block", "mxfp4_marlin"):
        few, many = (experts.chain_s(dtype, n, H100) for n in (64, 512))
        assert 15e-6 < few <= many < 100e-6
