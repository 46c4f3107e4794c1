"""Which statements inside the functions of some files each test runs, and the CPU time it takes.

`instrumented` adds a mark before every statement. As a pytest plugin, this module then writes JSON:

    pytest -p run_statements --statements-out statements.json tests/planner/economics

What runs while a fixture of a wider scope is set up count for every test that uses it, and cached results are forgotten
before every test. Processes that a test starts are not followed.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: A statement: its file, and its line (of its first decorator, where it has one).
Place = tuple[str, int]

#: Name of the set of statements that ran among the built-in names.
NAME = "_run_statements"


def instrumented(source: str, path: str) -> str:
    """The source with a mark before each statement inside a function."""
    lines = source.splitlines(keepends=True)
    added = {}
    for statement in marked(ast.parse(source), source):
        line = first_line(statement)
        call = f"__import__('builtins').__dict__.setdefault({NAME!r}, set()).add({(path, line)!r})"
        added[line] = f"{' ' * statement.col_offset}{call}\n"
    for line in sorted(added, reverse=True):
        lines.insert(line - 1, added[line])
    return "".join(lines)


def marked(tree: ast.Module, source: str) -> list[ast.stmt]:
    """The statements that have a mark: inside a function, no docstring, and with a line of their own (no `elif`)."""
    lines = source.splitlines()
    found = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            found += [
                node
                for node in ast.walk(function)
                if isinstance(node, ast.stmt)
                and node is not function
                and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
                and not lines[node.lineno - 1][: node.col_offset].strip()
                and not lines[node.lineno - 1][node.col_offset :].startswith("elif ")
            ]
    return found


def first_line(node: ast.stmt) -> int:
    """The line of a statement, with its decorators."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


class Recorder:
    """Follows one process of pytest."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.by_fixture: dict[int, set[Place]] = {}
        self.tests: dict[str, dict[str, Any]] = {}

    @property
    def places(self) -> set[Place]:
        found: set[Place] = vars(builtins).setdefault(NAME, set())
        return found

    @places.setter
    def places(self, found: set[Place]) -> None:
        setattr(builtins, NAME, found)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        before, self.places = self.places, set()
        try:
            return (yield)
        finally:
            self.by_fixture[id(fixturedef)] = self.places
            self.places |= before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        forget_cached_results()
        self.places = set()
        started = cpu_s()
        try:
            return (yield)
        finally:
            found = set(self.places)
            for definitions in getattr(item, "_fixtureinfo").name2fixturedefs.values():  # noqa: B009 - not public
                found |= set().union(*(self.by_fixture.get(id(d), set()) for d in definitions))
            seconds = cpu_s() - started
            self.tests[item.nodeid] = {"seconds": round(seconds, 3), "statements": sorted(found)}

    def pytest_sessionfinish(self) -> None:
        self.out.write_text(json.dumps(self.tests))


def cpu_s() -> float:
    """CPU time of this process and of those it has started and awaited: the same on a busy machine."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def forget_cached_results() -> None:
    """Clear the caches of functions of this project, in its packages and in its tests."""
    packages = ("catalogs", "calibration", "simulator", "planner", "tests")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages or name.startswith("test_"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear") and not isinstance(value, type):
                    value.cache_clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--statements-out", type=Path, help="the JSON file to write")


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder."""
    out = config.getoption("--statements-out")
    if out is not None:
        config.pluginmanager.register(Recorder(out))
