"""Command-line options of a request, generated from the table of its keys (planner/problem/request_keys.py)."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Final

import typer

from catalogs.errors import InputError
from catalogs.ui.shared_options import CommandGroup
from planner.problem.request_keys import RequestKey, plan_keys, request_keys

SET_HELP: Final = "Set any other key of SCENARIO.yaml (see `plan keys`) or of deployment.yaml; repeatable."

_TYPES: Final = {"number": float, "integer": int, "array": list[str]}

_SCENARIO_ENDS: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class GivenRequest:
    """The request as typed on a command line.

    Attributes:
        command: Name of the command, for messages.
        scenario: File of keys, or None.
        options: Values of options by the name of their key.
        former: Former options, which have become keys: the name of the option, the key, and the value.
        settings: `KEY=VALUE` texts of `--set`.
    """

    command: str
    scenario: Path | None
    options: dict[str, Any]
    former: list[tuple[str, RequestKey, Any]]
    settings: list[str]

    def keys(self) -> dict[str, Any]:
        """Return the keys of the request; the command line takes precedence over the file.

        A notice on stderr names the replacement of each former option.

        Raises:
            InputError: The file or a setting is invalid, or the command line sets a key twice.
        """
        from planner.problem.scenario import given_options, parse_plan_settings, read_scenario

        given = [given_options(self.options), parse_plan_settings(self.settings)]
        for option, key, value in self.former:
            print(f"{self.command}: {_notice(option, key, value)}", file=sys.stderr)
            given.append({key.name: value})
        found = {} if self.scenario is None else read_scenario(self.scenario)
        own: dict[str, Any] = {}
        for keys in given:
            for name, value in keys.items():
                if name in own:
                    first = ",".join(map(str, own[name])) if isinstance(own[name], list) else str(own[name])
                    raise InputError(f"the key {name} may be set only once", value, first)
                own[name] = value
        return found | own


def takes_request(
    command: str, keys: Iterable[str] | None = None, helps: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that adds the options of a request to a command and passes them as `given: GivenRequest`.

    Former options stay available, hidden from `--help`, and print a notice.

    Args:
        command: Name of the command, for messages.
        keys: Names of the keys that the command takes; None for all keys, those of networks included.
        helps: Descriptions, by key, that replace those of `plan` in the help of this command.
    """
    taken = list(plan_keys().values()) if keys is None else [request_keys()[name] for name in keys]
    taken = [replace(key, description=(helps or {}).get(key.name, key.description)) for key in taken]
    shown = [key for key in taken if key.option is not None]
    former = [(name, key) for key in taken for name in key.former_options]

    def decorate(function: Callable[..., None]) -> Any:
        signature = inspect.signature(function, eval_str=True)
        context = [p for p in signature.parameters.values() if p.annotation is typer.Context]
        own = [p for p in signature.parameters.values() if p.name != "given" and p not in context]
        settings = typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP, rich_help_panel="Choice")
        made = [_scenario(command), *(_parameter(str(key.option), key) for key in shown)]
        made.append(_keyword("settings", Annotated[list[str] | None, settings]))
        made += [_parameter(name, key, hidden=True) for name, key in former]

        @wraps(function)
        def run(**values: Any) -> None:
            old = [(name, key, value) for name, key in former if (value := values.pop(_variable(name)))]
            options = {key.name: values.pop(_variable(str(key.option))) for key in shown}
            scenario, settings = values.pop("scenario"), values.pop("settings")
            function(**values, given=GivenRequest(command, scenario, options, old, settings or []))

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*context, *made, *own)]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _notice(former: str, key: RequestKey, value: object) -> str:
    text = ",".join(value) if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else str(value)
    if key.option is not None:
        return f"{former} is now {key.option}: {key.option} {quote(text)}"
    return f"{former} is now the key {key.name}: --set {quote(f'{key.name}={text}')}"


def _variable(option: str) -> str:
    """Return the parameter name of an option, for example of "--max-usd-per-hour"."""
    return f"key_{option.removeprefix('--').replace('-', '_')}"


def _parameter(name: str, key: RequestKey, hidden: bool = False) -> inspect.Parameter:
    """Return the parameter of one option; a switch that takes the value of another key is text."""
    kind = str if key.value_of is not None else _TYPES.get(key.kind, str)
    shown = typer.Option(name, metavar=key.metavar, help=key.help, rich_help_panel=key.panel, hidden=hidden)
    return _keyword(_variable(name), Annotated[kind | None, shown])


def _scenario(command: str) -> inspect.Parameter:
    """Return the parameter of the scenario file: a hidden option of `plan`, an argument of other commands."""
    if command == "plan":
        return _keyword("scenario", Annotated[Path | None, typer.Option("--scenario", hidden=True)])
    shown = typer.Argument(metavar="SCENARIO.yaml", help="Keys of the request; options override them.")
    return _keyword("scenario", Annotated[Path | None, shown])


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


class ScenarioGroup(CommandGroup):
    """A command group that accepts a scenario file in place of a subcommand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Pass the scenario file on as the value of the hidden option `--scenario`."""
        rest = self.make_parser(ctx).parse_args(list(args))[1]
        if not rest or rest[0] in self.commands or not (rest[0].endswith(_SCENARIO_ENDS) or os.path.isfile(rest[0])):
            return super().parse_args(ctx, args)
        before, after = args[: len(args) - len(rest)], rest[1:]
        beyond = self.make_parser(ctx).parse_args(list(after))[1]
        if beyond:
            ctx.fail(f"only options may follow SCENARIO.yaml, got {beyond[0]!r}")
        return super().parse_args(ctx, ["--scenario", rest[0], *before, *after])

    def no_such_command(self, path: str, name: str) -> InputError:
        """Return the error for a name that is neither a command nor a scenario file."""
        if os.path.isdir(name):
            example = os.path.join(name, "SCENARIO.yaml")
            return InputError("a scenario is a file, or a command is named, and this is a folder", name, example)
        found = super().no_such_command(path, name)
        if found.nearest is not None:
            return found
        from planner.problem.scenario import EXAMPLE

        hint = f"`{path} --help` lists all; options make a plan: {EXAMPLE}"
        return InputError("this is neither a command nor a scenario file", name, hint=hint)
