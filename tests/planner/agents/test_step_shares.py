"""The steps in which output tokens are generated, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.agents.step_shares import NO_STEPS, StepShares
from simulator.cluster.simulate import run_rules
from tests.simulator.worlds import Linear, requests, rules


def test_tokens_of_steps_with_and_without_prompts_differ_by_hand() -> None:
    """Steps take 1 s and 1/8 s for each prompt token. A prompt of 16 tokens joins a request that decodes.

    The first request: its prompt ends at 1.5 s, then decodes. The second, of 16 tokens, is computed in one step of 3 s
    with one decode in the same step; then both decode together.
    """
    work = requests([0.0, 2.0], [4, 16], [6, 3])
    run = run_rules(rules(), Linear(prompt_token_s=0.125), work)
    found = StepShares.of(run, (0.0, 100.0))
    decodes = (work.output_tokens - 1).sum()
    assert found.mixed_share == pytest.approx(1 / decodes)
    assert found.mixed_s == 3.0
    assert found.decode_s == 1.0
    assert 1 < found.decodes < 2
    share = "14 % of the output tokens come from steps that also compute prompts"
    assert found.words.startswith(f"{share}, and such a step takes 3 s")
    assert StepShares.of(run, (200.0, 300.0)) == NO_STEPS
    assert NO_STEPS.words == ""
    mean = StepShares.mean([found, NO_STEPS])
    assert mean.mixed_s == 1.5


def test_steps_without_prompts_alone_are_described_alone() -> None:
    run = run_rules(rules(), Linear(), requests([0.0], [4], [6]))
    found = StepShares.of(run, (0.0, 100.0))
    assert (found.mixed_s, found.mixed_share, found.decode_s) == (0.0, 0.0, 1.0)
    assert found.words == "steps without prompts take 1 s (1 tokens/s)"
    assert np.isclose(found.decodes, 1.0)
