"""Laws of the code base: files stay readable, arrays have shapes, starting a command is fast, facts carry sources.

What may import what is in .importlinter, which lint-imports checks.
"""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
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


#: What browsers read, without the libraries of others.
SCRIPTS = sorted((ROOT / "planner/web/static/js").rglob("*.js"))
TEMPLATES = sorted((ROOT / "planner/web/templates").glob("*.html"))


def test_scripts_and_templates_stay_readable() -> None:
    assert len(SCRIPTS) > 20
    assert len(TEMPLATES) > 10
    lines = {file: file.read_text(encoding="utf-8").splitlines() for file in (*SCRIPTS, *TEMPLATES)}
    wide = [f"{file.name}:{i}" for file, texts in lines.items() for i, text in enumerate(texts, 1) if len(text) > 120]
    assert wide == []
    assert {file.name: len(texts) for file, texts in lines.items() if len(texts) > 500} == {}
    long = [
        f"{file.name}: {name}, {n} lines" for file in SCRIPTS for name, n in functions(lines[file]) if n > MOST_JS_LINES
    ]
    assert long == []


#: Most lines of a function of JavaScript; those that connect a whole form with its page are the longest.
MOST_JS_LINES = 100


def functions(lines: list[str]) -> Iterator[tuple[str, int]]:
    """The functions of a module and their numbers of lines; a function ends at the brace in the first column."""
    name, start = "", 0
    for i, line in enumerate(lines):
        if found := re.match(r"(?:export )?(?:async )?function (\w+)", line):
            name, start = found[1], i
        elif line == "}" and name:
            yield name, i - start + 1
            name = ""


def test_scripts_import_what_they_call() -> None:
    exported = {name for file in SCRIPTS for name in re.findall(r"^export (?:async )?function (\w+)", read(file), re.M)}
    missing = [f"{file.name}: {name}" for file in SCRIPTS for name in sorted(called_only(read(file)) & exported)]
    assert missing == []
    unused = [f"{file.name}: {name}" for file in SCRIPTS for name in imported_only(read(file))]
    assert unused == []
    assert called_only("/** fill(x) */ const b = 1;\na.button(b);\nfill(b); `${c(b)}`") == {"fill", "c"}


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def imported_only(code: str) -> set[str]:
    """The names that a module of JavaScript imports and does not use."""
    code = re.sub(r'"[^"\n]*"', '""', code)
    imported = {name.strip() for names in re.findall(r"import \{(.*?)\}", code, re.S) for name in names.split(",")}
    words = Counter(re.findall(r"\w+", code))
    return {name for name in imported if words[name.split()[-1]] < 2} if imported else set()


