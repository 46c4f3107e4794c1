"""Generation of T5-small and BART-base, really measured in torch on this machine, against the simulation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

#: The largest relative error of a simulation.
WITHIN = 0.15


@pytest.mark.slow
def test_generation_is_predicted_from_three_minutes_of_calibration(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    command = [sys.executable, str(ROOT / "benchmarks/text_generation.py"), "--json", str(tmp_path / "rows.json")]
    subprocess.run([*command, "--out", str(tmp_path)], check=True, cwd=ROOT)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 8
    missed = {(x["model"], x["workload"]): (x["error"], x["others_share"]) for x in rows if abs(x["error"]) > WITHIN}
    assert not missed, "(error, share of the processors that others used)"
