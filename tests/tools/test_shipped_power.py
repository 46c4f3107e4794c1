"""The fit of the power model: on synthetic boards, and its held-out error on the public H200 rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from shipped_power import fit_power, read_power_rows

from calibration.power.model import FITTED, GROUPS, PowerCurve, PowerModel, capped_w
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator

H200 = Accelerator("h200", "H200", 143771 * 2**20, 4.8e12, {"bf16": 989e12, "fp8": 1979e12}, 700.0, 75.0)
CURVE = PowerCurve(base=0.3, joules_per_byte=60e-12, compute=0.5)
MODEL = PowerModel(dict.fromkeys(GROUPS, CURVE))


def synthetic_rows(n: int = 4000, low_share: float = 0.3) -> pd.DataFrame:
    """Rows of a known board, a share of them too low, because something quieter ran in their window."""
    rng = np.random.default_rng(1)
    u_c, u_m = rng.uniform(0, 0.9, n), rng.uniform(0, 0.9, n)
    watts = np.minimum(CURVE.watts(u_c, u_m * H200.memory_bandwidth_bytes_per_s, H200), capped_w(H200))
    watts = np.where(rng.random(n) < low_share, watts * rng.uniform(0.3, 0.9, n), watts)
    columns = {
        "shape": [f"s{i % 40}" for i in range(n)],
        "seconds": 1e-3,
        "compute_fraction": u_c,
        "flops": u_c * 989e12 * 1e-3,
        "bytes": u_m * H200.memory_bandwidth_bytes_per_s * 1e-3,
        "watts": watts,
    }
    return pd.concat([pd.DataFrame({"group": g, **columns}) for g in (*FITTED, "other")], ignore_index=True)


def test_the_fit_recovers_a_known_board_through_one_sided_noise() -> None:
    model, errors = fit_power(synthetic_rows(), H200)
    grid = np.linspace(0.1, 0.9, 9)
    got, want = (m.watts("gemm", grid, grid[::-1].copy(), H200) for m in (model, MODEL))
    assert np.abs(got / want - 1).max() < 0.05
    assert errors.median_abs.max() < 0.05


def test_rows_of_windows_too_short_are_left_out() -> None:
    rows = synthetic_rows()
    idle = rows.assign(seconds=5e-6, watts=130.0, flops=rows.flops / 200, bytes=rows.bytes / 200)
    both = pd.concat([rows, idle], ignore_index=True)
    assert fit_power(both, H200)[0].curves == fit_power(rows, H200)[0].curves


def test_held_out_error_on_the_public_h200_rows(public_data: Path) -> None:
    h200 = parse_hardware("h200").accelerator
    model, errors = fit_power(read_power_rows(public_data / "profiles/aiconfigurator/h200_sxm", h200), h200)
    by_group = errors.set_index("group").median_abs
    assert by_group["gemm"] < 0.03
    assert by_group["gemm_fp8_block"] < 0.03
    assert by_group["moe"] < 0.02
    assert by_group["mla_decode"] < 0.12
    assert by_group["mla_prefill"] < 0.1
    assert by_group["decode_attention"] < 0.08
    assert by_group["prefill_attention"] < 0.12
    # A large bf16 product runs at the board's limit; streaming weights alone stays below it.
    assert model.watts("gemm", np.array(0.7), np.array(0.1), h200) > 0.97 * h200.tdp_w
    assert model.watts("gemm", np.array(0.01), np.array(0.7), h200) < 0.8 * h200.tdp_w
