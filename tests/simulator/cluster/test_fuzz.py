"""A part of benchmarks/soak.py: random cases break no invariant, and the soak test finds planted faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catalogs.deployments.schema import Deployment
from catalogs.workloads.files import WorkloadFile
from simulator.core.invariants import InvariantViolation
from simulator.core.request import Request
from simulator.schedulers import registry as schedulers
from simulator.schedulers.vllm.v1 import VllmV1

if TYPE_CHECKING:
    from fuzz_cases import Case

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
SLICES = 6
CASES = 6
LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def plain(seed: int = 1, **workload: object) -> Case:
    from fuzz_cases import Case

    asked = {"arrivals": "all_at_once", "requests": 8, "input_tokens": 40, "output_tokens": 20} | workload
    return Case(seed, {"model": "qwen2.5-0.5b", "hardware": "h100", "kv_blocks": 12, "max_model_len": 160}, asked)


@pytest.mark.parametrize("part", range(SLICES))
def test_random_cases_break_no_law(part: int, tmp_path: Path) -> None:
    """A failure names the seed: `python benchmarks/soak.py --only SEED` reduces the case and shows its files."""
    from fuzz_cases import draw_case
    from soak import attempt

    ran = 0
    for seed in range(part * CASES, (part + 1) * CASES):
        try:
            _, outcome = attempt(draw_case(seed, most_requests=32), tmp_path)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        ran += outcome.refused is None
    assert ran >= CASES - 2


def test_every_key_is_drawn() -> None:
    """A new key of deployment.yaml or of a workload is drawn from its schema, or UnknownKey says what is missing."""
    from fuzz_cases import draw_case

    cases = [draw_case(seed) for seed in range(1500)]
    drawn = {key for case in cases for key in case.deployment}
    assert drawn == set(Deployment.model_fields)
    asked = {key for case in cases for key in case.workload} | {"duration_s"}  # requests say how many
    assert asked == set(WorkloadFile.model_fields)


def test_the_same_seed_is_the_same_case() -> None:
    from fuzz_cases import draw_case

    assert [draw_case(seed) for seed in range(50)] == [draw_case(seed) for seed in range(50)]


class Leaks(VllmV1):
    """Forgets the blocks of every request that ends."""

    def release(self, request: Request) -> None:
        self._running.pop(request)


class Overruns(VllmV1):
    """One step more than was promised."""

    def skip(self, rounds: int) -> None:
        super().skip(rounds)
        self.decodes.rounds += 1


def fails(case: Case, folder: Path) -> bool:
    from fuzz_check import run_case

    try:
        run_case(case, folder, LIMIT_S)
    except (InvariantViolation, AssertionError, RuntimeError):
        return True
    return False


def test_a_planted_leak_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fuzz_shrink import shrink

    case = plain(input_tokens={"uniform": {"low": 20, "high": 60}}, name="big", notes="none")
    assert not fails(case, tmp_path)
    monkeypatch.setitem(schedulers.POLICIES, "vllm-v1", Leaks)
    assert fails(case, tmp_path)
    small = shrink(case, lambda smaller: fails(smaller, tmp_path), most_s=5.0)
    assert fails(small, tmp_path)
    assert "notes" not in small.workload
    assert small.workload["requests"] == 1


def test_a_fast_forward_that_runs_on_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(schedulers.POLICIES, "vllm-v1", Overruns)
    assert fails(plain(), tmp_path)


def test_a_hang_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fuzz_check import Hang, run_case

    def spins(self: VllmV1, request: Request) -> None:  # noqa: ARG001
        while True:
            pass

    monkeypatch.setattr(VllmV1, "release", spins)
    with pytest.raises(Hang):
        run_case(plain(), tmp_path, limit_s=0.5)


def test_what_cannot_be_is_repaired(tmp_path: Path) -> None:
    from soak import attempt

    wrong = replace(
        plain(), deployment={"model": "llama3.1-8b", "hardware": "h100x8", "tensor_parallel": 3, "lora": {}}
    )
    case, outcome = attempt(wrong, tmp_path)
    assert outcome.refused is None
    assert case.deployment.get("tensor_parallel") != 3
