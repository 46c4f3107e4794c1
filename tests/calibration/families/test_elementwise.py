"""Memory-bound kernels: decode costs a launch, prefill costs bandwidth, kinds follow the one accelerator with both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.families.elementwise import RATIO_TO_QUANTIZE, ElementwiseModel
from calibration.importers import llmservingsim
from calibration.importers.aiconfigurator import SYSTEM_OF, read_family
from calibration.operators.operators import SORT_BYTES_PER_LOGIT, Elementwise
from calibration.operators.roofline import roofline_s
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator

H100 = parse_hardware("h100").accelerator


def quantize_only() -> ElementwiseModel:
    """2 us, then 3 TB/s."""
    size = 2.0 ** np.arange(12, 30)
    rows = pd.DataFrame({"kind": "quantize", "tokens": size, "bytes_per_token": 1.0, "seconds": 2e-6 + size / 3e12})
    return ElementwiseModel.fit(rows, H100)


def test_a_kind_without_rows_follows_quantize_by_the_stated_ratios() -> None:
    model = quantize_only()
    small, origin = model.cost(Elementwise("norm", 1.0, 4096.0), H100)
    assert float(small) == pytest.approx(1.2 * 2e-6, rel=0.05)
    assert float(origin) == 2.0
    large = float(model.cost(Elementwise("norm", 1.0, 3e8), H100)[0])  # slower streaming stops at device memory
    assert 3e8 / H100.memory_bandwidth_bytes_per_s < large < 1.1 * 3e8 / (0.9 * H100.memory_bandwidth_bytes_per_s)
    assert float(model.cost(Elementwise("kv_write", 8.0, 2e3), H100)[0]) == float(
        model.cost(Elementwise("rotary", 8.0, 2e3), H100)[0]
    )
    with pytest.raises(InputError, match="unknown kind"):
        model.cost(Elementwise("telepathy", 1.0, 1.0), H100)


def test_sorting_logits_is_limited_by_the_memory_and_from_128_rows_on_by_the_multiprocessors() -> None:
    """Published: 12 to 18 us a row of 131,072 words (H200 where named), 0.1 ms for a single short one."""
    h200 = parse_hardware("h200").accelerator
    rows = pd.DataFrame({"kind": "quantize", "tokens": [1e3, 1e9], "bytes_per_token": 1.0, "seconds": [2e-6, 4e-4]})
    model = ElementwiseModel.fit(rows, h200)

    def sort_s(rows: float, words: int, on: Accelerator = h200) -> float:
        return float(model.cost(Elementwise("sort", rows, words * SORT_BYTES_PER_LOGIT), on)[0])

    assert 12e-6 < sort_s(128, 131072) / 128 < 18e-6
    assert 0.08e-3 < sort_s(1, 32768) < 0.14e-3
    assert sort_s(512, 262144) - sort_s(256, 262144) == pytest.approx(2 * (sort_s(512, 131072) - sort_s(256, 131072)))
    for count, published_s in ((64, 1.0e-3), (128, 2.27e-3), (512, 6.15e-3)):
        assert sort_s(count, 131072) == pytest.approx(published_s, rel=0.09)
    assert sort_s(127, 131072, H100) > 1.3 * sort_s(127, 131072)  # less bandwidth
    assert sort_s(128, 131072, H100) == sort_s(128, 131072)  # as many multiprocessors
    assert h200.multiprocessors == H100.multiprocessors == 132
    half = replace(h200, multiprocessors=66)
    extra = sort_s(512, 131072, half) - sort_s(512, 131072)
    assert extra == pytest.approx(sort_s(1024, 131072) - sort_s(512, 131072))  # half of them: twice the rows each
    unknown = replace(h200, multiprocessors=0)
    assert sort_s(512, 131072, unknown) - sort_s(256, 131072, unknown) == pytest.approx(
        256 / 64 * (sort_s(127, 131072) - sort_s(63, 131072))
    )


def test_where_only_a_kind_without_a_ratio_was_measured_the_others_follow_the_one_it_resembles() -> None:
    """A short profile may reach one kind only."""
    size = 2.0 ** np.arange(12, 30)
    rows = pd.DataFrame({"kind": "routing", "tokens": size, "bytes_per_token": 1.0, "seconds": 2e-6 + size / 1e12})
    model = ElementwiseModel.fit(rows, H100)
    assert float(model.cost(Elementwise("norm", 1.0, 4096.0), H100)[0]) == pytest.approx(2e-6, rel=0.05)
    assert float(model.cost(Elementwise("activation", 1.0, 4096.0), H100)[0]) == pytest.approx(
        1.3 / 1.2 * 2e-6, rel=0.05
    )


def test_monotone_in_bytes_and_vectors_equal_scalars() -> None:
    model = quantize_only()
    facts, arrays = model.to_parts()
    again = ElementwiseModel.from_parts(json.loads(json.dumps(facts)), arrays)
    tokens = np.exp2(np.arange(20, dtype=np.float64))
    for kind in RATIO_TO_QUANTIZE:
        together, _ = again.cost(Elementwise(kind, tokens, 16384.0), H100)
        assert (np.diff(together) >= 0).all()
        assert [float(model.cost(Elementwise(kind, t, 16384.0), H100)[0]) for t in tokens] == together.tolist()


def test_another_accelerator_keeps_the_floor_and_scales_the_stream() -> None:
    model, a100 = quantize_only(), parse_hardware("a100-80gb").accelerator
    small, large = Elementwise("quantize", 1.0, 4096.0), Elementwise("quantize", 1.0, 1e9)
    assert float(model.cost(small, a100)[0]) == pytest.approx(2e-6, rel=0.05)
    slower = float(model.cost(large, a100)[0] / model.cost(large, H100)[0])
    assert slower == pytest.approx(H100.memory_bandwidth_bytes_per_s / a100.memory_bandwidth_bytes_per_s, rel=0.02)


@pytest.mark.parametrize("hardware", ["h100", "h200", "b200", "l40s", "rtxpro6000"])
def test_public_quantize_tables(public_data: Path, hardware: str) -> None:
    """Decode-sized kernels take 1.5 to 3 us; nothing beyond the cache beats device memory."""
    accelerator = parse_hardware(hardware).accelerator
    rows = read_family(public_data / "profiles" / "aiconfigurator", SYSTEM_OF[hardware], "elementwise")
    assert rows is not None
    model = ElementwiseModel.fit(rows, accelerator)
    for kind in ("norm", "activation", "rotary", "quantize"):
        assert 1.4e-6 < float(model.cost(Elementwise(kind, 32.0, 16384.0), accelerator)[0]) < 4e-6
    large = Elementwise("norm", np.array([3.0, 10.0]) * 1e4, 32768.0)
    outside = roofline_s(large, accelerator) - accelerator.cache_bytes / accelerator.memory_bandwidth_bytes_per_s
    assert (model.cost(large, accelerator)[0] > outside).all()


def test_the_ratios_are_those_of_the_accelerator_with_both(public_data: Path) -> None:
    """Where kinds and quantize were both measured, the stated ratios predict every kind within a third."""
    accelerator = parse_hardware("rtxpro6000").accelerator
    profiles = public_data / "profiles"
    quantize = read_family(profiles / "aiconfigurator", "rtx_pro_6000_server", "elementwise")
    kinds = llmservingsim.import_profiles(profiles / "llmservingsim" / "perf", "rtxpro6000")["elementwise"]
    assert quantize is not None
    model = ElementwiseModel.fit(quantize, accelerator)
    size = (kinds.tokens * kinds.bytes_per_token).to_numpy()
    for kind, part in kinds[(size > 16e3) & (size < 64e6)].groupby("kind"):
        if kind == "sampling":
            continue
        part_bytes = (part.tokens * part.bytes_per_token).to_numpy(dtype=np.float64)
        got = model.cost(Elementwise(str(kind), part_bytes, 1.0), accelerator)[0]
        assert float(np.median(np.abs(got / part.seconds.to_numpy() - 1))) < 0.35, kind


def test_selecting_entries_takes_time_for_each_row_and_each_score() -> None:
    """1,000 rows of 10,000 scores of four bytes: 30 us and 35 us; never less than reading the scores takes."""
    seconds, origin = quantize_only().cost(Elementwise("select", 1e3, 4e4), H100)
    assert float(seconds) == pytest.approx(65e-6)
    assert float(origin) == 2.0
    slow = replace(H100, memory_bandwidth_bytes_per_s=1e11)
    assert float(quantize_only().cost(Elementwise("select", 1e3, 4e4), slow)[0]) == pytest.approx(400e-6)


def test_few_rows_of_a_selection_take_as_long_as_one() -> None:
    """One block has one row: 9.5 us and 0.39 ns for each of 10,000 scores, alone or beside 63 others."""
    one, few = quantize_only().cost(Elementwise("select", np.array([1.0, 64.0]), 4e4), H100)[0]
    assert (float(one), float(few)) == (pytest.approx(13.4e-6), pytest.approx(13.4e-6))


def test_scoring_streams_the_keys_after_one_launch() -> None:
    """2 us, the floor of a kernel, and 300 MB at nine tenths of 3.35 TB/s."""
    seconds, origin = quantize_only().cost(Elementwise("score", 100.0, 3e6), H100)
    assert float(seconds) == pytest.approx(2e-6 + 3e8 / (0.9 * 3.35e12), rel=1e-2)
    assert float(origin) == 2.0


def test_selecting_entries_takes_as_long_as_public_rows_of_it(public_data: Path) -> None:
    """In the median of the rows that take 20 us and more."""
    tables = public_data / "profiles" / "aiconfigurator"
    for hardware in ("b200", "gb200-nvl72", "h100", "h200"):
        system = SYSTEM_OF.get(hardware, "gb200")
        file = next(tables.glob(f"{system}/sparse_attention/sglang/*/glm5_topk_module_perf.parquet"))
        rows = pd.read_parquet(file)
        selecting = (rows.isl + rows.step > 2048) & (rows.latency > 0.02)
        rows = rows[(rows.score_mode == "flat") & selecting]
        tokens = (rows.batch_size * rows.isl).to_numpy(float)
        scores = (rows.isl + 1) / 2 + rows.step
        op = Elementwise("select", tokens, 4.0 * scores.to_numpy(float))
        got = quantize_only().cost(op, parse_hardware(hardware).accelerator)[0]
        assert abs(float(np.median(got / (rows.latency.to_numpy(float) * 1e-3) - 1))) < 0.2, hardware


def test_selecting_for_few_tokens_takes_as_long_as_public_rows_of_it(public_data: Path) -> None:
    """The rows of at most 64 tokens, one block each: within 15 % in the median, and none 1.5 times as long."""
    tables = public_data / "profiles" / "aiconfigurator"
    for hardware in ("b200", "gb200", "h100", "h200"):
        file = next(tables.glob(f"{SYSTEM_OF[hardware]}/sparse_attention/sglang/*/glm5_topk_module_perf.parquet"))
        rows = pd.read_parquet(file)
        rows = rows[(rows.isl == 1) & (rows.batch_size <= 64) & (rows.step >= 2048) & (rows.score_mode == "flat")]
        op = Elementwise("select", rows.batch_size.to_numpy(float), 4.0 * (rows.step.to_numpy(float) + 1.0))
        ratio = quantize_only().cost(op, parse_hardware(hardware).accelerator)[0] / (
            1e-3 * rows.latency.to_numpy(float)
        )
        assert abs(float(np.median(ratio)) - 1) < 0.15, hardware
        assert 1 / 1.5 < float(ratio.min()) <= float(ratio.max()) < 1.5, hardware
