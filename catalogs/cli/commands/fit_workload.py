"""The command `catalog fit-workload`: a workload file fitted to a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from catalogs.io.output_files import check_targets, write_atomically


def fit_workload(
    trace_file: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace file, or a folder of recorded sessions of agents.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The workload file to write (.yaml).")],
    source: Annotated[str | None, typer.Option(help="What the trace is; written into the file.")] = None,
) -> None:
    """Fit a workload file to a trace: quantile tables, rates and shares; of its rows only the extreme lengths."""
    from catalogs.errors import InputError
    from catalogs.io.yaml_loader import dump_yaml
    from catalogs.workloads import fit
    from catalogs.workloads.trace_formats import OWN_NAMES
    from catalogs.workloads.traces import read_trace

    if out.suffix.lower() not in (".yaml", ".yml"):
        raise InputError("a workload file ends in .yaml", str(out), f"{out.stem}.yaml")
    if not trace_file.exists():
        raise InputError("trace not found", str(trace_file))
    check_targets(None, out)
    trace = read_trace(trace_file)
    kind = "trace" if trace.format in OWN_NAMES else f"{trace.format} trace"
    keys = {"source": source or f"fitted to {kind} {trace_file.name}"} | fit.fit_workload(trace)
    write_atomically(out, [dump_yaml(keys)])
    for notice in fit.fit_notices(trace):
        print(notice, file=sys.stderr)
    print(f"{out}: fitted to {len(trace.input_tokens):,} requests")