def called_only(code: str) -> set[str]:
    """The names that a module of JavaScript calls, and neither imports nor declares."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", code, flags=re.S)
    called = set(re.findall(r"(?<![\w.])([a-zA-Z]\w*)\(", code))
    imported = {name.strip() for names in re.findall(r"import \{(.*?)\}", code, re.S) for name in names.split(",")}
    return called - imported - set(re.findall(r"\b(?:function|const|let|class) (\w+)", code))


#: Folders of plug-ins, where one short module is one entry of a registry.
PLUG_INS = {
    "batchers",
    "commands",
    "targets",
    "routers",
    "schedulers",
    "importers",
    "kernels",
    "launch",
    "api",
    "kinds",
}
#: Other modules under 60 lines, and why they stand alone.
SHORT = {
    "catalogs/arrays.py": "public types",
    "catalogs/cli/main.py": "the entry point",
    "catalogs/cli/options.py": "shared by several commands",
    "catalogs/cli/screen.py": "shared by several commands",
    "catalogs/deployments/queueing.py": "public types",
    "catalogs/engines/versions.py": "shared by start commands and calibration.bundles",
    "catalogs/io/json_block.py": "public types",
    "catalogs/models/catalog.py": "the lookup by name, above the files it reads",
    "catalogs/ui/installation.py": "run alone by setup.py, without any dependency",
    "catalogs/ui/quiet_start.py": "imported before all else",
    "catalogs/workloads/limits.py": "shared by workloads and requests",
    "catalogs/units.py": "public constants",
    "calibration/accuracy/reliability.py": "public types",
    "calibration/bundles/releases.py": "the choice of a release, below the bundle that makes it",
    "calibration/cli/main.py": "the entry point",
    "calibration/cli/options.py": "shared by several commands",
    "calibration/cli/screen.py": "shared by several commands",
    "calibration/families/nonnegative.py": "shared by families and simulator.verify",
    "calibration/report/drawing.py": "shared by all pages",
    "calibration/report/write.py": "heavy imports, loaded only to write a report",
    "calibration/whole_models/intervals.py": "statistics, without rows and estimators",
    "planner/cli/main.py": "the entry point",
    "planner/answer/curve_rates.py": "one rule, tested alone",
    "planner/evaluation/stability.py": "one rule, shared by bounds, runs and verdicts",
    "planner/main.py": "the entry point",
    "planner/networks/reproduction.py": "shared by answers and the page",
    "planner/problem/reproduction.py": "the schema of a block",
    "planner/sections/region_prices.py": "one table, on the screens of both kinds of models",
    "planner/web/mcp/command.py": "the command, apart from the protocol that it serves",
    "planner/web/scripts.py": "shared by all pages",
    "simulator/cli/other_run.py": "imported only for a comparison",
    "simulator/cluster/disaggregation.py": "the policy, which the transfers do not need",
    "simulator/cluster/open_loop.py": "arrivals, for every kind of run",
    "simulator/cluster/run_reuse.py": "one rule, for the runs of the planner",
    "simulator/core/mypyc_modules.py": "run alone by setup.py, without any dependency",
    "simulator/core/invariants.py": "public types",
    "simulator/costs/compile.py": "the choice among the cost models, above all of them",
    "simulator/costs/generate_host.py": "one host time",
    "simulator/costs/measured_steps.py": "one cost model",
}


def test_short_modules_have_a_reason() -> None:
    short = set()
    for file in (f for package in PACKAGES for f in (ROOT / package).rglob("*.py")):
        stands = file.name in ASIDE or PLUG_INS & set(file.relative_to(ROOT).parts)
        if not stands and len(file.read_text(encoding="utf-8").splitlines()) < 60:
            short.add(str(file.relative_to(ROOT)))
    assert short == set(SHORT)


ARRAYS = ("FloatArray", "IntArray", "BoolArray", "NDArray", "ndarray")


def without_shape(source: str) -> list[str]:
    """Return the public functions that take or return an array and whose docstring (or class) gives no shape."""
    found = []

    def visit(node: ast.Module | ast.ClassDef, shaped: bool) -> None:
        for item in node.body:
            doc = (ast.get_docstring(item) or "") if isinstance(item, ast.ClassDef | ast.FunctionDef) else ""
            if isinstance(item, ast.ClassDef) and not item.name.startswith("_"):
                visit(item, "shape" in doc.lower())
            if isinstance(item, ast.FunctionDef) and not item.name.startswith("_") and not shaped:
                types = [a.annotation for a in (*item.args.args, *item.args.kwonlyargs)] + [item.returns]
                texts = [ast.unparse(t) for t in types if t is not None]
                named = [
                    t for t in texts if "dict[" not in t and "Mapping[" not in t
                ]  # arrays by name have a schema of their own
                arrays = [t for t in named if any(name in t for name in ARRAYS)]
                if arrays and "shape" not in doc.lower():
                    found.append(item.name)

    visit(ast.parse(source), shaped=False)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_array_has_its_shape_documented(package: str) -> None:
    files = {str(f.relative_to(ROOT)): f.read_text(encoding="utf-8") for f in (ROOT / package).rglob("*.py")}
    assert {name: missing for name, source in files.items() if (missing := without_shape(source))} == {}


def test_a_missing_shape_would_be_seen() -> None:
    told = 'def a(x: FloatArray) -> float:\n    """Return the mean. Shape (n,)."""\n'
    assert without_shape(told + 'def b() -> FloatArray:\n    """Return it."""\n') == ["b"]


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.stem)
def test_benchmarks_still_import(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(script.parent)
    runpy.run_path(str(script), run_name="imported")


@pytest.mark.parametrize(
    "module", ["catalogs.cli.main", "simulator.verify.command", "simulator.cli.main", "planner.main"]
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
    aliases = {name: f"{d['same_as']}.yaml" for name, d in facts.items() if "same_as" in d}
    assert not [name for name, target in aliases.items() if "same_as" in facts[target]]
    assert not [name for name, d in facts.items() if name not in aliases and not d.get("source")]


#: Nodes of the syntax tree from which a body counts as written twice; shorter ones are often the same by nature.
TWICE = 40


def bodies(source: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the body, without docstring, of each function that is long enough to be written twice."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            if sum(1 for statement in body for _ in ast.walk(statement)) >= TWICE:
                yield node.name, "\n".join(map(ast.dump, body))


def test_no_function_is_written_twice() -> None:
    assert len({body for _, body in bodies(WRITTEN_TWICE)}) == 1
    found: dict[str, list[str]] = {}
    for file in (f for package in PACKAGES for f in (ROOT / package).rglob("*.py")):
        for name, body in bodies(file.read_text(encoding="utf-8")):
            found.setdefault(body, []).append(f"{file.relative_to(ROOT)}: {name}")
    assert [places for places in found.values() if len(places) > 1] == []


WRITTEN_TWICE = '''
def first(values):
    """One description."""
    values = values[~np.isnan(values)]
    if not len(values):
        return dict.fromkeys(("mean", *QUANTILES))
    return {"mean": float(values.mean()), **dict(zip(QUANTILES, np.percentile(values, QUANTILES), strict=True))}

def second(values):
    values = values[~np.isnan(values)]
    if not len(values):
        return dict.fromkeys(("mean", *QUANTILES))
    return {"mean": float(values.mean()), **dict(zip(QUANTILES, np.percentile(values, QUANTILES), strict=True))}
'''


def test_settings_of_commands_are_written_once() -> None:
    files = (f for package in PACKAGES for f in (ROOT / package).rglob("*.py"))
    made = [str(f.relative_to(ROOT)) for f in files if re.search(r"typer\.Typer[()]", f.read_text(encoding="utf-8"))]
    assert made == ["catalogs/ui/shared_options.py"]
