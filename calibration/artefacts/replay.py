"""The replay of an artefact: its command runs again on its inputs, without a network, and the results are compared.

A simulated artefact must give the same bytes. A measured one must give the same means within the interval of resampled
requests, widened by the noise that repeats of a measurement have.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from calibration.artefacts.checking import artefact_faults, read_manifest
from calibration.artefacts.comparison import ArtefactDifference, MetricChange, difference
from calibration.artefacts.contents import INPUTS, RESULTS, Kind, Manifest
from calibration.artefacts.recording import recording
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

#: Relative difference of means that two measurements of the same run may have. A judgement: the clocks and the
#: neighbours of a machine change by as much.
NOISE: Final = 0.10

#: Longest run of a command, seconds: a day.
_TIMEOUT_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ArtefactReplay:
    """The result of a replay.

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


def replay(folder: Path, more: Sequence[str] = (), keep: Path | None = None) -> ArtefactReplay:
    """Run the command of an artefact again and compare the results.

    Args:
        folder: The artefact.
        more: Further options of the command, for example where its engine is installed on this machine.
        keep: The folder of the new artefact; None removes it.

    Raises:
        InputError: The artefact is damaged, or its command cannot run here.
    """
    if problems := artefact_faults(folder):
        raise InputError(f"the artefact is damaged ({problems[0]})", str(folder))
    manifest = read_manifest(folder)
    name, *arguments = manifest.command
    if name not in MODULES:
        raise InputError("the command of the artefact cannot be replayed", name, ", ".join(MODULES))
    with tempfile.TemporaryDirectory() as scratch:
        target = (keep or Path(scratch) / "replay").absolute()
        environment = _environment(folder, Path(scratch))
        if manifest.wrapped:
            names = [file.path.removeprefix(f"{INPUTS}/") for file in manifest.inputs]
            inputs = {name: folder / INPUTS / name for name in names}
            record_command(target, [*manifest.command, *more], inputs, manifest.kind, environment)
        else:
            words = [*arguments, *more, "--artefact", str(target)]
            done = _run([name, *words], folder, environment)
            if not target.is_dir():
                raise _failure(manifest.command, done)
        return ArtefactReplay(manifest, difference(folder, target))


def record_command(
    target: Path,
    command: Sequence[str],
    inputs: Mapping[str, Path],
    kind: Kind = "simulated",
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command of this program inside a new artefact, which keeps all files that it writes there.

    The command runs in the folder of the artefact: its words name inputs as `inputs/NAME`, and outputs as
    `results/NAME`.

    Args:
        target: The folder of the artefact.
        command: The words of the command; the first is one of MODULES.
        inputs: The files that it reads, by their names below `inputs/`.
        kind: Whether its results are simulated or measured.
        environment: The environment of the command; None for that of this process.

    Raises:
        InputError: The command is unknown or fails, or an input cannot be read.
    """
    if not command or command[0] not in MODULES:
        first = command[0] if command else ""
        raise InputError("an artefact records a command of this program", first, ", ".join(MODULES))
    with recording(target, kind, command) as artefact:
        artefact.wrapped = True
        for name, path in inputs.items():
            artefact.add_input(path, name)
        (artefact.folder / RESULTS).mkdir()
        done = _run(command, artefact.folder, environment)
        if done.returncode not in (0, 1):  # 1 is an answer as well: no
            raise _failure(command, done)
        artefact.add_log("stdout.txt", done.stdout)
        artefact.add_log("stderr.txt", done.stderr)
        if not any((artefact.folder / RESULTS).iterdir()):
            hint = "let it write below results/, for example --json results/out.json"
            raise InputError("the command wrote no results into the artefact", " ".join(command), hint=hint)


def _run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    """Run a command of this program in a folder.

    Raises:
        InputError: It cannot be started, or does not end.
    """
    try:
        return subprocess.run(
            [sys.executable, "-m", MODULES[command[0]], *command[1:]],
            cwd=folder,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"the command of the artefact does not end ({type(error).__name__})", command[0]) from None


def _failure(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> InputError:
    last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
    return InputError(f"the command of the artefact failed ({plain_text(last[0])})", " ".join(command))


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
