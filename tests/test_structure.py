"""Laws of the code base: imports point one way, starting a command imports nothing heavy, facts carry sources."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ORDER = ["catalogs", "calibration", "simulator", "planner"]
HEAVY = ["torch", "transformers", "sklearn", "optuna", "pandas", "scipy", "pyarrow"]


def imported_packages(source: str) -> set[str]:
    """Our top-level packages that a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names & set(ORDER)


def upward_imports(package: str, source: str) -> set[str]:
    return {name for name in imported_packages(source) if ORDER.index(name) > ORDER.index(package)}


@pytest.mark.parametrize("package", ORDER)
def test_imports_point_one_way(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    broken = {str(f.relative_to(ROOT)): up for f in files if (up := upward_imports(package, f.read_text()))}
    assert not broken


def test_an_upward_import_would_be_seen() -> None:
    assert upward_imports("catalogs", "def f():\n    from simulator.core.batch import BatchShape\n") == {"simulator"}


@pytest.mark.parametrize("package", ORDER)
def test_files_stay_readable(package: str) -> None:
    long = {f.name: n for f in (ROOT / package).rglob("*.py") if (n := len(f.read_text().splitlines())) > 500}
    assert not long


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.stem)
def test_benchmarks_still_import(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(script.parent)
    runpy.run_path(str(script), run_name="imported")


@pytest.mark.parametrize(
    "module", ["catalogs.cli.main", "simulator.verify.command", "simulator.cli.main", "planner.cli.main"]
)
def test_starting_a_command_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("module", "apart"),
    [
        (
            "simulator.schedulers.registry",
            ("calibration", "simulator.costs.pricing", "simulator.costs.tables", "simulator.costs.step_cost"),
        ),
        (
            "simulator.costs.speculative",
            ("simulator.core.request", "simulator.schedulers.registry", "simulator.engine.replica"),
        ),
    ],
)
def test_schedulers_know_no_prices_and_prices_no_requests(module: str, apart: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[m for m in sys.modules if m.startswith({apart!r})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []


@pytest.mark.parametrize("kind", ["models", "hardware", "engines", "workloads"])
def test_every_fact_file_names_its_source(kind: str) -> None:
    import yaml

    files = {f.name: yaml.safe_load(f.read_text()) for f in (ROOT / "catalogs/data" / kind).glob("*.yaml")}
    facts = {name: d for name, d in files.items() if name != "names.yaml" and d.get("supported", True)}
    assert facts
    assert not [name for name, d in facts.items() if not d.get("source")]
