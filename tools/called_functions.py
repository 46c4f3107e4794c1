"""Which functions of some files each test calls, and how long it takes.

`instrumented` adds a statement to every function of a file. As a pytest plugin, this module then writes JSON:

    pytest -p called_functions --called-out called.json tests/planner/economics

Calls while a fixture of a wider scope is set up count for every test that uses it, and cached results are forgotten
before every test. Processes that a test starts are not followed.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: A function: its file, and the line of its first decorator or of its `def`.
Place = tuple[str, int]

#: Name of the set of called functions among the built-in names.
NAME = "_called_functions"


def instrumented(source: str, path: str) -> str:
    """The source with a statement at the beginning of each function that is not inside another one."""
    lines = source.splitlines(keepends=True)
    added = []
    for node in _functions(ast.parse(source)):
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if body and body[0].lineno > node.lineno:
            place = (path, min([node.lineno, *(d.lineno for d in node.decorator_list)]))
            call = f"__import__('builtins').__dict__.setdefault({NAME!r}, set()).add({place!r})"
            first = min([body[0].lineno, *(d.lineno for d in getattr(body[0], "decorator_list", []))])
            added.append((first - 1, f"{' ' * body[0].col_offset}{call}\n"))
    for at, line in sorted(added, reverse=True):
        lines.insert(at, line)
    return "".join(lines)


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _functions(child)


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
        started = time.perf_counter()
        try:
            return (yield)
        finally:
            found = set(self.places)
            for definitions in getattr(item, "_fixtureinfo").name2fixturedefs.values():  # noqa: B009 - not public
                found |= set().union(*(self.by_fixture.get(id(d), set()) for d in definitions))
            seconds = time.perf_counter() - started
            self.tests[item.nodeid] = {"seconds": round(seconds, 3), "functions": sorted(found)}

    def pytest_sessionfinish(self) -> None:
        self.out.write_text(json.dumps(self.tests))


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
    parser.addoption("--called-out", type=Path, help="the JSON file to write")


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder."""
    out = config.getoption("--called-out")
    if out is not None:
        config.pluginmanager.register(Recorder(out))
