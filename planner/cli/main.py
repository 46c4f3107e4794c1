"""The command `plan`: `plan --model M --slo S --hw H` plans a deployment; other tasks are subcommands."""

from __future__ import annotations

import catalogs.ui.quiet_start  # noqa: F401

# isort: split

import os
import sys
from importlib import import_module
from typing import Final

import typer

from catalogs.ui.entry_point import run_command
from planner.cli.commands.plan import plan
from planner.cli.derived_options import ScenarioGroup

#: The subcommands in the order of `--help`; each is a function of its name in a module of its name.
SUBCOMMANDS: Final = (
    *("analyze", "report", "explain", "front", "keys", "deploy"),
    *("compare", "drift", "spares", "verify", "whatif"),
)

app = typer.Typer(
    cls=ScenarioGroup,
    subcommand_metavar="[SCENARIO.yaml] | COMMAND [ARGS]...",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find the deployment that serves a model within its latency objectives at the lowest cost or energy. "
    "Further keys go into SCENARIO.yaml or --set KEY=VALUE; `plan keys` lists all of them.",
)

#: Subcommands of sub-packages above this one in the order of the planner's sub-packages, by the module of each.
FURTHER_SUBCOMMANDS: Final = {"mcp": "planner.web.mcp", "serve": "planner.web.command"}

app.callback(invoke_without_command=True)(plan)
_MODULES: Final = {name: f"planner.cli.commands.{name}" for name in SUBCOMMANDS} | FURTHER_SUBCOMMANDS
for name, module in _MODULES.items():
    app.command()(getattr(import_module(module), name))


def main() -> None:
    """Run the console script `plan`.

    Linear algebra runs on one thread: its matrices are small, and more threads would spin on the cores that the worker
    processes need.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy reads it when it is imported, which is later
    sys.exit(run_command("plan", app, last=True))


if __name__ == "__main__":
    main()
