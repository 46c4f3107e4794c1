"""A pytest plugin: which functions of some files each test calls, and how long it takes, as JSON.

    pytest -p called_functions --called-in planner/economics/money.py --called-out called.json tests/planner/economics

Calls while a fixture of a wider scope is set up count for every test that uses it, and cached results are forgotten
before every test. Processes that a test starts are not followed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

#: A function: its file, and the line of its first decorator or of its `def`.
Place = tuple[str, int]


class Recorder:
    """Follows one process of pytest."""

    def __init__(self, root: Path, files: list[str], out: Path) -> None:
        self.names = {str(root / name): name for name in files}
        self.out = out
        self.places: set[Place] = set()
        self.by_fixture: dict[int, set[Place]] = {}
        self.tests: dict[str, dict[str, Any]] = {}

    def follow(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call":
            name = self.names.get(frame.f_code.co_filename)
            if name is not None:
                self.places.add((name, frame.f_code.co_firstlineno))

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
        sys.setprofile(self.follow)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
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
    """Add the two options."""
    parser.addoption("--called-in", action="append", default=[], help="a file, relative to the root")
    parser.addoption("--called-out", type=Path, help="the JSON file to write")


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder."""
    out = config.getoption("--called-out")
    if out is not None:
        config.pluginmanager.register(Recorder(config.rootpath, config.getoption("--called-in"), out))
