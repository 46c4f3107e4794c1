"""The server starts without the planner: what handlers compute with is imported later."""

from __future__ import annotations

import subprocess
import sys

#: Packages that take long to import, and none of which the first page needs.
HEAVY = (
    "numpy", "pandas", "optuna", "scipy", "plotly", "simulator", "calibration.bundles", "planner.search",
    "planner.evaluation", "planner.answer", "planner.report", "planner.studies", "catalogs.models",
)  # fmt: skip

SCRIPT = """
import sys
import uvicorn
import planner.main
import planner.web.app
print(*(name for name in sys.argv[1:] if name in sys.modules))
"""


def test_the_server_starts_without_heavy_packages() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_is_imported_later_can_be_imported() -> None:
    from planner.web.app import import_documents

    import_documents()
    assert "planner.studies.step_analysis" in sys.modules
