"""Mutants: the lists fit the tree, generated changes are what they say, and the sample depends on nothing else."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import generated_mutants
import mutants
import planted_faults
import pytest
import run_statements
from generated_mutants import Group, Lists, changes_of, faults, read_lists, sample
from planted_faults import ROOT, ListError

REPOSITORY = ROOT

SOURCE = '''"""Words."""

LIMIT: float = 0.5


def total(a, b, names=()):
    """Return more words."""
    if names:
        raise ValueError(f"{len(names)} of {a + 1}")
    return a * b + LIMIT if a <= 3 and b is not None else -min(a, b)


class Thing:
    size = 2

    @property
    def half(self):
        return self.size // 2
'''


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one file and one test file."""
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "thing.py").write_text(SOURCE)
    (tmp_path / "planner" / "__init__.py").write_text("")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "run_statements.py").write_text((ROOT / "tools" / "run_statements.py").read_text())
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = [".", "tools"]\n')
    (tmp_path / "tests").mkdir()
    text = "from planner.thing import Thing, total\n\ndef test_total(): assert total(2, 3) == 6.5\n\n"
    (tmp_path / "tests" / "test_thing.py").write_text(text + "def test_half(): assert Thing().half == 1\n")
    for module in (generated_mutants, planted_faults):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    return tmp_path


LISTS = Lists(groups=(Group(files=("planner/*.py",), tests=("tests",)),))


def test_the_listed_mutants_fit_the_tree() -> None:
    assert len(mutants.listed("")) > 60


def test_the_generated_mutants_fit_the_tree() -> None:
    lists = read_lists()
    assert len(sample(lists, 150, 1)) == 150
    generated_mutants.test_files(lists)


@pytest.mark.usefixtures("tree")
def test_changes_are_small_faults_of_code_that_runs() -> None:
    found = {c.id.removeprefix("planner/thing.py:") for c in changes_of("planner/thing.py")}
    assert {
        "LIMIT: 0.5 -> (0.75)",
        "total: a * b -> (a / b)",
        "total: a * b + LIMIT -> (a * b - LIMIT)",
        "total: a * b + LIMIT -> (LIMIT)",
        "total: a <= 3 -> (a < 3)",
        "total: a <= 3 and b is not None -> (a <= 3)",
        "total: b is not None -> (b is None)",
        "total: min(a, b) -> (max(a, b))",
        "total: -min(a, b) -> (min(a, b))",
        "total: names -> (not names)",
        "Thing.size: 2 -> (3)",
        "Thing.half: self.size // 2 -> (self.size * 2)",
    } <= found
    assert not [text for text in found if "words" in text or "len(names)" in text or "a + 1" in text]


@pytest.mark.usefixtures("tree")
def test_every_change_compiles_and_changes_the_program() -> None:
    found = list(changes_of("planner/thing.py"))
    assert len({c.id for c in found}) == len(found) >= 20
    for change in found:
        assert ast.dump(ast.parse(change.text())) != ast.dump(ast.parse(SOURCE))


def test_the_sample_depends_on_the_seed_and_not_on_other_functions(tree: Path) -> None:
    first = {c.id for c in sample(LISTS, 10, 1)}
    assert len(first) == 10
    assert {c.id for c in sample(LISTS, 10, 2)} != first
    assert {c.id for c in sample(LISTS, 5, 1)} < first
    path = tree / "planner" / "thing.py"
    path.write_text("# a line more\n" + SOURCE.replace("size = 2", "size = 2\n    other = None"))
    assert {c.id for c in sample(LISTS, 10, 1)} == first
    assert {c.id for c in sample(LISTS, 10, 1, only="half")} == {i for i in first if "half" in i}


@pytest.mark.usefixtures("tree")
def test_equivalent_mutants_that_are_not_there_are_an_error() -> None:
    lists = LISTS.model_copy(update={"equivalent": (generated_mutants.Equivalent(reason="none", ids=("a: b -> c",)),)})
    with pytest.raises(ListError, match="not a mutant of this tree"):
        sample(lists, 5, 1)


