"""Import this first in a console script: Ctrl-C during the other imports then ends it with one line, no traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

_otherwise = sys.excepthook


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line for KeyboardInterrupt; Python then ends the process by SIGINT, which shells report as 130."""
    if issubclass(kind, KeyboardInterrupt):
        print(f"{Path(sys.argv[0]).name}: interrupted", file=sys.stderr)
    else:
        _otherwise(kind, error, trace)


sys.excepthook = _hook
