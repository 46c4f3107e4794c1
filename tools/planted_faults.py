"""Runs tests on copies of the tree, each with one fault that the caller supplies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("catalogs", "calibration", "simulator", "planner")
COPIED: Final = (*PACKAGES, "tests", "tools", "pyproject.toml", "benchmarks", "docs", "README.md")
LIMIT_S: Final = 300.0


class ListError(ValueError):
    """The faults do not fit the tree, or a test fails without any fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the tests that have to notice it. path: relative to the root; text: the file with the fault."""

    id: str
    path: Path
    text: str
    nodes: tuple[str, ...]  # of pytest
    limit_s: float = LIMIT_S
    equivalent: str = ""  # why no test can notice it; it is not run then


@dataclass(frozen=True, slots=True)
class Outcome:
    """killed_by: the first test that failed, "time limit", or the reason why it is equivalent; empty if it survived."""

    id: str
    status: Literal["killed", "survived", "broken", "equivalent"]
    killed_by: str
    seconds: float


def copied(source: Path, target: Path) -> None:
    """Copy what the tests need, without links to the working tree."""
    target.mkdir(parents=True)
    for name in COPIED:
        path = source / name
        if path.is_dir():
            shutil.copytree(path, target / name)
        elif path.exists():
            shutil.copy2(path, target / name)


def run_tests(tree: Path, nodes: Sequence[str], limit_s: float, *words: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on the packages in `tree`.

    Raises:
        subprocess.TimeoutExpired: The tests take too long.
    """
    shared = os.environ.get("CAPACITY_PLANNER_SHARED", str(ROOT.parent / "shared"))
    # CI: hypothesis draws the same examples each time, without a deadline. Plugins are slow to load and not needed.
    env = os.environ | {"PYTHONPATH": str(tree), "CAPACITY_PLANNER_SHARED": shared, "CI": "true"}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = ("-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-rfE", *words)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, *nodes],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def judge(fault: Fault, tree: Path) -> Outcome:
    """Plant the fault in the copy, run the tests, and restore the file."""
    if fault.equivalent:
        return Outcome(fault.id, "equivalent", fault.equivalent, 0.0)
    if not fault.nodes:
        return Outcome(fault.id, "survived", "no test reaches it", 0.0)
    path = tree / fault.path
    before, stat = path.read_text(), path.stat()
    started = time.monotonic()
    write_source(path, fault.text)
    try:
        done = run_tests(tree, fault.nodes, fault.limit_s)
    except subprocess.TimeoutExpired:
        return Outcome(fault.id, "killed", "time limit", time.monotonic() - started)
    finally:
        write_source(path, before)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    seconds = time.monotonic() - started
    if done.returncode == 0:
        return Outcome(fault.id, "survived", "", seconds)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode in (1, 2) and failed:
        return Outcome(fault.id, "killed", failed[0].partition(" ")[2].partition(" - ")[0], seconds)
    return Outcome(fault.id, "broken", (done.stdout + done.stderr).strip()[-1000:], seconds)


def write_source(path: Path, text: str) -> None:
    """Write a source so that Python does not take the bytecode of a version that was written in the same second."""
    path.write_text(text)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


@contextmanager
def trees_of(jobs: int) -> Iterator[list[Path]]:
    """Yield a number of copies of the working tree, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        trees = [Path(name) / str(i) for i in range(jobs)]
        for tree in trees:
            copied(ROOT, tree)
        yield trees


def judged(faults: Iterable[Fault], trees: Sequence[Path]) -> Iterator[Outcome]:
    """Yield the outcome of each fault, in order; as many are judged at a time as there are trees."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def one(fault: Fault) -> Outcome:
        tree = free.get()
        try:
            return judge(fault, tree)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        yield from pool.map(one, faults)
