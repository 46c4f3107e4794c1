"""The efficiencies of scans in a table that is written here."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from scan_efficiency import lines, scans

#: 1,024 sequences with 32 heads of 128 x 128 in fp32 move 4.3 GB of state and 33.6 MB of inputs and outputs.
STATE_S = 1024 * (2 * 32 * 128 * 128 * 4 + 2 * 32 * 256 * 2) / 3.35e12


def _row(kernel: str, phase: str, sequences: int, seconds: float) -> dict[str, object]:
    sizes = {"num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32, "head_v_dim": 128}
    about = {"kernel_source": kernel, "phase": phase, "batch_size": sequences, "num_tokens": sequences}
    return {**about, **sizes, "latency": seconds * 1e3}


def test_half_the_bandwidth_is_half_and_small_rows_only_give_the_least_time(tmp_path: Path) -> None:
    table = pd.DataFrame(
        [
            _row("fused_recurrent_gated_delta_rule_packed_decode", "generation", 1024, 2 * STATE_S),
            _row("fused_recurrent_gated_delta_rule_packed_decode", "generation", 1, 4e-6),
            _row("causal_conv1d_update", "generation", 1024, 1e-6),
        ]
    )
    share, least_s, n = scans(table, "h100", "decode")
    assert (share, least_s, n) == (pytest.approx(0.5, rel=1e-3), pytest.approx(4e-6), 1)
    assert scans(table, "h100", "prefill") == (0.0, 0.0, 0)
    folder = tmp_path / "h100_sxm/linear_attention/vllm/0.24.0"
    folder.mkdir(parents=True)
    table.to_parquet(folder / "gdn_perf.parquet")
    assert [line.split()[:4] for line in lines(tmp_path)] == [["h100", "vllm", "0.24.0", "decode"]]
