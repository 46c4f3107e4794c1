"""Several timings of one kernel: one disturbed timing does not count, and no other row changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.importers.aiconfigurator import import_tables
from calibration.importers.repeated_timings import FEWEST_SHARED, median_products, shorter_decodes
from calibration.operators.operators import Gemm
from calibration.operators.roofline import roofline_s
from catalogs.hardware.catalog import parse_hardware

UNIT = parse_hardware("h100").accelerator
SHAPES = [(float(m), float(n), 4096.0) for m in (1, 8, 64, 4096, 8192) for n in range(1024, 12288, 512)]
DISTURBED = 1.14


def products(level: float, dtype: str = "bf16", slow: tuple[int, ...] = ()) -> pd.DataFrame:
    """Rows of all SHAPES at a multiple of the roofline; those with an index in `slow` take DISTURBED times as long."""
    m, n, k = np.array(SHAPES).T
    seconds = level * roofline_s(Gemm(m, n, k, dtype), UNIT)
    seconds[list(slow)] *= DISTURBED
    return pd.DataFrame({"m": m, "n": n, "k": k, "dtype": dtype, "seconds": seconds, "source": "x"})


@given(
    st.lists(st.integers(0, len(SHAPES) - 1), max_size=6, unique=True),
    st.floats(0.8, 1.3),
    st.floats(0.8, 1.3),
)
def test_disturbed_timings_do_not_count_whatever_the_level_of_the_other_releases(
    slow: list[int], second: float, third: float
) -> None:
    found = median_products(products(1.5, slow=tuple(slow)), [products(1.5 * second), products(1.5 * third)], UNIT)
    assert found.seconds.to_numpy() == pytest.approx(products(1.5).seconds.to_numpy())


def test_each_limit_has_a_scale_of_its_own() -> None:
    undisturbed = products(1.5)
    throttled = undisturbed.assign(seconds=undisturbed.seconds * np.where(undisturbed.m >= 4096, 1.2, 0.9))
    found = median_products(products(1.5, slow=(0, 60)), [throttled, throttled], UNIT)
    assert found.seconds.to_numpy() == pytest.approx(undisturbed.seconds.to_numpy())


def test_two_timings_and_few_shared_shapes_change_nothing() -> None:
    own = products(1.5, slow=(3,))
    few = products(1.5).iloc[: FEWEST_SHARED - 1]
    assert list(median_products(own, [products(1.5)], UNIT).seconds) == list(own.seconds)
    assert list(median_products(own, [few, few], UNIT).seconds) == list(own.seconds)


def test_other_dtypes_keep_their_own_timings() -> None:
    own, other = products(1.5, "fp8", slow=(5,)), products(1.5, "fp8")
    assert list(median_products(own, [other, other], UNIT).seconds) == list(own.seconds)


def test_the_shorter_of_two_timings_of_a_batch_counts() -> None:
    shape = {"n_heads": 8, "n_kv_heads": 8, "head_dim": 128, "kv_dtype": "bf16", "window_tokens": 0}
    rows = pd.DataFrame(
        [shape | {"sequences": 8.0, "context_tokens": 8.0 * c, "seconds": c} for c in (512, 1024, 2048)]
    )
    other = rows.assign(seconds=[600.0, 900.0, 2048.0]).iloc[:2]
    assert list(shorter_decodes(rows, other).seconds) == [512.0, 900.0, 2048.0]
    assert shorter_decodes(rows, None) is rows


def test_tables_of_other_releases_improve_the_rows_that_are_imported(tmp_path: Path) -> None:
    for release, slow in (("vllm/0.24.0", (7,)), ("vllm/0.14.0", ()), ("sglang/0.5.14", ())):
        file = tmp_path / f"h100_sxm/gemm/{release}/gemm_perf.parquet"
        file.parent.mkdir(parents=True)
        rows = products(1.5, slow=slow)
        raw = rows[["m", "n", "k"]].assign(latency=rows.seconds * 1e3, gemm_dtype="bfloat16", kernel_source="linear")
        raw.to_parquet(file)
    for release, context_ms in (("0.24.0", 1.0), ("0.14.0", 0.5)):
        file = tmp_path / f"h100_sxm/attention/vllm/{release}/generation_attention_perf.parquet"
        file.parent.mkdir(parents=True)
        shape = {"batch_size": 8, "isl": 1, "step": 1023, "num_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
        kind = {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "kernel_source": "fa3", "latency": context_ms}
        pd.DataFrame([shape | kind]).to_parquet(file)
    found = import_tables(tmp_path, "h100")
    assert found["gemm"].seconds.to_numpy() == pytest.approx(products(1.5).seconds.to_numpy())
    assert list(found["decode_attention"].seconds) == pytest.approx([0.5e-3])
    assert set(found["gemm"].source) == {"aiconfigurator@095f58a51 h100_sxm vllm 0.24.0"}
