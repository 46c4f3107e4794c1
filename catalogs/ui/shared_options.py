"""Options and help texts that several commands share; nothing here reads the catalog, so `--help` stays fast."""

from __future__ import annotations

import importlib
import platform
import sys
from types import ModuleType
from typing import Annotated, Any, Final

import typer

DISTRIBUTION: Final = "llm-capacity-planner"

#: The names of the catalog's workloads with their mean input/output tokens. A test compares them with the catalog.
WORKLOAD_NAMES: Final = (
    "agentic-coding 99482/394, alpaca 19/58, azure-code 2040/28, azure-conv 1150/211, chat 1150/211, "
    "chat-with-images 1105/157, "
    "creation 306/1137, lmsys-turns 62/162, news-summaries 501/72, reasoning 921/7374, sharegpt 162/338, "
    "sharegpt-long 853/652, summarization 2571/299, translation 33/33"
)

#: The largest public trace of whole prompts, with system prompt and history; docs/sizing.md gives the reasons.
DEFAULT_WORKLOAD: Final = "azure-conv"

WORKLOAD_HELP: Final = f"Workload: a name (with mean tokens in/out: {WORKLOAD_NAMES}), trace file or YAML file."

FROM_COMMAND_HELP: Final = "The command that starts the engine, for example 'vllm serve MODEL -tp 8'."

INPUT_TOKENS_HELP: Final = "Prompt length of every request, constant; replaces the input lengths of the workload."

OUTPUT_TOKENS_HELP: Final = "Output length of every request, constant; replaces the output lengths of the workload."


#: Modules that typer's renderer of help pages imports, and the class that it takes from each.
UNUSED: Final = (("rich.markdown", "Markdown"), ("rich.traceback", "Traceback"))


def command_group(**settings: Any) -> typer.Typer:
    """Return the typer app of a console script or of a group of commands, with the settings that all of them share.

    Args:
        settings: Further arguments of `typer.Typer`, such as `help`.
    """
    names = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings=names, **settings)


def import_help() -> None:
    """Import `typer.rich_utils` without the modules of UNUSED, unless they are imported already.

    They are rich's renderers of Markdown and of tracebacks with the parser of Markdown behind them, a quarter of the
    time of `--help`. They render help that is written in Markdown and errors in colour, which no command here has (see
    `command_group`). During the import, classes of the same names stand for them; if one of these is called after all,
    it imports and calls the real one.
    """
    if "typer.rich_utils" in sys.modules:
        return
    added = [module for module, _ in UNUSED if module not in sys.modules]
    sys.modules.update({module: _placeholder(module, name) for module, name in UNUSED if module in added})
    try:
        importlib.import_module("typer.rich_utils")
    except ImportError:  # a version of typer that takes more from these modules, or has no renderer: typer's own import
        sys.modules.pop("typer.rich_utils", None)
    finally:
        for module in added:
            del sys.modules[module]


def _placeholder(module: str, name: str) -> ModuleType:
    """Return a module with one class, whose call makes an object of the real class."""

    def make(_: type, *args: Any, **keywords: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **keywords)

    found = ModuleType(module)
    setattr(found, name, type(name, (), {"__new__": make}))
    return found


def own_version() -> str:
    """Return the version of the installed product, or "not installed" for a folder that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # here, because it takes 10 ms

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "not installed"


def installed_as() -> str:
    """Return "compiled modules" if the installed product has any, else "plain Python"."""
    from importlib.metadata import PackageNotFoundError, distribution  # here, because it takes 10 ms

    try:
        wheel = distribution(DISTRIBUTION).read_text("WHEEL") or ""
    except PackageNotFoundError:
        wheel = ""
    return "compiled modules" if "Root-Is-Purelib: false" in wheel.splitlines() else "plain Python"


def _show_version(context: typer.Context, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        python = f"Python {platform.python_version()}"
        typer.echo(f"{context.info_name} {own_version()} ({DISTRIBUTION}, {installed_as()}, {python})")
        raise typer.Exit


#: The option `--version` of a command: `version: VersionFlag = False`.
VersionFlag = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
]


def takes_version(version: VersionFlag = False) -> None:
    """Accept `--version`: the callback of a command group that has no other options of its own."""
