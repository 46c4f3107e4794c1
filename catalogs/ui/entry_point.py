"""The entry point of every console script, and its exit codes.

Invalid input prints one line and exits with status 2, Ctrl-C (or SIGTERM) with 130, and a closed pipe silently with 0.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from catalogs.errors import InputError, printable

DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130

OUR_PACKAGES = ("catalogs", "calibration", "simulator", "planner")

#: The base of every usage error (unknown option, missing argument), wherever typer keeps its click.
_USAGE_ERROR: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def run_command(name: str, command: Callable[..., Any], args: list[str] | None = None) -> int:
    """Run a typer app and return its exit status."""
    try:
        with _termination_as_interrupt():
            status = command(args, standalone_mode=False, prog_name=name)
    except InputError as error:
        return _refuse(name, str(error))
    except _USAGE_ERROR as error:
        return _refuse(name, _usage(error))
    except (KeyboardInterrupt, typer.Abort):
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
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
    return status if isinstance(status, int) else DONE


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM (`timeout`, a CI timeout) and SIGHUP (a closed terminal) like Ctrl-C.

    What was started is stopped and unfinished files are removed. Signals that are already handled or ignored (nohup)
    stay so.
    """
    replaced: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        names = [s for s in ("SIGTERM", "SIGHUP") if hasattr(signal, s)]
        replaced = [s for s in map(signal.Signals.__getitem__, names) if signal.getsignal(s) is signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _usage(error: Exception) -> str:
    """Return what is wrong with the command line, with the help of an argument that is missing."""
    message = str(getattr(error, "format_message", error.__str__)())
    help_text = getattr(getattr(error, "param", None), "help", None) if message.startswith("Missing") else None
    return f"{message.rstrip('.')}: {help_text}" if help_text else message


def _refuse(name: str, line: str) -> int:
    print(f"{name}: {printable(' '.join(line.split()))}", file=sys.stderr)
    return BAD_INPUT
