"""A comparison with a real engine as an artefact: measured and simulated requests in one table, logs and results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.artefacts.contents import request_rows
from calibration.artefacts.recording import ArtefactRecording, recording
from catalogs.io.output_files import finite
from catalogs.io.yaml_loader import dump_yaml
from simulator.core.outcomes import STATUS
from simulator.verify.session import Verification

#: Options on where programs and outputs lie on this machine, which a replay states again.
_OF_THIS_MACHINE: Final = (
    "python",
    "server",
    "port",
    "out",
    "install",
    "docs",
    "artefact",
    "machine",
    "json_file",
    "url",
)

#: Largest log that is kept, in characters; of a longer one, the end is kept.
_MOST_LOG: Final = 2_000_000


def record(target: Path, found: Verification, folder: Path, document: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Write a comparison as an artefact.

    Args:
        target: The folder of the artefact.
        found: The comparison.
        folder: The folder of its logs.
        document: Its document for JSON.
        given: The options of the command by the names of its parameters.

    Raises:
        InputError: The folder exists, or cannot be written.
    """
    with recording(target, "mixed") as artefact:
        options = {name: value for name, value in given.items() if name not in _OF_THIS_MACHINE}
        artefact.command = _command(artefact, found, options)
        artefact.seeds = {"trials": found.effort.size.seed}
        artefact.add_requests(rows(found))
        artefact.add_result("verify.json", json.dumps(finite(document), indent=1) + "\n")
        for log in sorted(folder.rglob("*.log")):
            text = log.read_text(encoding="utf-8", errors="replace")[-_MOST_LOG:]
            artefact.add_log("-".join(log.relative_to(folder).parts), text)
        artefact.notes.append("a replay needs the engine: add its place, for example -- --python VLLM/bin/python")


def _command(artefact: ArtefactRecording, found: Verification, options: dict[str, Any]) -> list[str]:
    """Return the words of the command, with the model and the deployment as inputs of the artefact."""
    words = ["calibrate", "verify"]
    model = options.pop("model", None)
    written = options.pop("deployment", None)
    if model is not None:
        words += ["--model", artefact.add_input(Path(model), "model")]
    if written is not None:
        words += ["--deployment", artefact.add_input(Path(written), "deployment.yaml")]
    keys = found.subject.deployment.model_dump(exclude_defaults=True, mode="json")
    artefact.add_input_text("deployment-as-simulated.yaml", dump_yaml(keys), "the deployment of the simulation")
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None and each is not False:
                words += [f"--{name.replace('_', '-')}", str(each)]
    return words


def rows(found: Verification) -> Iterator[dict[str, Any]]:
    """Yield the requests of all trials: every measured repeat, and the simulation by every way of calibration."""
    for trial, repeats in found.measured.items():
        for i, run in enumerate(repeats, 1):
            names = ("arrival_s", "input_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s")
            yield from request_rows({n: getattr(run, n) for n in names}, "measured", f"{trial}, repeat {i}")
    for (trial, way), simulated in found.simulated.items():
        columns = {name: getattr(simulated, name) for name in ("arrival_s", "ttft_s", "tpot_s", "e2e_s", "queue_s")}
        columns |= {"preemptions": simulated.preemptions, "replica": np.maximum(simulated.replica, 0)}
        columns |= {n: getattr(simulated.requests, n) for n in ("input_tokens", "output_tokens")}
        columns |= {"status": np.array([STATUS[code] for code in simulated.status.tolist()])}
        yield from request_rows(columns, "simulated", f"{trial}, {way}")
