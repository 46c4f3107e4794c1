"""Steps of a real engine (Llama-2-70B, TP4, H100) against the compiled cost; public data for host terms, slow suite."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

import pytest

from calibration.bundles.bundle import load_bundle
from simulator.core.batch import BatchShape
from simulator.costs.compile import compile_step_cost
from tests.simulator.plants import resolved


@pytest.mark.slow
def test_decode_steps_of_a_real_engine(public_data: Path) -> None:
    """Contexts are not in the file: prompts of this data set average some 580 tokens, outputs 248."""
    d = resolved("llama-2-70b", "h100x4", tensor_parallel=4, max_num_seqs=128, max_num_batched_tokens=2048)
    cost = compile_step_cost(d, load_bundle(d.hardware.accelerator))
    errors = []
    with (public_data / "h100_steps" / "llama2_70b_tp4_step_cycles.csv").open() as file:
        for row in csv.DictReader(file):
            n = int(row["num_decode_reqs"])
            if row["num_prefill_reqs"] == "0" and n:
                shape = BatchShape(decodes=n, decode_context_sum=n * 700, decode_context_max=830, logits=n)
                errors.append(cost.cycle_s(shape) * 1e6 / float(row["cycle_us"]) - 1.0)
    assert len(errors) > 800
    assert abs(median(errors)) < 0.06
    assert median(abs(e) for e in errors) < 0.06
