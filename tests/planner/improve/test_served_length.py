"""An improved deployment holds the context length that is served today, whether or not the command states it."""

from __future__ import annotations

import pytest

from catalogs.launch.reading.read import read_command
from planner.evaluation.multi_hardware import open_evaluator
from planner.improve.changes import length_notes, served_length
from planner.improve.improver import request_for
from planner.problem.scenario import request_of_keys
from planner.space.candidates import candidates

LARGE = "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 8"


@pytest.mark.parametrize(
    ("command", "hardware", "served", "note"),
    [
        (LARGE, "h100x8", 131_072, "the context length of 131,072 tokens that is served today is kept"),
        (f"{LARGE} --max-model-len 16384", "h100x8", 16_384, ""),
        ("vllm serve Qwen/Qwen2.5-32B-Instruct --dtype bfloat16", "h100x1", None, "are kept"),
        ("vllm serve meta-llama/Llama-3.1-70B-Instruct", "h100x1", None, ""),
    ],
)
def test_the_length_of_today_is_fixed(command: str, hardware: str, served: int | None, note: str) -> None:
    read = read_command(command, hardware)
    length = served_length(read.deployment)
    if served is not None:
        assert length == served
    assert request_for(read, {})["fixed"].get("max_model_len") == length
    notes = " ".join(length_notes(read.deployment))
    assert (note in notes) if note else not notes


def test_what_cannot_hold_the_length_is_no_candidate() -> None:
    """A cache that only holds the requests of the workload does not hold a stated length."""
    request = request_of_keys(request_for(read_command(LARGE, "h100x8"), {"slo": ["ttft.p99=2s"], "rate": 6}))
    (evaluator,) = open_evaluator(request).evaluators.values()
    memory = evaluator.deployments.memory
    found = candidates(request, evaluator.names)
    small = [c for c in found if memory(c).free_bytes > 0 and memory(c).longest_sequence_tokens < 131_072]
    assert any(memory(c).longest_sequence_tokens > 10_000 for c in small)
    for candidate in small:
        reason = evaluator.discard(candidate)
        assert reason is not None
        assert "less than max_model_len 131072" in reason.reason
