"""The base installation, without any extra, answers the questions that need none, and names the extra for others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from catalogs.ui.entry_point import EXTRAS

ROOT = Path(__file__).resolve().parents[1]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: Runs a command with all modules hidden that the base installation lacks.
RUN = """
import sys
from importlib.machinery import PathFinder
hidden = set(sys.argv.pop(1).split(","))

class Others:
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Others
command = sys.argv.pop(1)
from importlib import import_module
sys.exit(import_module(command).main())
"""

MAINS = {
    "plan": "planner.main",
    "simulate": "simulator.cli.main",
    "calibrate": "simulator.verify.command",
    "catalog": "catalogs.cli.main",
}


def base_packages() -> set[str]:
    """The distributions that pip installs with the base: its dependencies and theirs."""
    found, pending = set[str](), [Requirement(text) for text in PROJECT["dependencies"]]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        try:
            pending += [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:  # only on other systems
            continue
    return found


def hidden_modules() -> list[str]:
    """The modules of this environment that no distribution of the base provides."""
    base = base_packages()
    own = {"catalogs", "calibration", "simulator", "planner"}
    return sorted(
        module
        for module, providers in packages_distributions().items()
        if module not in own
        and module not in sys.stdlib_module_names
        and not base & set(map(canonicalize_name, providers))
    )


def base_run(command: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", RUN, ",".join(hidden_modules()), MAINS[command], *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_heavy_packages_are_hidden() -> None:
    assert {"pandas", "scipy", "pyarrow", "hypothesis", "pytest"} <= set(hidden_modules())
    assert not {"numpy", "pydantic", "optuna", "sqlalchemy", "typer", "rich", "simpy", "yaml"} & set(hidden_modules())


def test_a_plan_on_the_base_installation(tmp_path: Path) -> None:
    question = ["--model", "llama3.1-8b", "--slo", "p99=2s", "--hw", "rtx4090", "--set", "search.trials=2"]
    question += ["--input-tokens", "500", "--output-tokens", "20", "--precision", "native"]
    answer = tmp_path / "answer.json"
    done = base_run("plan", *question, "--json", answer)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Recommended" in done.stdout
    assert json.loads(answer.read_text())["feasible"] is True


@pytest.mark.slow
def test_the_question_of_the_readme_on_the_base_installation() -> None:
    line = re.search(r"^    plan (--model .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    done = base_run("plan", *line[1].split())
    assert (done.returncode, done.stderr) == (0, "")
    assert "Recommended" in done.stdout


def test_a_simulation_and_the_catalog_on_the_base_installation(tmp_path: Path) -> None:
    deployment, trace = tmp_path / "d.yaml", tmp_path / "t.csv"
    deployment.write_text("model: llama3.1-8b\nhardware: h100\n")
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n0.5,200,20\n")
    outputs = ["--requests-out", tmp_path / "r.csv", "--time-series", tmp_path / "s.csv", "--explain"]
    done = base_run("simulate", deployment, "--workload", trace, *outputs, "--json", tmp_path / "o.json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "s.csv").read_text().startswith("time_s,replica,")
    assert base_run("catalog", "list", "hardware").returncode == 0


def test_what_needs_an_extra_names_it(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("model: llama3.1-8b\nhardware: h100\n")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    done = base_run("simulate", tmp_path / "d.yaml", "--workload", tmp_path / "t.parquet")
    assert done.returncode == 2
    assert done.stderr == "simulate: this needs a package that is not installed: pyarrow; pip install '.[data]'\n"


def test_recorded_errors_need_no_extra_and_rows_name_it(tmp_path: Path) -> None:
    done = base_run("calibrate", "validate", "h100")
    assert done.stderr == ""
    assert "gemm" in done.stdout
    done = base_run("calibrate", "validate", "h100", "--rows", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "calibrate: this needs a package that is not installed: pandas; pip install '.[data]'\n"


def test_every_hint_names_the_extra_with_the_package() -> None:
    modules = packages_distributions()
    for extra, packages in EXTRAS.items():
        listed = {canonicalize_name(Requirement(text).name) for text in PROJECT["optional-dependencies"][extra]}
        for module in packages:
            assert listed & {canonicalize_name(name) for name in modules.get(module, [module])}, (extra, module)
