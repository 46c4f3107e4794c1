"""Rows of invented runs: times and memory follow a planted law of the work, with noise of a given size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from calibration.whole_models.physics import MachineRates, known_columns
from calibration.whole_models.subjects import DEFAULTS, load_subject
from calibration.whole_models.table import frame
from calibration.whole_models.workloads import BATCHES, Point, points
from catalogs.hardware.specs import Accelerator

UNIT = Accelerator("local", "Invented CPU", 16e9, 20e9, {"bf16": 2e11, "fp32": 1e11}, 50.0, 5.0, kind="cpu")
RATES = MachineRates.of(UNIT)


def work(point: Point) -> dict[str, Any]:
    """The columns known before anything is measured."""
    return known_columns(load_subject(point.model).spec, point, RATES, "fp32") | {"device": "cpu"}


def law(row: Mapping[str, float]) -> dict[str, float]:
    """Prefill at 80 GFLOP/s, decode at 8 GB/s or 80 GFLOP/s, 50 us a layer, memory of weights, cache and twice the
    activations."""
    prefill = row["prefill_flops"] / 80e9 + 5e-5 * (row["decoder_layers"] + row["encoder_layers"])
    calls = 5e-5 * row["decoder_layers"] * (row["output_tokens"] - 1)
    decode = row["decode_flops"] / 80e9 + (row["decode_weight_bytes"] + row["decode_kv_bytes"]) / 8e9 + calls
    memory = row["weight_bytes"] + row["kv_cache_bytes"] + 2 * row["activation_bytes"] + row["logits_bytes"] + 3e7
    return {
        "prefill_s": prefill,
        "decode_s_per_token": decode / (row["output_tokens"] - 1),
        "total_s": prefill + decode,
        "peak_memory_bytes": memory,
        "bandwidth_bytes_per_s": row["least_bytes"] / (prefill + decode),
    }


def measured(point: Point, noise: float = 0.0, rng: np.random.Generator | None = None) -> dict[str, Any]:
    """A row as a session holds it."""
    row = work(point)
    draw = (rng or np.random.default_rng(0)).lognormal(0.0, noise)
    found = {c: v * draw for c, v in law(row).items()}
    return {**row, **found, "status": "ok", "reason": "", "contended": False, "elapsed_s": 1.0}


def rows(
    noise: float = 0.02, models: Sequence[str] = DEFAULTS, keep: Callable[[Point], bool] = lambda _p: True
) -> pd.DataFrame:
    """Rows of every default point `keep` says yes to."""
    rng = np.random.default_rng(7)
    return frame([measured(p, noise, rng) for p in points(models, BATCHES, 512, (16,)) if keep(p)])
