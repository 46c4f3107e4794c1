"""The `catalog` command, which lists and shows catalog entries with units and sources."""

from __future__ import annotations

import catalogs.ui.quiet_start  # noqa: F401

# isort: split

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.entry_point import run_command
from catalogs.ui.shared_options import JsonFile, command_group, takes_version
from catalogs.ui.terminal import PIPED_LIST, open_console

app = command_group(
    help="List and show models, networks, hardware, engines, workloads, prices and more; trace torch modules.",
    no_args_is_help=True,
)

app.callback()(takes_version)

KindName = Annotated[
    str,
    typer.Argument(
        metavar="KIND", help="models, networks, hardware, engines, workloads, prices, grids, regions or calibrations"
    ),
]


@app.command("list")
def list_entries(
    kind: KindName,
    json_file: JsonFile = None,
    match: Annotated[str | None, typer.Option(help="Only entries that contain this text.")] = None,
) -> None:
    """List every entry of a kind in brief, with units and source."""
    from catalogs.cli.describe import catalog_kind

    check_targets(json_file)
    rows = catalog_kind(kind).rows()
    if match is not None:
        rows = [row for row in rows if any(match.lower() in str(value).lower() for value in row.values())]
    if json_file is not None:
        write_json({"schema_version": 1, "kind": kind.lower(), "entries": rows}, json_file)
    if json_file != "-":
        _print_rows(kind, rows)


@app.command()
def show(
    kind: KindName,
    name: Annotated[str, typer.Argument(help="Name of the entry; for prices, hardware such as h100x8.")],
    json_file: JsonFile = None,
) -> None:
    """Show one entry in full, with units and source."""
    from catalogs.cli.describe import catalog_kind

    check_targets(json_file)
    record = catalog_kind(kind).show(name)
    if json_file is not None:
        write_json({"schema_version": 1, "kind": kind.lower(), "entry": record}, json_file)
    if json_file != "-":
        _print_record(record)


@app.command("fit-workload")
def fit_workload_command(
    trace_file: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace file, or a folder of recorded sessions of agents.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The workload file to write (.yaml).")],
    source: Annotated[str | None, typer.Option(help="What the trace is; written into the file.")] = None,
) -> None:
    """Fit a workload file to a trace: quantile tables, rates and shares; of its rows only the extreme lengths."""
    from catalogs.errors import InputError
    from catalogs.io.output_files import write_atomically
    from catalogs.io.yaml_loader import dump_yaml
    from catalogs.workloads.fit import fit_notices, fit_workload
    from catalogs.workloads.trace_formats import OWN_NAMES
    from catalogs.workloads.traces import read_trace

    if out.suffix.lower() not in (".yaml", ".yml"):
        raise InputError("a workload file ends in .yaml", str(out), f"{out.stem}.yaml")
    if not trace_file.exists():
        raise InputError("trace not found", str(trace_file))
    check_targets(None, out)
    trace = read_trace(trace_file)
    kind = "trace" if trace.format in OWN_NAMES else f"{trace.format} trace"
    keys = {"source": source or f"fitted to {kind} {trace_file.name}"} | fit_workload(trace)
    write_atomically(out, [dump_yaml(keys)])
    for notice in fit_notices(trace):
        print(notice, file=sys.stderr)
    print(f"{out}: fitted to {len(trace.input_tokens):,} requests")


@app.command("import-launch")
def import_launch(
    launch_file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A shell script, or YAML: Kubernetes, Dynamo, Docker Compose.")
    ],
    hw: Annotated[str | None, typer.Option(help="Hardware, such as h100x8, where the file does not name it.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write deployment.yaml here, not to stdout.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of deployment.yaml; repeatable.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Value of a variable in the file; repeatable.")
    ] = None,
    service: Annotated[str | None, typer.Option(help="Server to read, by its name or number in the file.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Read the commands that start an engine as a deployment, with a note for every flag."""
    from catalogs.io.output_files import write_atomically
    from catalogs.io.yaml_loader import dump_yaml
    from catalogs.launch.reading.read import parse_variables, read_launch_file

    check_targets(json_file, out)
    read = read_launch_file(launch_file, hw, settings or [], parse_variables(env or []), service)
    if json_file is not None:
        write_json(read.document(), json_file)
    if out is not None:
        write_atomically(out, [dump_yaml(read.keys)])
    elif json_file != "-":
        print(dump_yaml(read.keys), end="")
    for note in read.notes if out is not None else read.important:
        print(note.line, file=sys.stderr)


@app.command()
def trace(
    module: Annotated[
        str,
        typer.Argument(help="A shipped recipe, a class of transformers, diffusers or timm, or package.module:Class."),
    ],
    out: Annotated[Path, typer.Option(help="Network file to write (NAME.yaml).")],
    config: Annotated[Path | None, typer.Option(help="JSON or YAML configuration of the class.")] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Inputs as YAML, 'NAME: \\[batch, 3, height, width]', or a file.")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DEFAULT[:STEP[:MINIMUM]]", help="A size that the inputs use.")
    ] = None,
) -> None:
    """Trace a torch module without weights into a network file (extra `trace`)."""
    from catalogs.cli.describe import network_record
    from catalogs.trace.command import trace_command

    check_targets(None, out)
    network = trace_command(module, config, inputs, size or [], out)
    _print_record(network_record(network))


def _print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title=f"{title} ({len(rows)})", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for key in rows[0] if rows else ():
        number = all(isinstance(row[key], int | float) for row in rows)
        table.add_column(key, justify="right" if number else "left", overflow="fold", no_wrap=key == "name")
    for row in rows:
        table.add_row(*map(_text, row.values()))
    open_console(PIPED_LIST).print(table)


def _print_record(record: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Column, Table

    table = Table(Column(), Column(overflow="fold"), show_header=False, box=box.SIMPLE, pad_edge=False)
    tables = {key: value for key, value in record.items() if isinstance(value, list) and value and _is_record(value[0])}
    for key, value in record.items():
        if value not in ("", [], ()) and key not in tables:
            table.add_row(key, _text(value))
    open_console(PIPED_LIST).print(table)
    for key, rows in tables.items():
        _print_rows(key, rows)


def _is_record(value: Any) -> bool:
    return isinstance(value, dict)


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(v)}" for key, v in value.items() if v != "")
    if isinstance(value, list | tuple):
        return ", ".join(_text(v) for v in value)
    return str(value)


def main(args: list[str] | None = None) -> None:
    """Run the `catalog` console script."""
    sys.exit(run_command("catalog", app, args, last=True))


if __name__ == "__main__":
    main()
