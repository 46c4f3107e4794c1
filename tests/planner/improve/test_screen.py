"""The screen of `plan improve`: a refusal always says what to try."""

from __future__ import annotations

import pytest

from planner.cli.screens.improve import show_improvement
from planner.improve.document import SCHEMA_VERSION, ChangeRow, Figures, Improvement


def refusal(changes: list[str]) -> Improvement:
    return Improvement(
        schema_version=SCHEMA_VERSION,
        request={"slo": ["ttft.p99=5ms"]},
        command="vllm serve llama3.1-8b",
        deployment={},
        today=None,
        why_not_today="the weights do not fit",
        feasible=False,
        improves=False,
        changes=[],
        improved=None,
        improved_deployment=None,
        new_command="",
        command_notes=[],
        saves=None,
        confidence=None,
        infeasible="prefill alone takes 312 ms",
        what_would_meet_it=changes,
        seconds=1.0,
    )


@pytest.mark.parametrize("changes", [[], ["at most 3 requests/s"], ["at most 3 requests/s", "h100x1"]])
def test_a_refusal_names_the_reason_and_what_would_meet_the_objectives(
    changes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    show_improvement(refusal(changes))
    shown = capsys.readouterr().out
    assert "cannot serve the load: the weights do not fit" in shown
    assert "prefill alone takes 312 ms" in shown
    assert shown.count("Would meet") == 1
    assert all(change in shown for change in changes)
    assert ("no change that was tried" in shown) == (not changes)


@pytest.mark.parametrize(("carried", "missed"), [(30.0, False), (20.0, False), (5.0, True), (None, True)])
def test_figures_beyond_the_capacity_say_so(
    carried: float | None, missed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    today = Figures(
        words="1 replica",
        hardware="h100x1",
        accelerators=1,
        requests_per_s=20.0,
        capacity_requests_per_s=carried,
        meets=not missed,
        probability_met=0.95,
        latencies_s={"ttft.p99": 0.5},
        usd_per_hour=2.0,
        usd_per_million_output_tokens=0.25,
        j_per_output_token=0.5,
    )
    show_improvement(refusal([]).model_copy(update={"today": today, "why_not_today": ""}))
    shown = " ".join(capsys.readouterr().out.split())
    assert "$0.25 per million output tokens, 0.5 J per output token" in shown
    assert ("; at 20 requests/s, where the objectives are missed: $0.25" in shown) == missed


@pytest.mark.parametrize(
    ("idle", "words"), [(0, ""), (1, "(1 rented accelerator idle"), (4, "(4 rented accelerators idle")]
)
def test_rented_accelerators_that_idle_are_named(idle: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of a rented node has the bill of all of it, and the energy of what idles in it."""
    figures = Figures(
        words="1 replica",
        hardware="h100x4",
        accelerators=4,
        requests_per_s=3.0,
        capacity_requests_per_s=4.0,
        meets=True,
        probability_met=0.99,
        latencies_s={"ttft.p99": 0.5},
        usd_per_hour=23.6,
        usd_per_million_output_tokens=10.0,
        j_per_output_token=5.0,
        idle_accelerators=idle,
    )
    show_improvement(refusal([]).model_copy(update={"today": figures, "why_not_today": ""}))
    shown = " ".join(capsys.readouterr().out.split())
    assert ("idle, counted in the energy)" in shown) is bool(idle)
    assert words in shown


def test_notices_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A precision that may change the answers is never silent."""
    notice = "fp8 KV cache: check the answer quality on long contexts"
    show_improvement(refusal([]).model_copy(update={"notices": [notice]}))
    assert notice in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("recommended", "word"), [(True, "make it"), (False, "left out")])
def test_the_table_says_whether_the_new_command_has_a_change(
    recommended: bool, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ChangeRow(
        what="kv_dtype",
        keys={"kv_dtype": {"from": "bf16", "to": "fp8"}},
        flags=[],
        alone=None,
        why_not_alone="follows from the other changes",
        recommended=recommended,
        why="a reason",
    )
    show_improvement(refusal([]).model_copy(update={"changes": [row]}))
    shown = " ".join(capsys.readouterr().out.split())
    assert "no gain" not in shown
    assert f"not alone {word}" in shown
    assert "Why kv_dtype: a reason" in shown
