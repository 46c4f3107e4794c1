"""The last line of a run names what was left out, and `--strict-skips` fails on what could have been installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TESTS = """
import pytest

def test_runs(): pass

@pytest.mark.slow
def test_slow(): raise AssertionError

@pytest.mark.parametrize("i", range(2))
def test_without_hardware(i): pytest.skip("hardware: there is no GPU")
"""

A_PACKAGE = "\n\ndef test_without_a_package(): pytest.importorskip('no_such_package', reason='it is not installed')\n"

A_FILE = "import pytest\n\npytest.importorskip('no_such_package', reason='it is not installed either')\n"


def run(folder: Path, *options: str) -> tuple[int, str]:
    """The exit status and the last line."""
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\nmarkers = slow\naddopts = -q -m 'not slow'\n")
    plugins = ("no:cacheprovider", "tests.skip_report", "xdist")  # of those installed, some take a second to load
    command = [sys.executable, "-m", "pytest", *(word for plugin in plugins for word in ("-p", plugin)), *options]
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout.splitlines()[-1]


def test_skips_for_lack_of_hardware_pass(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    line = "Skipped: 2 x hardware: there is no GPU. Not selected: 1 slow (pytest -m slow)."
    assert run(tmp_path, "--strict-skips") == (0, line)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_missing_package_fails_a_strict_run_only(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(TESTS + A_PACKAGE)
    (tmp_path / "test_file.py").write_text(A_FILE)
    skipped = "Skipped: 2 x hardware: there is no GPU; 1 x it is not installed; 1 x it is not installed either."
    line = f"{skipped} Not selected: 1 slow (pytest -m slow)."
    assert run(tmp_path, *workers) == (0, line)
    strict = f"{line} FAILED (--strict-skips): 2 skipped for a reason other than hardware."
    assert run(tmp_path, *workers, "--strict-skips") == (1, strict)
