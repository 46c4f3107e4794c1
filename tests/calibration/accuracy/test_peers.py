"""The comparison with other simulators' packages: its medians by hand, and an environment that has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("python", "rule"),
    [(sys.executable, "has no package of another simulator"), ("/nonexistent/python", "names a Python that starts")],
)
def test_an_environment_without_a_package_is_refused_in_one_line(python: str, rule: str) -> None:
    command = [sys.executable, "benchmarks/peers.py", "score.py", "--peer-python", python]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert rule in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_medians_are_of_the_points_that_both_could_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from peers import OURS, Point, Prediction, accuracy_table, cpu_lines

    def point(group: str, ours: float, theirs: float | None) -> Point:
        made = Point(group, {}, (1.0, 0.01))
        made.predictions[OURS] = Prediction(1.0, ours, 0.01 * ours)
        made.predictions["other"] = (
            Prediction(2.0, error="no table") if theirs is None else Prediction(3.0, theirs, 0.01 / theirs)
        )
        return made

    sample = [point("a", 1.1, 1.25), point("a", 0.8, 2.0), point("b", 1.3, 1.0), point("b", 9.0, None)]
    rows = [line.split(" | ") for line in accuracy_table(sample, "other").splitlines()[2:]]
    assert rows == [
        ["| a", "2", "15.0 %", "62.5 %", "15.0 %", "35.0 % |"],  # TTFT, TPOT: both 10 and 20; 25 and 100; 20 and 50
        ["| b", "1", "30.0 %", "0.0 %", "30.0 %", "0.0 % |"],
        ["| all", "3", "20.0 %", "25.0 %", "20.0 %", "20.0 % |"],
    ]
    ours, other = cpu_lines(sample, [OURS, "other"])
    assert ours == "- this simulator: 4 of 4 points, 4 CPU seconds."
    assert other == "- other: 3 of 4 points, 9 CPU seconds. Without an answer: 1 (no table)."
