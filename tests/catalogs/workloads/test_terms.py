"""Priorities, deadlines and timeouts of requests: from a trace's columns, and drawn by class."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest

from catalogs.errors import InputError
from catalogs.workloads.workload import load_workload

HEAD = "arrival_s,input_tokens,output_tokens"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_columns_of_a_trace(tmp_path: Path) -> None:
    text = f"{HEAD},priority,timeout_s\n0,8,4,2,30\n1,8,4,,\n2,8,4,-1,0.5\n"
    terms = load_workload(write(tmp_path / "t.csv", text)).materialise().terms
    assert terms is not None
    assert terms.priority.tolist() == [2, 0, -1]
    assert terms.timeout_s.tolist() == [30.0, inf, 0.5]
    assert terms.deadline_s.tolist() == [inf] * 3


def test_a_trace_without_them_has_none(tmp_path: Path) -> None:
    assert load_workload(write(tmp_path / "t.csv", f"{HEAD}\n0,8,4\n")).materialise().terms is None


@pytest.mark.parametrize(("column", "value"), [("priority", "1.5"), ("timeout_s", "0"), ("deadline_s", "soon")])
def test_what_is_no_number_is_named(tmp_path: Path, column: str, value: str) -> None:
    path = write(tmp_path / "t.csv", f"{HEAD},{column}\n0,8,4,1\n1,8,4,{value}\n")
    with pytest.raises(InputError, match=f"{column} of row 2 must be"):
        load_workload(path)


RECIPE = """
arrivals: {poisson: {requests_per_s: 8}}
requests: 4000
input_tokens: {constant: 64}
output_tokens: {constant: 8}
"""


def test_classes_are_drawn_by_their_shares_and_change_nothing_else(tmp_path: Path) -> None:
    classes = "classes:\n  - {share: 1, priority: 0, deadline_s: 2}\n  - {share: 3, priority: 5, timeout_s: 60}\n"
    plain = load_workload(write(tmp_path / "p.yaml", RECIPE)).materialise()
    drawn = load_workload(write(tmp_path / "c.yaml", RECIPE + classes)).materialise()
    np.testing.assert_array_equal(plain.arrival_s, drawn.arrival_s)
    terms = drawn.terms
    assert terms is not None
    urgent = terms.priority == 0
    assert abs(float(urgent.mean()) - 0.25) < 0.03
    assert set(terms.deadline_s[urgent]) == {2.0}
    assert set(terms.timeout_s[urgent]) == {inf}
    assert set(terms.timeout_s[~urgent]) == {60.0}
    half = drawn.every(2).terms
    assert half is not None
    assert half.priority.tolist() == terms.priority[::2].tolist()


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("classes: {share: 1}", "classes must be a list"),
        ("classes: [{share: 1, prio: 2}]", "unknown key 'prio'; nearest valid choice: priority"),
        ("classes: [{share: 0}]", "share"),
    ],
)
def test_bad_classes_are_refused(tmp_path: Path, classes: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_workload(write(tmp_path / "c.yaml", f"{RECIPE}{classes}\n"))
