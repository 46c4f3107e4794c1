"""The command `plan`: `plan --model M --slo S --hw H` plans a deployment; other tasks are subcommands."""

from __future__ import annotations

import catalogs.ui.quiet_start  # noqa: F401

# isort: split

import os
import sys

from catalogs.ui.entry_point import run_command
from catalogs.ui.shared_options import command_group
from planner.cli.commands.analyze import analyze
from planner.cli.commands.compare import compare
from planner.cli.commands.deploy import deploy
from planner.cli.commands.drift import drift
from planner.cli.commands.explain import explain
from planner.cli.commands.front import front
from planner.cli.commands.improve import improve
from planner.cli.commands.keys import keys
from planner.cli.commands.matrix import matrix
from planner.cli.commands.plan import plan
from planner.cli.commands.report import report
from planner.cli.commands.spares import spares
from planner.cli.commands.verify import verify
from planner.cli.commands.whatif import whatif
from planner.cli.derived_options import ScenarioGroup

app = command_group(
    cls=ScenarioGroup,
    subcommand_metavar="[SCENARIO.yaml] | COMMAND [ARGS]...",
    help="Find the deployment that serves a model within its latency objectives at the lowest cost or energy. "
    "Further keys go into SCENARIO.yaml or --set KEY=VALUE; `plan keys` lists all of them.",
)

app.callback(invoke_without_command=True)(plan)
for command in (analyze, report, explain, front, improve, keys, matrix, deploy, compare, drift, spares, verify, whatif):
    app.command()(command)


def main() -> None:
    """Run the command `plan`.

    Linear algebra runs on one thread: its matrices are small, and more threads would spin on the cores that the worker
    processes need.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy reads it when it is imported, which is later
    sys.exit(run_command("plan", app, last=True))


if __name__ == "__main__":
    main()
