"""Help pages are those of typer, from fewer imports."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from importlib import import_module

import pytest
from typer.main import get_command

from catalogs.ui.entry_point import UNUSED

HELP = "import sys; sys.argv = ['plan', '--help']\nfrom planner.main import main\n"
PARSER = "markdown_it"


def output(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.stdout


def test_help_is_the_same_without_the_modules_that_it_never_uses() -> None:
    watched = {PARSER, *(module for module, _ in UNUSED)}
    report = f"import atexit; atexit.register(lambda: print(*({watched} & {{*sys.modules}})))"
    lean = output(f"{HELP}{report}\nmain()").splitlines()
    whole = output(f"import typer.rich_utils\n{HELP}{report}\nmain()").splitlines()
    assert lean[:-1] == whole[:-1]
    assert len(lean) > 40
    assert lean[-1] == ""
    assert {*whole[-1].split()} == watched


@pytest.mark.parametrize(("module", "name"), UNUSED)
def test_what_is_called_after_all_is_the_real_class(module: str, name: str) -> None:
    program = f"""
from catalogs.ui.entry_point import import_help
import_help()
import sys, typer.rich_utils as help, importlib
assert {module!r} not in sys.modules
real = getattr(importlib.import_module({module!r}), {name!r})
if {name!r} == "Markdown":
    print(type(help.Markdown("*text*")) is real)
else:
    try:
        1 / 0
    except ZeroDivisionError:
        print(type(help.Traceback()) is real)
"""
    assert output(program) == "True\n"


#: The console scripts with the modules of their commands (pyproject.toml).
SCRIPTS = ("planner.main", "simulator.cli.main", "simulator.verify.command", "catalogs.cli.main")

#: More options than this under one heading are no longer found at a glance.
MOST_UNDER_ONE_HEADING = 14


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_options_of_a_command_are_grouped_under_headings(script: str) -> None:
    crowded = {}
    commands = [get_command(import_module(script).app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        shown = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
        panels = Counter(getattr(p, "rich_help_panel", None) for p in shown)
        if max(panels.values(), default=0) > MOST_UNDER_ONE_HEADING:
            crowded[command.name] = panels
    assert crowded == {}
