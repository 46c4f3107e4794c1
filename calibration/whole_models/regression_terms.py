"""Features of rows: logarithms of architecture, workload and work columns, and physical terms for linear models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from calibration.whole_models.physics import ARCHITECTURE, TERMS
from calibration.whole_models.workloads import WORKLOADS
from catalogs.arrays import FloatArray

LENGTHS: Final = ("batch", "input_tokens", "output_tokens")

WORK: Final = (*TERMS, "roofline_s")

#: Columns that a row needs for a prediction.
NEEDED: Final = (*LENGTHS, *ARCHITECTURE, *WORK, "architecture", "workload")

#: Columns from which the physical terms are computed.
TERM_COLUMNS: Final = ("output_tokens", "decoder_layers", "encoder_layers", "weight_bytes", *TERMS)

#: Physical terms of each target for the linear models, where 1 stands for a constant.
PHYSICS: Final[dict[str, tuple[str, ...]]] = {
    "total_s": (
        *("prefill_flops", "decode_flops", "prefill_weight_bytes", "decode_weight_bytes", "decode_kv_bytes"),
        *("kv_cache_bytes", "activation_bytes", "score_bytes", "decode_logits_bytes", "layer_calls", "calls", "1"),
    ),
    "prefill_s": (
        *("prefill_flops", "prefill_weight_bytes", "kv_cache_bytes", "activation_bytes", "score_bytes"),
        *("logits_bytes", "layers", "1"),
    ),
    "decode_s_per_token": (
        *("step_flops", "step_weight_bytes", "step_kv_bytes", "logits_bytes", "decoder_layers", "1"),
    ),
    "peak_memory_bytes": (
        *("weight_bytes", "kv_cache_bytes", "kv_layer_bytes", "activation_bytes", "score_bytes", "logits_bytes", "1"),
    ),
}


def log_features(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one column per feature: log2 of positive numbers, and 0 or 1 for architectures and workloads."""
    found = {c: np.log2(np.maximum(rows[c].to_numpy(np.float64), 1e-12)) for c in (*LENGTHS, *WORK)}
    found |= {c: np.log2(rows[c].to_numpy(np.float64) + 1.0) for c in ARCHITECTURE}
    found["encoder-decoder"] = (rows["architecture"] == "encoder-decoder").to_numpy(np.float64)
    found |= {w.name: (rows["workload"] == w.name).to_numpy(np.float64) for w in WORKLOADS}
    return pd.DataFrame(found, index=rows.index)


def physical_terms(rows: pd.DataFrame | Mapping[str, FloatArray], target: str) -> FloatArray:
    """Return the physical terms of a target, Shape (rows, terms).

    The terms are non-negative, and the target is their weighted sum. `rows` is a table or a mapping of columns.
    """
    c = {name: np.asarray(rows[name], dtype=np.float64) for name in TERM_COLUMNS}
    steps = np.maximum(c["output_tokens"] - 1.0, 1.0)
    derived = {
        "1": np.ones(len(steps)),
        "calls": c["output_tokens"],
        "layers": c["decoder_layers"] + c["encoder_layers"],
        "step_flops": c["decode_flops"] / steps,
        "step_weight_bytes": c["decode_weight_bytes"] / steps,
        "step_kv_bytes": c["decode_kv_bytes"] / steps,
        "decode_logits_bytes": c["logits_bytes"] * c["output_tokens"],
        "kv_layer_bytes": c["kv_cache_bytes"] / np.maximum(c["decoder_layers"], 1.0),
    }
    return np.stack([(c | derived)[name] for name in PHYSICS[target]], axis=1)
