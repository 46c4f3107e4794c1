"""The console script `plan`: the command of planner.cli with `plan serve` and `plan mcp` of planner.web added to it."""

from __future__ import annotations

import catalogs.ui.quiet_start  # noqa: F401

# isort: split

from planner.cli.main import app, main
from planner.web.mcp.command import mcp
from planner.web.serve import serve

__all__ = ["app", "main"]

app.command()(mcp)
app.command()(serve)

if __name__ == "__main__":
    main()
