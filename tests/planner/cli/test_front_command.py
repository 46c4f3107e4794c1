"""`plan front` as a user runs it: the table, the JSON, the page, what is refused and what is a no."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.search.pareto_sampler import best_balance

ASKED = ["front", "--model", "llama3.2-1b", "--hw", "l40sx1", "--precision", "native"]


def run(*arguments: str) -> int:
    return run_command("plan", app, list(arguments))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(*ASKED, *arguments, "--json", "-") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.usual_runs
def test_a_front_is_ordered_simulated_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--axes", "cost,ttft.p90", "--set", "search.trials=5")
    values = [tuple(row["values"].values()) for row in found["front"]]
    assert values == sorted(values)
    assert [v[1] for v in values] == sorted((v[1] for v in values), reverse=True)
    assert all(row["deployment"]["hardware"].startswith("l40s") for row in found["front"])
    search = found["search"]
    assert search["n_simulated"] == len(found["simulated"]) == 5
    assert search["n_requests"] == sum(row["n_requests"] for row in found["simulated"]) >= 5 * 300
    assert sum(row["on_front"] for row in found["simulated"]) == len(values)
    assert all(row["holds"] for row in found["simulated"] if row["on_front"])
    assert found["best_balance"] == best_balance(values)


def test_a_kept_front_is_resumed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = ("--axes", "cost,ttft.p90", "--study", str(tmp_path / "s.log"))
    first = answer(capsys, *kept, "--set", "search.trials=3")
    again = answer(capsys, *kept, "--set", "search.trials=5")
    assert again["search"]["n_resumed"] == 3
    rows = [[{**row, "on_front": None} for row in found["simulated"][:3]] for found in (first, again)]
    assert rows[0] == rows[1]  # whether a row is on the front depends on the others


def test_the_screen_and_the_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "front.html"
    assert (
        run(*ASKED, "--axes", "energy,tpot.mean", "--set", "search.trials=3", "--rate", "2", "--html", str(page)) == 0
    )
    screen = capsys.readouterr().out
    assert "3 simulated" in screen
    assert "energy per output token" in screen
    assert "plan front --model llama3.2-1b" in page.read_text()
    balance = next(line for line in screen.splitlines() if line.startswith("Best balance: "))
    assert balance[:60] in page.read_text()
    assert '"best balance"' in page.read_text()


def test_limits_that_nothing_holds_are_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*ASKED, "--axes", "cost,ttft.p90", "--slo", "e2e.p90=1ms", "--set", "search.trials=2") == 1
    assert "NO: no deployment can meet every limit" in capsys.readouterr().out


@pytest.mark.parametrize("axes", ["cost,energy", "cost,ttf.p99", "cost"])
def test_bad_axes_are_one_line(axes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*ASKED, "--axes", axes) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
