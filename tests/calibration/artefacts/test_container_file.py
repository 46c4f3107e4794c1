"""The container file of the matrix, instruction by instruction in roots of their own, without a container engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.calibration.artefacts.fresh_root import PATH, PYTHON, FreshRoot, may_make_namespaces

CHECKOUT = Path(__file__).resolve().parents[3]


def pip_settings() -> dict[str, str]:
    """Return the settings of this machine's pip and its proxies as variables of an environment."""
    words = [PYTHON, "-m", "pip", "config", "list"]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    found = dict(re.findall(r"^global\.([\w-]+)='(.*)'$", listed, re.M))
    named = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in found.items()}
    return named | {n: v for n, v in os.environ.items() if n.startswith("PIP_") or n.lower().endswith("_proxy")}


def folders_in(settings: dict[str, str]) -> list[str]:
    """Return the folders of this machine that settings name, or whose files they name, such as an index of packages."""
    found = {path for text in settings.values() for path in re.findall(r"(?:file://|^|\s)(/[\w./-]+)", text)}
    inside = {path for path in found if path.endswith("/simple") or os.path.isfile(path)}
    roots = {os.path.dirname(path) if path in inside else path for path in found}
    return sorted(path for path in roots if os.path.isdir(path))


@dataclass
class Stage:
    """What the instructions of one stage have made so far."""

    root: FreshRoot
    environment: dict[str, str]
    user: str = "0:0"
    folder: str = "/"
    start: list[str] = field(default_factory=list)

    def inside(self, path: str) -> Path:
        """Return where a path of the stage lies on this machine."""
        return self.root.folder / os.path.join(self.folder, path).lstrip("/")

    def run(self, words: list[str], limit_s: float) -> subprocess.CompletedProcess[str]:
        """Run a command in the working folder of the stage, as its user."""
        here = ["/bin/sh", "-c", f'cd {shlex.quote(self.folder)} && exec "$@"', "here", *words]
        return self.root.run(here, self.environment, self.user, limit_s)


def copied(stage: Stage, stages: dict[str, Stage], words: list[str]) -> None:
    """Execute COPY."""
    source = CHECKOUT
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].root.folder
    *names, to = words
    for name in names:
        path = source / name.lstrip("/")
        target = stage.inside(to) if path.is_dir() else stage.inside(to) / path.name
        if path.is_dir():
            shutil.copytree(path, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def built(text: str, folder: Path) -> Stage:
    """Execute a container file; return its last stage.

    The base of each stage is this machine's Python without packages. The first one may use the network, as a build may.
    """
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    pip = pip_settings()
    sources = {path: path for path in [*folders_in(pip), "/etc/ssl"]}
    for line in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.M)).splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            first = not stages
            root = FreshRoot(folder / str(len(stages)), sources if first else {}, has_network=first)
            stage = Stage(root, {"PATH": PATH, "HOME": "/root"} | (pip if first else {}))
            stages[rest.split(" AS ")[1] if " AS " in rest else "last"] = stage
        elif stage is None or not name or name in ("VOLUME",):
            continue
        elif name == "COPY":
            copied(stage, stages, rest.split())
        elif name == "RUN":
            done = stage.run(["/bin/sh", "-c", rest], 500.0)
            assert done.returncode == 0, f"{rest}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        elif name == "ENV":
            found = [word.partition("=") for word in shlex.split(rest)]
            stage.environment |= {k: v.replace("$PATH", stage.environment["PATH"]) for k, _, v in found}
        elif name == "USER":
            stage.user = rest.strip()
        elif name == "WORKDIR":
            stage.folder = rest.strip()
            stage.inside("").mkdir(parents=True, exist_ok=True)
        elif name == "ENTRYPOINT":
            stage.start = json.loads(rest)
        else:
            assert name in ("ARG", "CMD"), line
    assert stage is not None
    return stage


@pytest.mark.slow
def test_the_image_of_the_matrix_records_checks_and_replays_a_run_without_a_network(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("this process may not make a root of its own")
    image = built((CHECKOUT / "Containerfile.matrix").read_text(encoding="utf-8"), tmp_path)
    assert not image.root.has_network
    where = image.run(["python3", "-c", "import planner, os; print(planner.__file__, os.getuid())"], 60.0)
    assert where.stdout.split()[0].startswith("/opt/planner/lib/"), where.stderr
    assert where.stdout.split()[1] == "10001"
    ran = image.run([*image.start, "--preset", "systems", "--hw", "h100x8", "--only", "opt-13b / vllm"], 300.0)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "same bytes" in ran.stdout
    rows = json.loads((image.root.folder / "data/run/results/matrix.json").read_text())["rows"]
    assert {row["verdict"] for row in rows} == {"ok"}
    again = image.run(["calibrate", "artefact", "verify", "run"], 60.0)
    assert again.returncode == 0, again.stderr
