"""Fitting rows of an invented accelerator finds its law; the gate catches lies; reports are of unseen groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibration.bundles.bundle import load_bundle
from calibration.families.gemm import GemmModel
from calibration.fitting import cross_validation
from calibration.fitting.fit import fit_bundle
from calibration.operators.operators import DecodeAttention, Gemm, PrefillAttention
from calibration.operators.roofline import roofline_s
from calibration.rows.dataset import check_rows, read_rows, rows_sha256, write_rows
from calibration.rows.physics_check import gate
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from tests.calibration.invented_accelerator import decode_rows, gemm_rows, law, prefill_rows

ACC = Accelerator("h100", "invented", 80e9, 3e12, {"bf16": 1e15, "fp8": 2e15}, 700.0, 100.0, cache_bytes=50 * 2**20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle")
    tables = {"gemm": gemm_rows(ACC), "decode_attention": decode_rows(ACC), "prefill_attention": prefill_rows(ACC)}
    fit_bundle(tables, ACC, out)
    return out


def test_the_law_is_found_off_the_grid(folder: Path) -> None:
    bundle = load_bundle(ACC, folder)
    ops = [
        Gemm(100.0, 6144.0, 2048.0, "bf16"),
        Gemm(3000.0, 8192.0, 8192.0, "bf16"),
        DecodeAttention(48.0, 48.0 * 1500, 1500.0, 32, 8, 128, "bf16"),
        PrefillAttention(2.0, 6000.0, 9e6, 32, 8, 128, "bf16"),
    ]
    for op in ops:
        cost = bundle.cost(op)
        assert float(cost.seconds) == pytest.approx(float(law(roofline_s(op, ACC))), rel=0.06), op
        assert float(cost.origin) == 1.0


def test_measured_points_are_reproduced(folder: Path) -> None:
    cost = load_bundle(ACC, folder).cost(Gemm(64.0, 4096.0, 4096.0, "bf16"))
    want = law(roofline_s(Gemm(64.0, 4096.0, 4096.0, "bf16"), ACC))
    assert float(cost.seconds) == pytest.approx(float(want), rel=2e-3)
    assert float(cost.origin) == 0.0


def test_uneven_decodes_cost_more_than_even_ones(folder: Path) -> None:
    bundle = load_bundle(ACC, folder)
    even = bundle.cost(DecodeAttention(16.0, 16000.0, 1000.0, 32, 8, 128, "bf16")).seconds
    skewed = bundle.cost(DecodeAttention(16.0, 16000.0, 8000.0, 32, 8, 128, "bf16")).seconds
    all_long = bundle.cost(DecodeAttention(16.0, 128000.0, 8000.0, 32, 8, 128, "bf16")).seconds
    assert even < skewed < 0.5 * all_long


def test_rows_faster_than_the_hardware_are_rejected_and_counted() -> None:
    rows = gemm_rows(ACC)
    rows.loc[rows.index[:3], "seconds"] = 1e-12
    big = int(np.flatnonzero((rows.m == 4096) & (rows.n == 16384) & (rows.k == 16384))[0])
    rows.loc[big, "seconds"] *= 0.5
    kept, report = gate("gemm", rows, ACC)
    assert report.n_rejected == 4
    assert report.over_peak_flops >= 1
    assert len(kept) == len(rows) - 4
    assert gate("gemm", gemm_rows(ACC), ACC)[1].n_rejected == 0


def test_small_operands_may_come_from_cache_but_are_priced_from_memory() -> None:
    rows = gemm_rows(ACC)
    cached = (rows.m == 1) & (rows.n == 1024) & (rows.k == 4096)  # 8 MB: inside an H100's 50 MB
    bound = roofline_s(Gemm(1.0, 1024.0, 4096.0, "bf16"), ACC)
    rows.loc[cached, "seconds"] = float(bound) / 2.0
    kept, report = gate("gemm", rows, ACC)
    assert report.n_rejected == 0
    seconds, _ = GemmModel.fit(kept, ACC).cost(Gemm(1.0, 1024.0, 4096.0, "bf16"), ACC)
    assert float(seconds) > float(bound)


def test_held_out_groups_are_not_in_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that only remembers shapes must look bad: the planted fault is a fit that saw its test rows."""
    rows = gemm_rows(ACC)
    seen: list[set[tuple[float, float]]] = []
    fit = GemmModel.fit.__func__  # type: ignore[attr-defined]

    def spy(cls: type[GemmModel], table: object, accelerator: Accelerator) -> GemmModel:
        seen.append({(n, k) for n, k in zip(table.n, table.k, strict=True)})  # type: ignore[attr-defined]
        return fit(cls, table, accelerator)

    monkeypatch.setattr(GemmModel, "fit", classmethod(spy))
    errors = cross_validation.cross_validate("gemm", rows, ACC)
    every = {(n, k) for n, k in zip(rows.n, rows.k, strict=True)}
    folds = seen[:-1]  # the last fit is the "beyond" cut
    assert len(folds) > 1
    assert set().union(*[every - s for s in folds]) == every
    assert all(every - s for s in folds)
    assert {e.region for e in errors} == {"inside", "beyond"}
    assert errors[0].n == len(rows)


def test_few_shapes_still_fit() -> None:
    rows = gemm_rows(ACC)
    sparse = rows[((rows.n == 4096) & (rows.k == 4096)) | ((rows.n == 16384) & (rows.k == 4096))]
    op = Gemm(64.0, 8192.0, 4096.0, "bf16")
    seconds, _ = GemmModel.fit(sparse, ACC).cost(op, ACC)
    assert float(seconds) == pytest.approx(float(law(roofline_s(op, ACC))), rel=0.1)


@pytest.mark.parametrize("dtype", ["fp8", "int8", "int4", "fp4", "fp8_block"])
def test_dtypes_nobody_measured_are_said_to_be_borrowed(folder: Path, dtype: str) -> None:
    bundle = load_bundle(ACC, folder)
    op = Gemm(8.0, 4096.0, 4096.0, dtype)
    assert float(bundle.cost(op).origin) == 2.0
    assert any(dtype in line for line in bundle.notices_for([op]))
    assert not bundle.notices_for([Gemm(8.0, 4096.0, 4096.0, "bf16")])
    assert bundle.cost(op).seconds < bundle.cost(Gemm(8.0, 4096.0, 4096.0, "bf16")).seconds


def test_int4_is_no_faster_than_bf16_where_arithmetic_binds(folder: Path) -> None:
    bundle = load_bundle(ACC, folder)
    big = {d: float(bundle.cost(Gemm(4096.0, 16384.0, 16384.0, d)).seconds) for d in ("bf16", "int4", "fp16")}
    assert big["int4"] == pytest.approx(big["bf16"] / 0.9, rel=1e-6)
    assert big["fp16"] == big["bf16"]


def test_rows_travel_through_parquet_and_bad_rows_are_refused(tmp_path: Path) -> None:
    rows = gemm_rows(ACC)
    write_rows(tmp_path, {"gemm": rows})
    assert rows_sha256(read_rows(tmp_path)["gemm"]) == rows_sha256(check_rows("gemm", rows))
    assert rows_sha256(rows.sample(frac=1.0, random_state=0)) == rows_sha256(rows)
    with pytest.raises(InputError, match="lack a column"):
        check_rows("gemm", rows.drop(columns="k"))
    with pytest.raises(InputError, match="positive seconds"):
        check_rows("gemm", rows.assign(seconds=0.0))
    (tmp_path / "moe.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path)
