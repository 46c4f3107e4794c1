"""The entry point of every console script, and its exit codes.

Invalid input or a full disk prints one line and exits with status 2, Ctrl-C (or SIGTERM) with 130, and a closed pipe
silently with 0.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import typer

from catalogs.errors import InputError
from catalogs.ui.interrupts import endings_as_interrupt

DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130

OUR_PACKAGES = ("catalogs", "calibration", "simulator", "planner")

#: The base of every usage error (unknown option, missing argument), wherever typer keeps its click.
_USAGE_ERROR: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


#: Errors of a full disk, an exhausted quota, and a limit on the size of files.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Interrupted(Exception):
    """The end of an interrupted command that has something to add; the text follows "NAME: interrupted" on stderr."""


def run_command(name: str, command: Callable[..., Any], args: list[str] | None = None) -> int:
    """Run a typer app and return its exit status."""
    try:
        with endings_as_interrupt():
            status = command(args, standalone_mode=False, prog_name=name)
            if sys.stdout is not None:
                sys.stdout.flush()  # the disk of a redirected output may be full
    except InputError as error:
        return _refuse(name, str(error))
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
        extras = "pip install '.[calibration,report,verify]'"
        return _refuse(name, f"this needs a package that is not installed: {package}; {extras}")
    except MemoryError as error:
        return _refuse(name, f"not enough memory: {error or 'out of memory'}")
    except (BrokenPipeError, SystemExit):
        # the reader (head, less) closed the pipe; click would exit with 1, which means "no" here
        return DONE
    except OSError as error:
        if error.errno not in _FULL:
            raise
        if error.filename is None:  # the rest of the output would fail again when the process ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _refuse(name, f"cannot write {error.filename or 'the output'}: {error.strerror}")
    if status == INTERRUPTED:  # what typer makes of KeyboardInterrupt
        return _end_interrupted(name)
    return status if isinstance(status, int) else DONE


def _usage(error: Exception) -> str:
    """Return what is wrong with the command line, with the help of an argument that is missing."""
    message = str(getattr(error, "format_message", error.__str__)())
    help_text = getattr(getattr(error, "param", None), "help", None) if message.startswith("Missing") else None
    return f"{message.rstrip('.')}: {help_text}" if help_text else message


def _end_interrupted(name: str, text: str = "") -> int:
    print(f"{name}: interrupted{text}", file=sys.stderr)
    return INTERRUPTED


def _refuse(name: str, line: str) -> int:
    print(f"{name}: {' '.join(line.split())}", file=sys.stderr)
    return BAD_INPUT
