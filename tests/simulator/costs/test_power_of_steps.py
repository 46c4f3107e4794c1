"""Power of whole steps: what public serving runs of several models draw, and the board's limit."""

from __future__ import annotations

import pytest

from calibration.bundles.bundle import load_bundle
from calibration.power.model import capped_w
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from simulator.costs.compile import compile_step_cost


def share_of_limit(deployment: Deployment, decodes: int, context: int, prefill: int = 0) -> float:
    """Mean power of one step over the accelerator's limit."""
    resolved = resolve(deployment)
    cost = compile_step_cost(resolved, load_bundle(resolved.hardware.accelerator))
    pairs = prefill * prefill / 2.0
    chunks = 1 if prefill else 0
    shape = BatchShape(prefill, pairs, chunks, decodes, decodes * context, context, decodes + chunks)
    seconds = cost.cycle_s(shape)
    log = StepLog()
    log.add(0.0, 1, shape, seconds, 0.0, seconds)
    return cost.totals(log).joules_per_accelerator / seconds / resolved.hardware.accelerator.tdp_w


SMALL = Deployment(model="llama3.1-8b", hardware="h100")
LARGE = Deployment(model="llama3.1-405b-fp8", hardware="h100x8", tensor_parallel=8)


@pytest.mark.parametrize("decodes", [8, 64, 256])
def test_405b_over_eight_h100_decodes_at_60_to_87_percent_of_the_limit(decodes: int) -> None:
    assert 0.57 < share_of_limit(LARGE, decodes, 600) < 0.9


def test_a_full_batch_with_prompts_in_it_runs_near_the_limit() -> None:
    """8B at 512 sequences: 98 % measured; prompts are computed in most of its steps."""
    few, many = share_of_limit(SMALL, 8, 600), share_of_limit(SMALL, 512, 800, prefill=700)
    assert few < 0.75
    assert many > 0.93


def test_a_step_of_products_is_held_to_the_limit() -> None:
    unit = resolve(SMALL).hardware.accelerator
    assert share_of_limit(SMALL, 0, 0, prefill=8192) == pytest.approx(capped_w(unit) / unit.tdp_w, rel=1e-6)
