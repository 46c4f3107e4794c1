"""An artefact replays in a fresh root: this program and its dependencies, no checkout, no user data, no network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.calibration.artefacts.fresh_root import PYTHON, FreshRoot, may_make_namespaces

CHECKOUT = Path(__file__).resolve().parents[3]

PACKAGES = Path(np.__file__).resolve().parents[1]

ENVIRONMENT = {
    "HOME": "/data",
    "PATH": "/usr/bin:/bin",
    "PYTHONPATH": "/opt/source:/opt/packages",
    "PYTHONDONTWRITEBYTECODE": "1",
}

SEEN = """
import os, pathlib, json, sys
net = [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]]
print(json.dumps({"net": net, "uid": os.getuid(), "catalogs": str(pathlib.Path(__import__("catalogs").__file__)),
                  "checkout": os.path.exists(sys.argv[1]), "data": sorted(os.listdir("/data"))}))
"""


def root_with_this_program(folder: Path) -> FreshRoot:
    """Return a root with the parts of this program that its container file copies, and its dependencies."""
    root = FreshRoot(folder, {"/opt/packages": str(PACKAGES)})
    for name in ("data", "opt/source", "opt/packages"):
        (folder / name).mkdir(parents=True)
    (folder / "etc/passwd").write_text("planner:x:10001:10001::/data:/bin/sh\n")
    text = (CHECKOUT / "Containerfile.matrix").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (?!--)(.*)$", text, re.M) for word in line.split()[:-1]]
    for name in copied:
        source, target = CHECKOUT / name, folder / "opt/source" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    os.chown(folder / "data", 10001, 10001)
    return root


def in_root(root: FreshRoot, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the root as a user without rights."""
    return root.run([PYTHON, *arguments], ENVIRONMENT, "10001:10001")


@pytest.mark.slow
def test_an_artefact_made_here_replays_in_a_fresh_root_without_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not may_make_namespaces():
        pytest.skip("this process may not make a root of its own")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "none"))
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(
        "models: [llama3.1-8b]\nengines: [vllm, llama.cpp]\nhardware: [h100x1]\nworkloads: [sharegpt]\n"
        "batches: [1, 4]\nrequests: 32\n"
    )
    run = tmp_path / "run"
    calibrate = [sys.executable, "-m", "simulator.verify.command", "artefact"]
    words = ["plan", "matrix", "inputs/matrix.yaml", "--json", "results/matrix.json", "--html", "results/matrix.html"]
    record = [*calibrate, "record", str(run), "--input", str(matrix), "--", *words]
    subprocess.run(record, check=True, capture_output=True, cwd=CHECKOUT, timeout=300)
    root = root_with_this_program(tmp_path / "root")
    shutil.copytree(run, root.folder / "data/run")
    found = in_root(root, "-c", SEEN, str(CHECKOUT))
    assert found.returncode == 0, found.stderr
    seen = json.loads(found.stdout)
    assert seen["net"] in (["lo"], [])
    assert seen["uid"] == 10001
    assert seen["catalogs"].startswith("/opt/source/")
    assert seen["data"] == ["run"]
    assert not seen["checkout"]
    whole = in_root(root, "-m", "simulator.verify.command", "artefact", "verify", "/data/run")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    replayed = in_root(root, "-m", "simulator.verify.command", "artefact", "replay", "/data/run")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "same bytes" in replayed.stdout
    # a changed byte of a result is found there as well, and is not replayed
    result = root.folder / "data/run/results/matrix.json"
    result.write_bytes(result.read_bytes().replace(b"llama3.1-8b", b"llama3.1-9b", 1))
    changed = in_root(root, "-m", "simulator.verify.command", "artefact", "verify", "/data/run")
    assert changed.returncode == 1
    assert "results/matrix.json" in changed.stdout
    damaged = in_root(root, "-m", "simulator.verify.command", "artefact", "replay", "/data/run")
    assert damaged.returncode == 2
    assert "damaged" in damaged.stderr
