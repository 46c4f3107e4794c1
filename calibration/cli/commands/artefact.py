"""The `artefact` commands of `calibrate`: check, replay and compare folders that a run wrote with `--artefact`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.shared_options import JsonFile, command_group
from catalogs.ui.words import counted, percent

if TYPE_CHECKING:
    from calibration.artefacts.comparison import ArtefactDifference

app = command_group(
    help="Check, replay and compare artefacts: runs as folders, written with --artefact.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of an artefact.")]

#: Longest value of a fact on the screen, in characters.
_LONGEST = 60


@app.command()
def record(
    folder: Folder,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND ...", help="plan, simulate or calibrate with its options.")
    ],
    inputs: Annotated[
        list[Path] | None,
        typer.Option("--input", metavar="FILE", help="File that it reads as inputs/FILE; repeatable."),
    ] = None,
) -> None:
    """Run a command inside a new artefact: it reads inputs/NAME and writes results/NAME."""
    from calibration.artefacts.replay import record_command

    record_command(folder, command, {path.name: path for path in inputs or ()})
    typer.echo(str(folder))


@app.command("verify")
def check(folder: Folder, json_file: JsonFile = None) -> None:
    """Check every byte and every row of an artefact; exit 1 if something was changed, removed or added."""
    from calibration.artefacts.checking import artefact_faults, artefact_id, read_manifest

    check_targets(json_file)
    found = artefact_faults(folder)
    if json_file != "-":
        if found:
            typer.echo("\n".join(found))
        else:
            manifest = read_manifest(folder)
            rows = ", ".join(f"{counted(t.n_rows, 'row')} of {t.name}" for t in manifest.tables)
            typer.echo(f"whole and unchanged: {manifest.kind}, {' '.join(manifest.command)}")
            typer.echo(f"  {rows}; {counted(len(manifest.inputs), 'input')}; made {manifest.created_at}")
            typer.echo(f"  id {artefact_id(folder)}")
    if json_file is not None:
        write_json({"schema_version": 1, "whole": not found, "faults": found, "id": artefact_id(folder)}, json_file)
    if found:
        raise typer.Exit(1)


@app.command()
def replay(
    folder: Folder,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="-- OPTION ...", help="Further options of the command.")
    ] = None,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the new artefact in this folder.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Run the command of an artefact again, without a network: the same bytes if simulated, statistics if measured."""
    from calibration.artefacts import replay as replays

    check_targets(json_file)
    done = replays.replay(folder, more or (), keep)
    if json_file != "-":
        if done.found.same_bytes:
            typer.echo("replayed: all rows and results are the same bytes")
        elif done.manifest.kind == "simulated":
            typer.echo(f"not the same bytes: {', '.join(done.found.files)}")
        _show(done.found)
    if json_file is not None:
        write_json({"schema_version": 1, "same": done.same, **_block(done.found)}, json_file)
    if not done.same:
        raise typer.Exit(1)


@app.command()
def diff(
    first: Folder,
    second: Annotated[Path, typer.Argument(metavar="OTHER", help="The folder of another artefact.")],
    json_file: JsonFile = None,
) -> None:
    """Compare two artefacts, for example of two kernels: what differs in the machine, and in the latencies."""
    from calibration.artefacts.checking import artefact_faults
    from calibration.artefacts.comparison import difference
    from catalogs.errors import InputError

    check_targets(json_file)
    for folder in (first, second):
        if problems := artefact_faults(folder):
            raise InputError(f"the artefact is damaged ({problems[0]})", str(folder))
    found = difference(first, second)
    if json_file != "-":
        _show(found)
    if json_file is not None:
        write_json({"schema_version": 1, **_block(found)}, json_file)


def _block(found: ArtefactDifference) -> dict[str, Any]:
    return {
        "same_bytes": found.same_bytes,
        "files": found.files,
        "facts": {name: list(pair) for name, pair in found.facts.items()},
        "latencies": [
            {
                "run": change.run,
                "metric": change.metric,
                "first_s": change.first_s,
                "second_s": change.second_s,
                "ratio": change.ratio,
                "interval": [change.low, change.high],
                "differs": change.differs,
            }
            for change in found.changes
        ],
        "only_first": found.only_first,
        "only_second": found.only_second,
    }


def _show(found: ArtefactDifference) -> None:
    """Print the facts that differ, and the latencies of the runs that both artefacts have."""
    from calibration.artefacts.comparison import INTERVAL

    for name, pair in found.facts.items():
        one, two = (_short(value) for value in pair)
        typer.echo(f"  {name}: {one} -> {two}")
    if not found.facts:
        typer.echo("  machine, software and command are the same")
    for change in found.changes:
        verdict = "differs" if change.differs else "no difference beyond chance"
        ratio = f"{change.ratio:.3f} ({change.low:.3f} to {change.high:.3f})"
        size = f"{change.first_s * 1e3:.4g} -> {change.second_s * 1e3:.4g} ms"
        typer.echo(f"  {change.run} {change.metric} mean: {size}, ratio {ratio} at {percent(INTERVAL)}: {verdict}")
    for words, names in (("first", found.only_first), ("second", found.only_second)):
        if names:
            typer.echo(f"  only the {words} artefact has {', '.join(names)}")


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
