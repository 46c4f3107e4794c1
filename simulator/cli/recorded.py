"""A simulation as an artefact: its inputs are copied first, and the run reads the copies, so that a replay is equal."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from calibration.artefacts.contents import REQUEST_COLUMNS, Column, schema_of
from calibration.artefacts.recording import ArtefactRecording, recording
from calibration.artefacts.replay import USER_DATA
from catalogs.errors import InputError
from catalogs.io.yaml_files import read_yaml, user_folder
from catalogs.io.yaml_loader import dump_yaml
from catalogs.models.catalog import list_models

#: The options that name outputs; they are not part of the recorded command.
_OUTPUTS: Final = ("json_file", "requests_out", "chrome_trace", "trace_window", "time_series", "time_step", "version")

_DEPLOYMENT: Final = "deployment.yaml"

#: The keys of a deployment file that may name a file or folder of the user.
_PATH_KEYS: Final = ("model",)


def simulate_recorded(target: Path, simulate: Callable[..., None], options: Mapping[str, Any]) -> None:
    """Run `simulate` with its inputs copied into an artefact, and write its rows and its document there.

    Args:
        target: The folder of the artefact.
        simulate: The command without an artefact.
        options: Its options by the names of its parameters; the requested outputs are written as well.

    Raises:
        InputError: The folder exists, or an input cannot be read or copied.
    """
    outputs: dict[str, Any] = {name: options.get(name) for name in _OUTPUTS}
    for name in ("json_file", "requests_out", "chrome_trace", "time_series"):
        if outputs[name] not in (None, "-"):
            absolute = os.path.abspath(outputs[name])
            outputs[name] = absolute if name == "json_file" else Path(absolute)
    with recording(target, "simulated") as artefact:
        given = {name: value for name, value in options.items() if name not in _OUTPUTS}
        given["deployment"] = Path(_staged_deployment(artefact, options["deployment"]))
        if options["workload"] is not None and os.path.isfile(options["workload"]):
            given["workload"] = _staged_workload(artefact, Path(options["workload"]))
        for name, value in given.items():
            if isinstance(value, Path) and name != "deployment":
                given[name] = Path(artefact.add_input(value, f"files/{name}/{value.name}"))
        _stage_calibrations(artefact)
        artefact.command = command_words(given)
        artefact.seeds = {"seed": options["seed"]} if options["seed"] is not None else {}
        printed = _run(artefact, simulate, given, outputs)
        artefact.add_log("simulate.txt", printed)
        _add_requests(artefact)
        _copy(artefact.folder / "results/result.json", outputs["json_file"])
        if outputs["requests_out"] is not None:
            shutil.copyfile(artefact.folder / "requests.csv", outputs["requests_out"])
        (artefact.folder / "requests.csv").unlink()
        if "hardware: local" in (artefact.folder / given["deployment"]).read_text(encoding="utf-8"):
            artefact.notes.append("the hardware is the machine of this run: another machine gives other results")


def command_words(given: Mapping[str, Any]) -> list[str]:
    """Return the words of the command with these options."""
    words = ["simulate", str(given["deployment"])]
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if name == "deployment" or value is None or value is False:
            continue
        words += [option] if value is True else [option, str(value)]
    return words


def _run(
    artefact: ArtefactRecording, simulate: Callable[..., None], given: dict[str, Any], outputs: dict[str, Any]
) -> str:
    """Run the command in the folder of the artefact; return what it prints on stderr."""
    (artefact.folder / "results").mkdir()
    printed = io.StringIO()
    quiet = contextlib.redirect_stdout(io.StringIO()) if outputs["json_file"] == "-" else contextlib.nullcontext()
    files = {"json_file": "results/result.json", "requests_out": Path("requests.csv")}
    with contextlib.chdir(artefact.folder), contextlib.redirect_stderr(printed), quiet:
        simulate(**given, **(outputs | files))
    return printed.getvalue()


def _staged_deployment(artefact: ArtefactRecording, path: Path) -> str:
    """Copy a deployment with the files and folders that it names; return its path below the artefact.

    Raises:
        InputError: The file cannot be read or is not YAML, or a file that it names cannot be copied.
    """
    staged: dict[str, str] = {}
    replaced = _with_staged_paths(read_yaml(path), artefact, staged)
    if not staged:
        return artefact.add_input(path, _DEPLOYMENT)
    return artefact.add_input_text(_DEPLOYMENT, dump_yaml(replaced), str(path))


def _with_staged_paths(value: Any, artefact: ArtefactRecording, staged: dict[str, str]) -> Any:
    """Return keys of YAML in which every model or file that the user has named by a path is named by its copy.

    Other keys, such as `engine`, may have the name of a folder that happens to exist, and a model of the catalog goes
    before a folder of its name.
    """
    if isinstance(value, dict):
        return {
            key: _staged_path(inner, artefact, staged)
            if key in _PATH_KEYS and isinstance(inner, str)
            else _with_staged_paths(inner, artefact, staged)
            for key, inner in value.items()
        }
    return [_with_staged_paths(inner, artefact, staged) for inner in value] if isinstance(value, list) else value


def _staged_path(value: str, artefact: ArtefactRecording, staged: dict[str, str]) -> str:
    if not value or value.lower() in map(str.lower, list_models()) or not os.path.exists(value):
        return value
    if value not in staged:
        name = f"files/{len(staged)}/{os.path.basename(os.path.normpath(value))}"
        staged[value] = artefact.add_input(Path(value), name, value)
    return staged[value]


def _staged_workload(artefact: ArtefactRecording, path: Path) -> str:
    """Copy a workload with the trace that it names; return its path below the artefact.

    Raises:
        InputError: The file cannot be read or is not YAML, or its trace lies outside its folder.
    """
    if path.suffix in (".yaml", ".yml"):
        trace = read_yaml(path).get("trace")
        if isinstance(trace, str):
            if os.path.isabs(trace) or ".." in Path(trace).parts:
                raise InputError("an artefact needs the trace of a workload in the folder of its file", trace)
            artefact.add_input(path.parent / trace, f"workload/{trace}")
    return artefact.add_input(path, f"workload/{path.name}")


def _stage_calibrations(artefact: ArtefactRecording) -> None:
    """Copy the user's own calibrations and measured peaks, which take precedence over the shipped ones."""
    for kind in ("calibrations", "hardware", "networks"):
        root = user_folder(kind)
        for file in sorted(f for f in root.rglob("*") if f.is_file()):
            relative = file.relative_to(root.parent)
            artefact.add_input(file, f"{USER_DATA}/{root.parent.name}/{relative}", f"user data {relative}")


def _add_requests(artefact: ArtefactRecording) -> None:
    """Add the rows of the requests, or of the jobs of a network, whose columns differ."""
    rows = list(_rows(artefact.folder / "requests.csv"))
    if not rows or set(rows[0]) <= set(REQUEST_COLUMNS):
        artefact.add_requests({name: row.get(name) for name in REQUEST_COLUMNS} | row for row in rows)
        return
    columns = {
        name: REQUEST_COLUMNS.get(name, Column(("number", "string", "null"), "as simulate --requests-out states it"))
        for name in rows[0]
    }
    artefact.add_table("jobs", schema_of("A job", columns), rows)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield {"source": "simulated", "trial": "run", **{name: _value(text) for name, text in row.items()}}


def _value(text: str) -> Any:
    """Return the value of a cell: None if it is empty, an integer or a number if it is one, else the text."""
    if text == "":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _copy(source: Path, target: str | None) -> None:
    """Write the document to the file that the user named, or to stdout."""
    if target == "-":
        print(source.read_text(encoding="utf-8"), end="")
    elif target is not None:
        shutil.copyfile(source, target)