@pytest.mark.usefixtures("tree")
def test_a_mutant_runs_the_tests_that_run_its_statement_and_is_killed_or_not() -> None:
    changes = [c for c in sample(LISTS, 100, 1) if c.function in ("Thing.half", "total")]
    picked = {
        "total: a * b -> (a / b)": "killed",
        "total: a <= 3 -> (a < 3)": "survived",
        "Thing.half: self.size // 2 -> (self.size * 2)": "killed",
    }
    changes = [c for c in changes if c.id.removeprefix("planner/thing.py:") in picked]
    with planted_faults.trees_of(1) as trees:
        planted = list(faults(LISTS, changes, trees))
        assert {fault.nodes for fault in planted if "half" in fault.id} == {("tests/test_thing.py::test_half",)}
        assert {fault.nodes for fault in planted if "total" in fault.id} == {("tests/test_thing.py::test_total",)}
        outcomes = list(planted_faults.judged(planted, trees))
        assert (trees[0] / "planner" / "thing.py").read_text() == SOURCE
    assert {o.id.removeprefix("planner/thing.py:"): o.status for o in outcomes} == picked


def test_only_statements_that_ran_are_recorded() -> None:
    """An `elif` is recorded with its `if`; a default value with the first statement of its function."""
    source = """def f(a=1):
    if a > 2:
        b = 1
    elif a > 1:
        b = 2
    else:
        b = (
            3
        )
    return b
"""
    scope: dict[str, object] = {}
    exec(run_statements.instrumented(source, "b.py"), scope)
    vars(builtins).setdefault(run_statements.NAME, set()).clear()
    assert scope["f"]() == 3  # type: ignore[operator]
    assert vars(builtins)[run_statements.NAME] == {("b.py", 2), ("b.py", 7), ("b.py", 10)}


@pytest.mark.usefixtures("tree")
def test_a_change_names_the_statement_that_it_is_in(tree: Path) -> None:
    branches = "    if a > 2:\n        return a * 3\n    elif a > 4:\n        pass\n"
    (tree / "planner" / "thing.py").write_text(f"def f(a=1):\n{branches}    return (\n        a + 5\n    )\n")
    found = {c.id.partition(": ")[2]: c.line for c in changes_of("planner/thing.py")}
    assert found["a * 3 -> (a / 3)"] == 3
    assert found["a > 4 -> (a >= 4)"] == found["a > 2 -> (a >= 2)"] == found["1 -> (2)"] == 2
    assert found["a + 5 -> (a - 5)"] == 6


def test_cached_results_count_for_every_test_that_takes_them(tree: Path) -> None:
    """The second test takes the result of the first; the third runs something else."""
    text = """from functools import cache

from planner.thing import Thing, total

@cache
def made(n): return total(n, 3)

def test_first(): assert made(2) == 6.5

def test_second(): assert made(2) == 6.5

def test_third(): assert Thing().half == 1
"""
    (tree / "tests" / "test_thing.py").write_text(text)
    (change,) = (c for c in sample(LISTS, 100, 1) if c.id.endswith("total: a * b -> (a / b)"))
    with planted_faults.trees_of(1) as trees:
        (fault,) = faults(LISTS, [change], trees)
    # the quickest test comes first, and which one that is depends on the machine
    assert sorted(fault.nodes) == ["tests/test_thing.py::test_first", "tests/test_thing.py::test_second"]


def test_files_that_are_recorded_do_what_they_did() -> None:
    """Of every file that is changed."""
    recorded = run_statements.instrumented(SOURCE, "a.py")
    scope: dict[str, object] = {}
    exec(recorded, scope)
    assert scope["total"](2, 3) == 6.5  # type: ignore[operator]
    assert ("a.py", 10) in vars(builtins)[run_statements.NAME]
    without = [line for line in recorded.splitlines() if run_statements.NAME not in line]
    assert without == SOURCE.splitlines()
    for group in read_lists().groups:
        for pattern in group.files:
            for path in REPOSITORY.glob(pattern):
                compile(run_statements.instrumented(path.read_text(), "x"), str(path), "exec")


def test_too_many_survivors_fail() -> None:
    def of(killed: int, survived: int, equivalent: int) -> int:
        counts = {"killed": killed, "survived": survived, "equivalent": equivalent}
        outcomes = [planted_faults.Outcome("", status, "", 0.0) for status, n in counts.items() for _ in range(n)]  # type: ignore[arg-type]
        return mutants.report(outcomes, 0.05, 1.0, None)

    assert [of(95, 5, 7), of(94, 6, 7), of(0, 0, 3)] == [0, 1, 1]
