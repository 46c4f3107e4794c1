"""Fixtures every package's tests share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The speed of a shared machine is no property of the code, and the same code has the same verdict in every run.
# `pytest --hypothesis-profile explore` draws other cases each time.
settings.register_profile("same cases", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("same cases")

#: As `plan` has it: threads of linear algebra on small matrices spin where other processes have the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

pytest_plugins = ["tests.skip_report"]

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the size of the slow fuzz tests: `pytest -m slow tests/fuzz --fuzz-cases 5000 --fuzz-seed 7`."""
    cases = "hostile files for the readers, in all; the commands get one per cent as many"
    parser.addoption("--fuzz-cases", type=int, default=100_000, metavar="N", help=cases)
    parser.addoption("--fuzz-seed", type=int, default=2, metavar="N", help="of the hostile files; another draws others")
    parser.addoption("--usual-runs", action="store_true", help="no short runs in the planner's tests")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one worker of `pytest -n` run the tests of a file, so that what they share is computed once."""
    if config.getoption("dist") != "load":  # another way was chosen
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let workers begin with the outer folders: their files take long, and the workers shall end together."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: len(item.path.parts))


def shared_folder(name: str) -> Path:
    """A folder of public measurements beside the checkout (or under $CAPACITY_PLANNER_SHARED); skips where absent."""
    base = Path(os.environ.get("CAPACITY_PLANNER_SHARED", ROOT.parent / "shared"))
    if not (base / name).is_dir():
        pytest.skip(f"public measurements not found at {base / name}")
    return base / name


@pytest.fixture(scope="session")
def public_data() -> Path:
    return shared_folder("data")


@pytest.fixture(scope="session")
def validation_data() -> Path:
    return shared_folder("validation")
