"""The replay of an artefact: its command runs again on its inputs, without a network, and the results are compared.

A simulated artefact must give the same bytes. A measured one must give the same means within the interval of resampled
requests, widened by the noise that repeats of a measurement have.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from calibration.artefacts.checking import faults, read_manifest
from calibration.artefacts.comparison import ArtefactDifference, MetricChange, difference
from calibration.artefacts.contents import INPUTS, Manifest
from catalogs.errors import InputError
from catalogs.io.http import plain_text

#: The module behind each command that can write an artefact.
MODULES: Final = {
    "simulate": "simulator.cli.main",
    "calibrate": "simulator.verify.command",
    "plan": "planner.main",
}

#: The user's own data (calibrations) below the inputs, in the form of XDG_DATA_HOME.
USER_DATA: Final = "user"

#: Relative difference of means that two measurements of the same run may have.
NOISE: Final = 0.10

_TIMEOUT_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay found.

    Attributes:
        manifest: The manifest of the artefact.
        found: What differs between the artefact and its replay.
    """

    manifest: Manifest
    found: ArtefactDifference

    @property
    def missed(self) -> list[MetricChange]:
        """Return the latencies of measured runs whose means differ by more than the noise."""
        return [
            change
            for change in self.found.changes
            if change.run.startswith("measured") and not (change.low - NOISE <= 1.0 <= change.high + NOISE)
        ]

    @property
    def same(self) -> bool:
        """Return whether the replay confirms the artefact."""
        if self.manifest.kind == "simulated":
            return self.found.same_bytes
        return not self.missed and not self.found.only_first and not self.found.only_second


def replay(folder: Path, more: Sequence[str] = (), keep: Path | None = None) -> Replay:
    """Run the command of an artefact again and compare the results.

    Args:
        folder: The artefact.
        more: Further options of the command, for example where its engine is installed on this machine.
        keep: The folder of the new artefact; None removes it.

    Raises:
        InputError: The artefact is damaged, or its command cannot run here.
    """
    if problems := faults(folder):
        raise InputError(f"the artefact is damaged ({problems[0]})", str(folder))
    manifest = read_manifest(folder)
    name, *arguments = manifest.command
    if name not in MODULES:
        raise InputError("the command of the artefact cannot be replayed", name, ", ".join(MODULES))
    with tempfile.TemporaryDirectory() as scratch:
        target = (keep or Path(scratch) / "replay").absolute()
        command = [sys.executable, "-m", MODULES[name], *arguments, *more, "--artefact", str(target)]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=_environment(folder, Path(scratch)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(f"the command of the artefact does not end ({type(error).__name__})", name) from None
        if not target.is_dir():
            last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
            why = plain_text(last[0])
            raise InputError(f"the command of the artefact failed ({why})", " ".join(manifest.command))
        return Replay(manifest, difference(folder, target))


def _environment(folder: Path, scratch: Path) -> dict[str, str]:
    """Return the environment of a replay: the user's data of the artefact, and no access to model hubs."""
    data = folder.absolute() / INPUTS / USER_DATA
    root = Path(__file__).resolve().parent.parent.parent
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {
        "XDG_DATA_HOME": str(data if data.is_dir() else scratch / "data"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": path,
    }
