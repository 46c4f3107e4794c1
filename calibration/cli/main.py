"""The command `calibrate`; the commands that need the simulator are added in simulator/verify/command.py."""

from __future__ import annotations

import sys

from calibration.cli.commands import artefact, machine
from calibration.cli.commands.compare import compare
from calibration.cli.commands.diff import diff
from calibration.cli.commands.export import export
from calibration.cli.commands.fit import fit
from calibration.cli.commands.import_ import import_
from calibration.cli.commands.models import models
from calibration.cli.commands.predict import predict
from calibration.cli.commands.profile import profile
from calibration.cli.commands.report import report
from calibration.cli.commands.run import run
from calibration.cli.commands.show import show
from calibration.cli.commands.tiny_model import tiny_model
from calibration.cli.commands.validate import validate
from catalogs.ui.entry_point import run_command
from catalogs.ui.shared_options import command_group, takes_version

app = command_group(
    help="Measure or import operator times of an accelerator, fit them, check the fit and show it.",
    no_args_is_help=True,
)

app.callback()(takes_version)
app.command("import")(import_)
app.add_typer(artefact.app, name="artefact")
app.add_typer(machine.app, name="machine")
for command in (compare, models, predict, export, report, tiny_model, fit, profile, run, diff, validate, show):
    app.command()(command)


def main(args: list[str] | None = None) -> None:
    """Run the command `calibrate` and exit with its status; `args` replace those of the process."""
    sys.exit(run_command("calibrate", app, args, last=True))


if __name__ == "__main__":
    main()
