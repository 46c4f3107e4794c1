"""Which statements inside the functions of some files each test runs, and the CPU time it takes.

`instrumented` adds a mark before every statement. As a pytest plugin, this module then writes JSON:

    pytest -p run_statements --statements-out statements.json tests/planner/economics

What runs while a fixture of a wider scope is set up counts for every test that uses it, and what runs for a cached
result for every test that takes it. Processes that a test starts are not followed.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: A statement: its file, and its line (of its first decorator, where it has one).
Place = tuple[str, int]

#: Name of the set of statements that ran among the built-in names.
NAME = "_run_statements"


def instrumented(source: str, path: str) -> str:
    """Return the source with a mark before each statement inside a function."""
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
    """Return the statements that have a mark: inside a function, no docstring, and with their own line (no `elif`)."""
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
    """Return the line of a statement, with its decorators."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


#: Where caches are followed.
PACKAGES = ("catalogs", "calibration", "simulator", "planner", "tests")


class Recorder:
    """Follows one process of pytest."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.by_fixture: dict[int, set[Place]] = {}
        self.tests: dict[str, dict[str, Any]] = {}
        self.saved_s = 0.0  # by cached results

    @property
    def places(self) -> set[Place]:
        found: set[Place] = vars(builtins).setdefault(NAME, set())
        return found

    @places.setter
    def places(self, found: set[Place]) -> None:
        setattr(builtins, NAME, found)

    def clock_s(self) -> float:
        """Return the CPU time of this process and of those it has awaited, as if there were no cached results."""
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system + self.saved_s

    def follow_caches(self) -> None:
        """Make the caches of the project and of its tests count what their results ran for every caller."""
        plain = functools.lru_cache

        def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
            if callable(maxsize):
                return self.followed(plain(maxsize))
            return lambda function: self.followed(plain(maxsize, typed)(function))

        functools.lru_cache = lru_cache  # type: ignore[assignment]
        functools.cache = lambda function: lru_cache(None)(function)  # type: ignore[assignment]

    def followed(self, cached: Any) -> Any:
        """Return the cached function; each call adds what the result ran, and its time when it was computed."""
        module = str(getattr(cached, "__module__", ""))
        if module.partition(".")[0] not in PACKAGES and not module.startswith("test_"):
            return cached
        kept: dict[Any, tuple[set[Place], float]] = {}

        @functools.wraps(cached)
        def call(*args: Any, **kwargs: Any) -> Any:
            key = functools._make_key(args, kwargs, False)
            before, misses, started = self.places, cached.cache_info().misses, self.clock_s()
            self.places = set()
            try:
                return cached(*args, **kwargs)
            finally:
                if cached.cache_info().misses > misses:
                    kept[key] = set(self.places), self.clock_s() - started
                elif key in kept:
                    self.places |= kept[key][0]
                    self.saved_s += kept[key][1]
                self.places |= before

        for name in ("cache_clear", "cache_info", "cache_parameters"):
            setattr(call, name, getattr(cached, name))
        return call

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
        self.places = set()
        started = self.clock_s()
        try:
            return (yield)
        finally:
            found = set(self.places)
            for definitions in getattr(item, "_fixtureinfo").name2fixturedefs.values():  # noqa: B009 - not public
                found |= set().union(*(self.by_fixture.get(id(d), set()) for d in definitions))
            seconds = self.clock_s() - started
            self.tests[item.nodeid] = {"seconds": round(seconds, 3), "statements": sorted(found)}

    def pytest_sessionfinish(self) -> None:
        self.out.write_text(json.dumps(self.tests))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--statements-out", type=Path, help="the JSON file to write")


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin before the first module of the project is imported."""
    out = early_config.known_args_namespace.statements_out
    if out is not None:
        recorder = Recorder(out)
        recorder.follow_caches()
        early_config.pluginmanager.register(recorder)
