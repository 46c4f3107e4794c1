"""Laws of the code base: files stay readable, starting a command imports nothing heavy, facts carry sources.

What may import what is in .importlinter, which lint-imports checks.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["catalogs", "calibration", "simulator", "planner"]
#: Modules that do not count when a folder is said to be crowded.
ASIDE = {"__init__.py", "registry.py"}
HEAVY = ["torch", "transformers", "sklearn", "optuna", "pandas", "scipy", "pyarrow"]


@pytest.mark.parametrize("package", PACKAGES)
def test_files_stay_readable(package: str) -> None:
    long = {f.name: n for f in (ROOT / package).rglob("*.py") if (n := len(f.read_text().splitlines())) > 500}
    assert not long
    folders = {folder: list(folder.glob("*.py")) for folder in (ROOT / package).rglob("*") if folder.is_dir()}
    crowded = {str(f): n for f, files in folders.items() if (n := sum(p.name not in ASIDE for p in files)) > 20}
    assert not crowded


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
