"""MLA blocks timed with chains of norms or composed of parts: worlds by hand, and public tables of several engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.families.fixed_tiles import FLASHINFER, TABLED, layer_s
from calibration.families.mla import REFERENCE_SHAPE
from calibration.importers.aiconfigurator import SYSTEM_OF, read_family
from calibration.importers.mla_blocks import (
    TABLE_OF,
    TIMED_TWICE,
    as_fused,
    decode_blocks,
    flashinfer_prompts,
    surplus,
    timed_fused,
    with_older_products,
)
from calibration.operators.operators import Gemm
from catalogs.hardware.catalog import parse_hardware

BLOCK = [*("stage", "dtype", "kv_dtype", "n_heads", "sequences", "tokens", "context_tokens")]
FUSED = "tables:\n  {}:\n    norm_dispatch: vllm_c_eager_surrogate\n"


def chain_us(tokens: float) -> float:
    return 40.0 + 0.03 * tokens


def block(stage: str, batch: int, length: int, latency_us: float) -> dict[str, object]:
    step, isl = (length, 1) if stage == "decode" else (0, length)
    shape = {"num_heads": 16, "batch_size": batch, "isl": isl, "step": step}
    dtypes = {"mla_dtype": "bfloat16", "kv_cache_dtype": "fp8", "gemm_type": "fp8_block"}
    return {**shape, **dtypes, "latency": latency_us * 1e-3}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """B200 with the chain (0.22) and without (0.24); a block takes 50 us and 10 ns for each of its tokens."""
    system, chained, fused = TIMED_TWICE
    for version, with_chain in ((chained, 1.0), (fused, 0.0)):
        folder = tmp_path / system / "mla" / "vllm" / version
        folder.mkdir(parents=True)
        for stage, name in TABLE_OF.items():
            rows = []
            for batch in (1, 4, 16):
                for length in (64, 1024):
                    tokens = batch * (1 if stage == "decode" else length)
                    rows.append(block(stage, batch, length, 50.0 + 0.01 * tokens + with_chain * chain_us(tokens)))
            pd.DataFrame(rows).to_parquet(folder / f"{name}.parquet")
    return tmp_path


def timed(stage: str, tokens: float, seconds: float) -> pd.DataFrame:
    return pd.DataFrame({"stage": [stage], "tokens": [tokens], "seconds": [seconds]})


@pytest.mark.parametrize(
    ("stage", "tokens"), [("decode", 4.0), ("decode", 10.0), ("prefill", 1024.0), ("prefill", 3000.0)]
)
def test_the_surplus_of_the_tokens_is_taken_off(tables: Path, stage: str, tokens: float) -> None:
    found = as_fused(timed(stage, tokens, 400e-6), tables, "gb200", "0.24.0")
    assert float(found.seconds[0]) == pytest.approx(400e-6 - 1e-6 * chain_us(tokens))


def test_a_block_keeps_a_share_of_its_time(tables: Path) -> None:
    assert float(as_fused(timed("decode", 1.0, 42e-6), tables, "gb200", "0.24.0").seconds[0]) == pytest.approx(12.6e-6)


def test_rows_that_were_timed_with_the_norms_of_the_engine_stay(tables: Path) -> None:
    folder = tables / "gb200" / "mla" / "vllm" / "0.24.0"
    folder.mkdir(parents=True)
    (folder / "collection_meta.yaml").write_text(FUSED.format(TABLE_OF["decode"]))
    rows = pd.concat([timed("decode", 4.0, 400e-6), timed("prefill", 1024.0, 400e-6)], ignore_index=True)
    decode_s, prefill_s = as_fused(rows, tables, "gb200", "0.24.0").seconds
    assert decode_s == 400e-6
    assert prefill_s == pytest.approx(400e-6 - 1e-6 * chain_us(1024.0))


def test_rows_stay_without_tables_that_tell_the_surplus(tmp_path: Path) -> None:
    rows = timed("decode", 4.0, 400e-6)
    pd.testing.assert_frame_equal(as_fused(rows, tmp_path, "gb200", "0.24.0"), rows)


def test_the_public_notes_name_one_board(public_data) -> None:  # type: ignore[no-untyped-def]
    root = public_data / "profiles" / "aiconfigurator"
    boards = {
        b: root / SYSTEM_OF[b] / "mla" / "vllm" / "0.24.0" for b in ("b200", "b300", "gb200", "gb300", "h100", "h200")
    }
    for table in TABLE_OF.values():
        assert [b for b, folder in boards.items() if timed_fused(folder, table)] == ["b200"]


def test_the_public_surplus_depends_on_tokens_as_a_chain_of_kernels_does(public_data) -> None:  # type: ignore[no-untyped-def]
    root = public_data / "profiles" / "aiconfigurator"
    for table in TABLE_OF.values():
        found = surplus(root, table)
        assert found is not None
        assert np.interp(1.0, *found) == pytest.approx(44e-6, rel=0.1)  # launches
        assert np.interp(64.0, *found) == pytest.approx(64e-6, rel=0.1)
    prompts = surplus(root, TABLE_OF["prefill"])
    assert prompts is not None
    long_s = np.interp([8192.0, 65536.0], *prompts)
    assert (long_s[1] - long_s[0]) / (65536 - 8192) == pytest.approx(30e-9, rel=0.1)  # bytes


@pytest.mark.parametrize("board", ["gb200", "h100", "h200"])
def test_without_the_surplus_blocks_of_two_engines_take_equally_long(public_data, board: str) -> None:  # type: ignore[no-untyped-def]
    root, system = public_data / "profiles" / "aiconfigurator", SYSTEM_OF[board]
    rows, others = (read_family(root, system, "mla", engine) for engine in ("vllm", "trtllm"))
    assert rows is not None
    assert others is not None
    both = rows.assign(fused=as_fused(rows, root, system, "0.24.0").seconds).merge(
        others, on=BLOCK, suffixes=("", "_trt")
    )
    short = (both.stage == "decode") | (both.tokens <= 2048)
    both = both[short & (both.n_heads == 16) & (both.dtype == "fp8_block") & (both.sequences <= 256)]
    assert len(both) > 100
    assert float((both.seconds / both.seconds_trt).median()) > 1.3
    assert 0.85 < float((both.fused / both.seconds_trt).median()) < 1.05


HEADS = 16
PRODUCT_S = 10e-6  # of every product in the table


def projections(tokens: float, expands: bool) -> list[Gemm]:
    """The products of a block of 16 heads, by hand: DeepSeek-V3 on one of eight ranks."""
    shapes = [(1536 + 512 + 64, 7168), (HEADS * 192, 1536), (7168, HEADS * 128), (HEADS * 256, 512)]
    return [Gemm(tokens, n, k, FLASHINFER) for n, k in shapes[: 4 if expands else 3]]


@pytest.fixture
def products() -> pd.DataFrame:
    sizes = (256.0, 512.0, 1536.0, 2048.0, 7168.0)
    m, n, k = (a.ravel() for a in np.meshgrid((1.0, 64.0), sizes, sizes))
    return pd.DataFrame({"dtype": TABLED, "m": m, "n": n, "k": k, "seconds": PRODUCT_S, "source": "by hand"})


def test_decode_blocks_with_flashinfer_have_its_products_in_place_of_those_of_the_table(products: pd.DataFrame) -> None:
    attention = pd.DataFrame(
        {"num_heads": HEADS, "batch_size": [1, 64], "step": 100, "kv_cache_dtype": "fp8", "seconds": 30e-6,
         "source": "by hand", "kernel_source": "attention"}
    )  # fmt: skip
    absorbed = pd.DataFrame(
        {"op_name": ["mla_gen_pre"] * 2 + ["mla_gen_post"] * 2, "num_heads": HEADS, "num_tokens": [1, 64] * 2,
         "seconds": 3e-6}
    )  # fmt: skip
    b200 = parse_hardware("b200").accelerator
    rows = decode_blocks(attention, absorbed, products, b200)
    own, table = (rows[rows.dtype == d].sort_values("sequences") for d in (FLASHINFER, TABLED))
    for flashinfer_s, table_s, batch in zip(own.seconds, table.seconds, own.sequences, strict=True):
        law_s = sum(float(layer_s(op, b200)) for op in projections(batch, expands=False))
        assert flashinfer_s - table_s == pytest.approx(law_s - 3 * PRODUCT_S, rel=0.02)
    assert FLASHINFER not in set(decode_blocks(attention, absorbed, products, parse_hardware("h200").accelerator).dtype)


def test_prompts_with_flashinfer_lose_their_own_products_and_gain_four(products: pd.DataFrame) -> None:
    b200 = parse_hardware("b200").accelerator
    blocks = pd.DataFrame(
        {"stage": ["prefill", "prefill", "decode"], "dtype": [TABLED, "bf16", TABLED], "kv_dtype": "fp8",
         "n_heads": HEADS, "sequences": 1.0, "tokens": 64.0, "seconds": 200e-6, **REFERENCE_SHAPE}
    )  # fmt: skip
    (row,) = flashinfer_prompts(blocks, products, b200).itertuples()
    law_s = sum(float(layer_s(op, b200)) for op in projections(64.0, expands=True))
    assert (row.stage, row.dtype) == ("prefill", FLASHINFER)
    assert row.seconds == pytest.approx(200e-6 - 4 * PRODUCT_S + law_s, rel=0.02)


def test_blocks_with_older_products_lose_their_own_and_gain_the_older_ones(products: pd.DataFrame) -> None:
    """A product took 30 us and takes 10: a decode has three of them, a prompt four, and no other dtype any."""
    b200 = parse_hardware("b200").accelerator
    blocks = pd.DataFrame(
        {"stage": ["prefill", "prefill", "decode"], "dtype": [TABLED, "bf16", TABLED], "kv_dtype": "fp8",
         "n_heads": HEADS, "sequences": 64.0, "tokens": 64.0, "seconds": 200e-6, "source": "newer", **REFERENCE_SHAPE}
    )  # fmt: skip
    older = products.assign(seconds=3.0 * PRODUCT_S, source="older")
    rows = with_older_products(blocks, products, older, b200).set_index("stage")
    assert rows.seconds["prefill"] == pytest.approx(200e-6 + 4 * 2.0 * PRODUCT_S, rel=0.02)
    assert rows.seconds["decode"] == pytest.approx(200e-6 + 3 * 2.0 * PRODUCT_S, rel=0.02)
    assert set(rows.dtype) == {TABLED}
    assert set(rows.source) == {"older"}
