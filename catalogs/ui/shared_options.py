"""Options and help texts that several commands share; nothing here reads the catalog, so `--help` stays fast."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from catalogs.errors import InputError, nearest_name
from catalogs.ui.installation import DISTRIBUTION, is_compiled, own_version
from catalogs.ui.outputs import ChecksOutputs, Command

#: The names of the catalog's workloads with their mean input/output tokens. A test compares them with the catalog.
WORKLOAD_NAMES: Final = (
    "agentic-coding 99482/394, alpaca 19/58, azure-code 2040/28, azure-conv 1150/211, chat 1150/211, "
    "chat-with-images 1105/157, "
    "creation 306/1137, lmsys-turns 62/162, news-summaries 501/72, reasoning 921/7374, sharegpt 162/338, "
    "sharegpt-long 853/652, summarization 2571/299, transcription 4/100, translation 33/33"
)

#: The largest public trace of whole prompts, with system prompt and history; docs/sizing.md gives the reasons.
DEFAULT_WORKLOAD: Final = "azure-conv"

WORKLOAD_HELP: Final = f"Workload: a name (with mean tokens in/out: {WORKLOAD_NAMES}), trace file or YAML file."

FROM_COMMAND_HELP: Final = "The command that starts the engine, for example 'vllm serve MODEL -tp 8'."

INPUT_TOKENS_HELP: Final = "Prompt length of every request, constant; replaces the input lengths of the workload."

OUTPUT_TOKENS_HELP: Final = "Output length of every request, constant; replaces the output lengths of the workload."


class CommandGroup(ChecksOutputs, TyperGroup):
    """A group of commands that answers the name of no command with the nearest one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names, with its name and the arguments that follow.

        Raises:
            InputError: The group has no such command.
        """
        if args[0] not in self.commands:
            raise self.no_such_command(ctx.command_path, args[0])
        return super().resolve_command(ctx, args)

    def no_such_command(self, path: str, name: str) -> InputError:
        """Return the error for the name of no command; `path` is the command line up to the name."""
        nearest = nearest_name(name, self.commands, 0.6)
        return InputError("there is no such command", name, nearest, None if nearest else f"`{path} --help` lists all")


class _Application(typer.Typer):
    """A typer app whose commands are of the class `Command`."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Return a decorator that adds a function as a command; see `typer.Typer.command`."""
        return super().command(name, **{"cls": Command} | settings)


def command_group(cls: type[CommandGroup] = CommandGroup, **settings: Any) -> typer.Typer:
    """Return the typer app of a console script or of a group of commands, with the settings that all of them share.

    Args:
        cls: The class of the group.
        settings: Further arguments of `typer.Typer`, such as `help`.
    """
    names = {"help_option_names": ["-h", "--help"]}
    shared: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "context_settings": names}
    return _Application(cls=cls, **shared, **settings)


def option(metavar: str | None, text: str, *names: str, **more: Any) -> Any:
    """Return a typer option with the placeholder of its value and its help text.

    Args:
        metavar: The placeholder, such as `FILE`; None for a flag.
        text: The help text.
        names: The names of the option; by default that of the parameter.
        more: Further arguments of `typer.Option`.
    """
    return typer.Option(*names, metavar=metavar, help=text, **more)


def options_of(panel: str) -> Callable[..., Any]:
    """Return `option` for the options under one heading of the help page."""
    return partial(option, rich_help_panel=panel)


#: The option `--json` of a command.
JsonFile = Annotated[str | None, option("FILE", "Write JSON to FILE, or - for stdout.", "--json")]


def _show_version(context: typer.Context, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        built, python = "compiled modules" if is_compiled() else "plain Python", f"Python {platform.python_version()}"
        typer.echo(f"{context.info_name} {own_version()} ({DISTRIBUTION}, {built}, {python})")
        raise typer.Exit


#: The option `--version` of a command: `version: VersionFlag = False`.
VersionFlag = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
]


def takes_version(version: VersionFlag = False) -> None:
    """Accept `--version`: the callback of a command group that has no other options of its own."""
