"""`plan`: the command. `plan --model M --slo S --hw H` is the main job; other jobs are subcommands."""

from __future__ import annotations

import os
import sys

import typer

from catalogs.command import run_command
from planner.commands.analyze import analyze
from planner.commands.compare import compare
from planner.commands.deploy import deploy
from planner.commands.drift import drift
from planner.commands.explain import explain
from planner.commands.front import front
from planner.commands.plan import plan
from planner.commands.report import report
from planner.commands.spares import spares
from planner.commands.verify import verify
from planner.commands.whatif import whatif

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find the deployment that serves a model within its latency objectives at the lowest cost or energy.",
)

app.callback(invoke_without_command=True)(plan)
app.command()(analyze)
app.command()(report)
app.command()(explain)
app.command()(front)
app.command()(deploy)
app.command()(compare)
app.command()(drift)
app.command()(spares)
app.command()(verify)
app.command()(whatif)


def main() -> None:
    """Entry point of the console script.

    Linear algebra has one thread: its matrices are small, and its threads spin where other processes have the cores.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported, which is later
    sys.exit(run_command("plan", app))


if __name__ == "__main__":
    main()
