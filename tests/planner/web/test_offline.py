"""Every page works on a machine without a network: a namespace that has no route but to itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planner.web.pages import PAGES

ROOT = Path(__file__).resolve().parents[3]

#: Runs a command without a network; it needs no rights where the kernel allows user namespaces.
WITHOUT_NETWORK = ("unshare", "--net", "--map-root-user")


@pytest.mark.slow
def test_every_page_works_without_a_network(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if shutil.which("unshare") is None or subprocess.run([*WITHOUT_NETWORK, "true"], capture_output=True).returncode:
        pytest.skip("this process may not make a network namespace")
    command = [*WITHOUT_NETWORK, sys.executable, "-m", "tests.planner.web.offline_visit", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    visits = json.loads(done.stdout)
    assert [visit["path"] for visit in visits][: len(PAGES)] == [page.path for page in PAGES]
    assert len(PAGES) == 11
    assert [visit for visit in visits if visit["faults"] or len(visit["headings"]) != 1] == []
