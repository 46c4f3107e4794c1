"""`plan improve` on a small deployment: what it recommends, and what it leaves as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli.main import app

pytestmark = pytest.mark.slow

LOAD = ["--hw", "h100x1", "--slo", "ttft.p99=2s,tpot.p99=60ms", "--input-tokens", "512", "--output-tokens", "64"]

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def run(tmp_path: Path, command: str, *more: str) -> tuple[int, dict]:
    out = tmp_path / "improve.json"
    found = CliRunner().invoke(app, ["improve", "--from-command", command, *LOAD, *more, "--json", str(out)])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.output
    return found.exit_code, json.loads(out.read_text())


def test_few_seats_are_found_to_be_the_limit(tmp_path: Path) -> None:
    """Four sequences of 64 tokens at 10 ms cannot carry 20 requests/s, which need about 13 at once."""
    code, found = run(tmp_path, f"vllm serve {MODEL} --max-num-seqs 4 --port 8001", "--rate", "20")
    assert code == 0
    assert not found["today"]["meets"]
    assert found["feasible"]
    assert found["improves"]
    made = {change["what"]: change for change in found["changes"] if change["recommended"]}
    assert "max_num_seqs" in made
    assert made["max_num_seqs"]["alone"]["meets"]
    assert made["max_num_seqs"]["alone"]["capacity_requests_per_s"] > found["today"]["capacity_requests_per_s"]
    assert "--port 8001" in found["new_command"]
    assert found["saves"]["capacity"] > 0


def test_the_new_command_needs_no_further_change(tmp_path: Path) -> None:
    _, first = run(tmp_path, f"vllm serve {MODEL} --max-num-seqs 4", "--rate", "20")
    code, second = run(tmp_path, first["new_command"], "--rate", "20")
    assert code == 0
    assert second["today"]["meets"]
    assert second["today"]["usd_per_hour"] == second["improved"]["usd_per_hour"]
