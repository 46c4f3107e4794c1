"""How every console script ends: bad input is one line and exit status 2, Ctrl-C (or SIGTERM) is 130, a closed pipe is
silent.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from catalogs.errors import InputError

DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130

OUR_PACKAGES = ("catalogs", "calibration", "simulator", "planner")

#: The base of every usage error (unknown option, missing argument), wherever typer keeps its click.
_USAGE_ERROR: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def run_command(name: str, command: Callable[..., Any], args: list[str] | None = None) -> int:
    """Run a typer app to its exit status."""
    try:
        with _asked_to_end():
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
        if package in OUR_PACKAGES:  # a fault of ours, not of the installation
            raise
        extras = "pip install '.[calibration,report,verify]'"
        return _refuse(name, f"this needs a package that is not installed: {package}; {extras}")
    except MemoryError as error:
        return _refuse(name, f"this needs more memory than there is: {error or 'out of memory'}")
    except (BrokenPipeError, SystemExit):  # the reader (head, less) went away: click exits 1, which here means no
        return DONE
    return status if isinstance(status, int) else DONE


@contextmanager
def _asked_to_end() -> Iterator[None]:
    """SIGTERM (`timeout`, a CI that gives up) and SIGHUP (a terminal closed) interrupt as Ctrl-C does: what was started
    is stopped, unfinished files vanish. Where they are handled or ignored (nohup) already, that stays."""
    taken = []
    if threading.current_thread() is threading.main_thread():
        names = [s for s in ("SIGTERM", "SIGHUP") if hasattr(signal, s)]
        taken = [s for s in map(signal.Signals.__getitem__, names) if signal.getsignal(s) is signal.SIG_DFL]
    for sign in taken:
        signal.signal(sign, _interrupt)
    try:
        yield
    finally:
        for sign in taken:
            signal.signal(sign, signal.SIG_DFL)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _usage(error: Exception) -> str:
    """What is wrong with the command line; of what is missing, what may stand there."""
    said = str(getattr(error, "format_message", error.__str__)())
    meant = getattr(getattr(error, "param", None), "help", None) if said.startswith("Missing") else None
    return f"{said.rstrip('.')}: {meant}" if meant else said


def _refuse(name: str, line: str) -> int:
    print(f"{name}: {' '.join(line.split())}", file=sys.stderr)
    return BAD_INPUT
