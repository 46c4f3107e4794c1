"""The options of all commands that name an output, and their rules: it is writable, and does not replace an input."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from typer.core import TyperCommand

from catalogs.errors import InputError
from catalogs.io.output_files import check_writable

#: The option names of outputs, in every command: files, and folders of files.
OUTPUT_OPTIONS: Final = (
    "--json",
    "--html",
    "--csv",
    "--out",
    "--docs",
    "--keep",
    "--machine",
    "--artefact",
    "--deployment-out",
    "--requests-out",
    "--chrome-trace",
    "--time-series",
)

#: Endings of the outputs of one format.
_ENDINGS: Final = {"--json": ".json", "--html": ".html"}

#: Endings of the documents that may name further files, such as the trace of a workload.
_DOCUMENTS: Final = (".yaml", ".yml", ".json")

#: Largest document that is searched for the names of further files, in bytes.
_MOST_BYTES: Final = 8 * 2**20


#: The rule of an output that names an input, after the option of the output.
_REPLACED: Final = "{} would replace a file that this command reads"


class ChecksOutputs:
    """What commands and groups of commands share: they check every output before they begin.

    An output must be writable, and must not replace a file that the command reads.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command line; of a group, its own, before the name of a subcommand.

        Raises:
            InputError: An output is one of the input files, or cannot be written.
        """
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        refuse_inputs(ctx)
        check_outputs(ctx)
        return rest


class Command(ChecksOutputs, TyperCommand):
    """A command that checks its outputs before it begins."""


def check_outputs(context: Any) -> None:
    """Check that every output of a parsed command line, a file or a folder, can be written.

    Raises:
        InputError: One of them cannot.
    """
    for parameter in context.command.params:
        target = context.params.get(parameter.name)
        if _is_output(parameter) and target and str(target) != "-":
            check_writable(Path(str(target)))


def refuse_inputs(context: Any) -> None:
    """Refuse an output option of a parsed command line whose file the same command reads.

    Files count as read if an argument or another option names them, or if a document that is read names them, such as
    a workload file its trace.

    Raises:
        InputError: It is; the nearest choice is another name in the same folder.
    """
    given = {parameter: context.params.get(parameter.name) for parameter in context.command.params}
    outputs = {parameter.opts[-1]: str(value) for parameter, value in given.items() if _is_output(parameter) and value}
    replaced = {name: target for name, target in outputs.items() if _is_replaced(target, context.params)}
    if not replaced:
        return
    named = [text for parameter, value in given.items() if not _is_output(parameter) for text in _texts(value)]
    read = list(_files(named))
    for name, target in replaced.items():
        if any(os.path.samefile(target, path) for file in read for path in (Path(file), *Path(file).resolve().parents)):
            path = Path(target) if Path(target).name else Path(target).absolute()
            nearest = path.with_name(f"{path.stem}-new{_ENDINGS.get(name, path.suffix)}")
            raise InputError(_REPLACED.format(name), target, str(nearest))


def refuse_inputs_in_folder(option: str, folder: Path, written: Collection[str], named: Iterable[Path]) -> None:
    """Refuse a folder in which a command would write a file over one that it reads.

    Args:
        option: The option of the folder.
        folder: The folder, which may not exist yet.
        written: The names of the files that the command writes into the folder.
        named: The files that the command line names to be read; those that their documents name are read as well.

    Raises:
        InputError: A file that is read would be replaced; the nearest choice is a folder inside this one.
    """
    for file in _files([str(path) for path in named]):
        real = Path(file).resolve()
        paths = (real, Path(file).absolute())
        if any(path.parent.resolve() == folder.resolve() and path.name in written for path in paths):
            raise InputError(_REPLACED.format(option), file, f"{option} {folder / 'tables'}")


def _is_replaced(target: str, given: dict[str, Any]) -> bool:
    """Return whether an output replaces what exists: a file, or with `--force` a folder and all that it contains."""
    return os.path.isfile(target) or (os.path.isdir(target) and bool(given.get("force")))


def _is_output(parameter: Any) -> bool:
    return any(name in OUTPUT_OPTIONS for name in parameter.opts)


def _texts(value: object) -> Iterator[str]:
    """Yield every text in a value of an option or of a document, and the parts of `KEY=FILE` and `FILE,FILE`."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str | Path):
        text = str(value)
        yield text
        yield from (part for part in text.replace("=", ",").split(",") if part != text)


def _files(named: list[str]) -> Iterator[str]:
    """Yield the files among the given names, and those that their documents name, in turn; of a model its config.json.

    The names in a document are relative to its folder or to the current one.
    """
    waiting, seen = list(named), set()
    while waiting:
        name = os.path.expanduser(waiting.pop())
        if os.path.isdir(name):
            name = os.path.join(name, "config.json")
        if not os.path.isfile(name) or (real := os.path.realpath(name)) in seen:
            continue
        seen.add(real)
        yield name
        found = _texts(_document(Path(name)))
        waiting += [each for text in found for each in (text, os.path.join(os.path.dirname(name), text))]


def _document(path: Path) -> object:
    """Return the content of a YAML or JSON file; None of other files, and of one that its reader will refuse."""
    from yaml import YAMLError

    from catalogs.io.json_files import load_json
    from catalogs.io.yaml_loader import load_documents

    try:
        if path.suffix.lower() not in _DOCUMENTS or path.stat().st_size > _MOST_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
        return load_json(text) if path.suffix.lower() == ".json" else load_documents(text)
    except (OSError, ValueError, YAMLError):
        return None
