"""Compiled modules: nothing differs to the last digit, and stale ones never run."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from catalogs.errors import InputError
from catalogs.ui.installation import DIGESTS, digests, is_compiled
from catalogs.ui.installation import ROOT as IMPORTED_FROM
from simulator.core.mypyc_modules import COMPILED

ROOT = Path(__file__).resolve().parents[3]
CASES = ROOT / "tests/simulator/compiled_cases.py"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the sources of the compiled modules and the digests of a build."""
    for path in COMPILED:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / DIGESTS).write_text(json.dumps(digests(COMPILED, tmp_path)))
    return tmp_path


def test_an_edited_source_of_a_compiled_module_is_refused(installed: Path) -> None:
    assert is_compiled(installed)
    edited = installed / COMPILED[3]
    edited.write_text(edited.read_text() + "\n# edited\n")
    with pytest.raises(InputError, match=COMPILED[3]):
        is_compiled(installed)
    (installed / DIGESTS).unlink()
    assert not is_compiled(installed)


#: A command in an installation with compiled modules: folder, console script, and its arguments.
COMMAND = """
import sys
from pathlib import Path
import catalogs.ui.installation as installation
installation.is_compiled.__defaults__ = (Path(sys.argv[1]),)
installation.digests.__defaults__ = (Path(sys.argv[1]),)
from importlib import import_module
name, sys.argv = sys.argv[2], sys.argv[2:]
import_module({"plan": "planner.main", "simulate": "simulator.cli.main"}[name]).main()
"""

QUESTIONS = {
    "plan": ["--model", "llama3.1-8b", "--slo", "p99=1s", "--hw", "h100", "--rate", "1"],
    "simulate": ["--from-command", "vllm serve meta-llama/Llama-3.1-8B", "--hw", "h100x1", "--requests", "5"],
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_command_with_an_edited_module_ends_in_one_line(installed: Path, name: str) -> None:
    """`--version` and the simulator read the same record, and the user's edit is no defect of the command."""

    def ran(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", COMMAND, installed, name, *args], capture_output=True, text=True)

    assert "compiled modules" in ran("--version").stdout
    (installed / COMPILED[3]).write_text("# edited\n")
    for done in (ran("--version"), ran(*QUESTIONS[name])):
        assert (done.returncode, done.stdout) == (2, "")
        line = f"{name}: a compiled module differs from its source; install the package again: got '{COMPILED[3]}'"
        assert done.stderr.splitlines()[-1] == line


def test_a_checkout_runs_its_sources() -> None:
    """Whatever compiled modules lie beside the sources, none does in a checkout."""
    assert IMPORTED_FROM == ROOT
    assert not is_compiled(ROOT)
    assert [path for path in COMPILED if list((ROOT / path).parent.glob(f"{Path(path).stem}.*.so"))] == []


@pytest.mark.parametrize("command", [["build_ext", "--inplace"], ["develop"], ["editable_wheel"]])
def test_nothing_is_compiled_in_a_checkout(command: list[str]) -> None:
    """The arguments of setup() that an editable installation gets contain no modules to compile."""
    read = "import runpy, sys, setuptools; setuptools.setup = lambda **given: print(sorted(given)); "
    run = f"sys.argv = ['setup.py', *{command}]; runpy.run_path('setup.py')"
    env = {**os.environ, "CAPACITY_PLANNER_COMPILE": "1"}
    printed = subprocess.run([sys.executable, "-c", read + run], cwd=ROOT, env=env, capture_output=True, text=True)
    assert printed.stdout.splitlines()[-1] == "[]", printed.stderr


def test_compiled_modules_sum_no_generators() -> None:
    """From Python 3.12 on `sum` compensates the rounding of floats; the compiler turns a sum over a generator into a
    loop that does not."""
    found = [
        f"{path}:{node.lineno}"
        for path in COMPILED
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sum"
        if isinstance(node.args[0], ast.GeneratorExp)
    ]
    assert found == []


def outputs(packages: Path, folder: Path) -> dict[str, bytes]:
    """The files that the runs of `compiled_cases.py` write with the packages of a folder."""
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": str(packages)}
    subprocess.run([sys.executable, str(CASES), str(folder)], cwd=folder, env=env, check=True, capture_output=True)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_compiled_modules_give_the_same_outputs_byte_for_byte(tmp_path: Path) -> None:
    """Summaries, rows of requests and a plan's answer, over engines and features (about three minutes)."""
    pytest.importorskip("mypyc")
    built = tmp_path / "packages"
    args = ["build", "--build-base", str(tmp_path / "base"), "--build-lib", str(built)]
    env = {**os.environ, "CAPACITY_PLANNER_COMPILE": "1"}
    subprocess.run([sys.executable, "setup.py", "-q", *args], cwd=ROOT, env=env, check=True, capture_output=True)
    plain, compiled = outputs(ROOT, tmp_path / "plain"), outputs(built, tmp_path / "compiled")
    assert (plain.pop("compiled"), compiled.pop("compiled")) == (b"False", b"True")
    assert len(plain) > 40
    assert plain == compiled
