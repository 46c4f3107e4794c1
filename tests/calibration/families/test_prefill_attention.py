"""Prefill attention: a kernel that walks the keys in turn, and which engines decode in it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from calibration.families.prefill_attention import PrefillAttentionModel
from catalogs.hardware.specs import Accelerator

UNIT = Accelerator("unit", "unit", 80e9, 2e12, {"bf16": 1e15}, 700.0, 100.0)


def rows(kernel: str, power: float) -> pd.DataFrame:
    """Whole prompts of one head, whose time grows with a power of their length."""
    tokens = 2.0 ** np.arange(6, 14)
    sizes = {"chunks": 1.0, "tokens": tokens, "pairs": 0.5 * tokens**2, "window_tokens": 0}
    heads = {"n_heads": 1, "n_kv_heads": 1, "head_dim": 128, "kv_dtype": "bf16"}
    return pd.DataFrame(sizes | heads | {"seconds": 20e-6 + 1e-9 * tokens**power, "kernel": kernel})


@pytest.mark.parametrize(
    ("kernel", "joins"),
    [("flash_attention", True), ("flashinfer_trtllm", False), ("torch_flow", False), ("vllm_trtllm_gen", False)],
)
def test_decodes_join_a_serial_kernel_unless_it_is_of_an_engine_that_separates_them(kernel: str, joins: bool) -> None:
    assert PrefillAttentionModel.fit(rows(kernel, 1.0), UNIT).joins_decodes(128, "bf16") is joins


def test_decodes_join_no_kernel_that_divides_the_keys() -> None:
    assert not PrefillAttentionModel.fit(rows("flash_attention", 2.0), UNIT).joins_decodes(128, "bf16")
