"""The entry point of every console script, and its exit codes.

Invalid input, also a path that cannot be used, prints one line and exits with status 2, Ctrl-C (or SIGTERM) with 130,
and a closed pipe silently with 0. An output that cannot be written exits with 74. Any other exception is an internal
error: one line names the file with its traceback, and the status is 70. So a crash is never mistaken for the answer
"no", which is 1.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, Final, TextIO

import typer

from catalogs.errors import DEVICE_ERRORS, InputError, OutputError, printable
from catalogs.ui.crash_report import show_on_stderr, summary, write_crash_report
from catalogs.ui.interrupts import endings_as_interrupt, exit_at_next_ending

#: Exit codes; 70 (EX_SOFTWARE) and 74 (EX_IOERR) are those of BSD's sysexits.h.
DONE, BAD_INPUT, INTERNAL_ERROR, OUTPUT_ERROR, INTERRUPTED = 0, 2, 70, 74, 130

OUR_PACKAGES = ("catalogs", "calibration", "simulator", "planner")

#: Errors of a path that someone has named: too long, a loop of links, a file where a folder should be, or no rights.
_PATH_ERRORS: Final = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)

#: The extra of this package that installs what a module needs; modules of no extra are dependencies of the base.
EXTRAS: Final = {
    "data": ("pandas", "pyarrow", "scipy"),
    "calibration": ("torch", "transformers", "pynvml", "psutil", "sklearn"),
    "report": ("plotly",),
    "trace": ("torchvision", "diffusers", "timm"),
    "verify": ("gguf", "safetensors"),
    "web": ("fastapi", "uvicorn", "jinja2"),
}

#: The base of every usage error (unknown option, missing argument), wherever typer keeps its click.
_USAGE_ERROR: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

#: Modules that typer's renderer of help pages imports, and the class that it takes from each.
UNUSED: Final = (("rich.markdown", "Markdown"), ("rich.traceback", "Traceback"))


class Interrupted(Exception):
    """The end of an interrupted command that has something to add; the text follows "NAME: interrupted" on stderr."""


def run_command(name: str, command: Callable[..., Any], args: list[str] | None = None, *, last: bool = False) -> int:
    """Run a typer app and return its exit status.

    Every exception ends here, also those that are defects of this program. `last` says that the process ends with the
    command, so that a second Ctrl-C can do no more than end it sooner, with the same status.
    """
    _open_streams()
    try:
        status = _run(name, command, args, last)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _discard(sys.stdout)
        return DONE
    except OSError as error:
        if error.errno in DEVICE_ERRORS:
            _discard(sys.stdout)
            show_on_stderr(f"{name}: cannot write {error.filename or 'the output'}: {error.strerror or error}")
            _discard(sys.stderr)
            return OUTPUT_ERROR
        if error.errno in _PATH_ERRORS and error.filename is not None:
            reason = (error.strerror or str(error)).lower()
            return _refuse(name, str(InputError(f"a path cannot be used ({reason})", os.fspath(error.filename))))
        return _internal_error(name, args, error)
    except Exception as error:
        return _internal_error(name, args, error)


def _run(name: str, command: Callable[..., Any], args: list[str] | None, last: bool) -> int:
    """Return the status of a command that ends, or that ends with an error of its user or its machine."""
    try:
        with endings_as_interrupt(last=last):
            if {"--help", "-h"}.intersection(sys.argv[1:] if args is None else args):
                import_help()
            status = command(args, standalone_mode=False, prog_name=name)
    except InputError as error:
        return _refuse(name, str(error), OUTPUT_ERROR if isinstance(error, OutputError) else BAD_INPUT)
    except _USAGE_ERROR as error:
        return _refuse(name, _usage(error))
    except (KeyboardInterrupt, typer.Abort):
        return _end_interrupted(name)
    except Interrupted as end:
        return _end_interrupted(name, str(end))
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package in OUR_PACKAGES:  # an error in this code, not a missing dependency
            raise
        extra = next((f"'.[{extra}]'" for extra, packages in EXTRAS.items() if package in packages), package)
        return _refuse(name, f"this needs a package that is not installed: {package}; pip install {extra}")
    except MemoryError as error:
        return _refuse(name, f"not enough memory: {error or 'out of memory'}")
    except SystemExit:
        # the reader (head, less) closed the pipe; click would exit with 1, which means "no" here
        return DONE
    if status == INTERRUPTED:  # what typer makes of KeyboardInterrupt
        return _end_interrupted(name)
    return status if isinstance(status, int) else DONE


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


def _internal_error(name: str, args: list[str] | None, error: Exception) -> int:
    """Write the traceback to a file, print one line that names it, and return the status."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    try:
        path = write_crash_report(name, sys.argv[1:] if args is None else args, error)
    except Exception:  # the line and the status matter more than the file
        path = None
    where = f"the traceback is in {path}" if path else "no folder for the traceback is writable"
    show_on_stderr(f"{name}: internal error ({summary(error)}); this is a defect of {name}, {where}")
    return INTERNAL_ERROR


def _open_streams() -> None:
    """Open the streams that the caller has closed on the null device, and let both print any text.

    A character that the terminal cannot show (a path that is not UTF-8, an ASCII locale) is printed as an escape.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open until the end)
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Send what a stream still holds to the null device, so that the interpreter does not fail when it ends."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _usage(error: Exception) -> str:
    """Return what is wrong with the command line; where something is missing, with its help and the whole form.

    typer checks values with pydantic. Its own message leaves out the value, which pydantic's error holds.
    """
    message = str(getattr(error, "format_message", error.__str__)())
    faults = getattr(error.__cause__, "errors", None)
    if faults is not None:
        from catalogs.io.yaml_files import fault_error  # here, because it takes 50 ms

        return str(fault_error(message.rstrip("."), faults(include_url=False)[0]))
    missing, context = getattr(error, "param", None), getattr(error, "ctx", None)
    if not message.strip() and context is not None:  # a group alone, whose help is printed
        return str(InputError("a command is needed", nearest=f"{context.command_path} COMMAND"))
    if missing is None or context is None or not message.startswith("Missing"):
        return message
    rule = f"{message.rstrip('.')}: {missing.help.rstrip('.')}" if getattr(missing, "help", None) else message
    required = [_as_typed(param) for param in context.command.params if param.required]
    return str(InputError(rule, nearest=" ".join([context.command_path, *required])))


def _as_typed(param: Any) -> str:
    """Return a parameter of a command as its user types it: the name of a value, behind that of an option."""
    value = str(param.metavar or param.name.upper()).strip("{}")
    return value if param.param_type_name == "argument" else f"{param.opts[0]} {value}"


def _end_interrupted(name: str, text: str = "") -> int:
    show_on_stderr(f"{name}: interrupted{text}")
    # CPython notes an interrupt that passes through `exec` of a text, as in the making of a dataclass, and then ends
    # the process by SIGINT although the interrupt was handled. Executing another text clears the note.
    exec("")
    exit_at_next_ending()
    return INTERRUPTED


def _refuse(name: str, line: str, status: int = BAD_INPUT) -> int:
    show_on_stderr(f"{name}: {printable(' '.join(line.split()))}")
    return status
