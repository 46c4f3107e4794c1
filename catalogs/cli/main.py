"""The `catalog` command, which lists and shows catalog entries with units and sources."""

from __future__ import annotations

import catalogs.ui.quiet_start  # noqa: F401

# isort: split

import sys

from catalogs.cli.commands.fit_workload import fit_workload
from catalogs.cli.commands.import_launch import import_launch
from catalogs.cli.commands.list_ import list_
from catalogs.cli.commands.show import show
from catalogs.cli.commands.trace import trace
from catalogs.ui.entry_point import run_command
from catalogs.ui.shared_options import command_group, takes_version

app = command_group(
    help="List and show models, networks, hardware, engines, workloads, prices and more; trace torch modules.",
    no_args_is_help=True,
)

app.callback()(takes_version)
app.command("list")(list_)
for command in (show, fit_workload, import_launch, trace):
    app.command()(command)


def main(args: list[str] | None = None) -> None:
    """Run the `catalog` console script."""
    sys.exit(run_command("catalog", app, args, last=True))


if __name__ == "__main__":
    main()
