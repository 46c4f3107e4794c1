"""Ctrl-C and other signals that ask a process to end: handled like Ctrl-C, and held back where they would do harm."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

#: Signals other than Ctrl-C that ask a process to end, on this system: of `timeout`, of a closed terminal.
ENDINGS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@dataclass(slots=True)
class _Held:
    """How many blocks hold signals back now, whether a signal arrived meanwhile, and whether one was raised."""

    n_blocks: int = 0
    arrived: bool = False
    raised: bool = False


_held: Final = _Held()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, now or at the end of the block that holds it back."""
    if not _held.n_blocks:
        _held.raised = True
        raise KeyboardInterrupt
    _held.arrived = True


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the process is about to say that it was interrupted."""


def _exit_now(_number: int, _frame: FrameType | None) -> None:
    os._exit(130)


def _ignore_at_exit() -> None:
    """Let the interpreter's own end go on: it gives signals with a handler back to the system, which would kill it."""
    for number in (signal.SIGINT, *ENDINGS):
        if signal.getsignal(number) in (_ignore, _exit_now):
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def endings_as_interrupt(*, last: bool = False) -> Iterator[None]:
    """Handle SIGTERM (`timeout`, a CI timeout) and SIGHUP (a closed terminal) like Ctrl-C.

    What was started is stopped and unfinished files are removed. Signals that are already handled or ignored (nohup)
    stay so. With `last`, the process ends after the block: once interrupted, it ignores further signals until
    `exit_at_next_ending` is called, so that a second Ctrl-C cannot end it in the middle of its last line. While the
    interpreter ends it ignores them again, so that the exit status is the command's own.
    """
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDINGS) if in_main}
    own = {n: h for n, h in before.items() if h in (signal.SIG_DFL, signal.default_int_handler)}
    _held.raised = False
    if last and own:
        atexit.register(_ignore_at_exit)  # before what the block imports, so that it runs after their hooks
    for number in own:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in own.items():
            signal.signal(number, _ignore if last and _held.raised else handler)


def exit_at_next_ending() -> None:
    """Let the next Ctrl-C end the process at once, with status 130, where `endings_as_interrupt` ignores it."""
    for number in (signal.SIGINT, *ENDINGS):
        if signal.getsignal(number) is _ignore:
            signal.signal(number, _exit_now)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Deliver Ctrl-C and requests to end only after the block, for work that must not stop in its middle.

    Threads that the block starts never receive these signals. A signal that another thread receives is held back too
    where `endings_as_interrupt` handles it. Elsewhere than on POSIX systems only that holds.
    """
    in_main, has_masks = threading.current_thread() is threading.main_thread(), hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *ENDINGS}) if has_masks else set()
    _held.n_blocks += in_main
    try:
        yield
    finally:
        _held.n_blocks -= in_main
        if has_masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if in_main and _held.arrived and not _held.n_blocks:
            _held.arrived, _held.raised = False, True
            raise KeyboardInterrupt
