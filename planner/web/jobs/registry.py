"""The kinds of jobs by name."""

from __future__ import annotations

from typing import Final

from planner.web.jobs.kind import JobKind
from planner.web.jobs.kinds import plans

KINDS: Final[dict[str, JobKind]] = {module.KIND.name: module.KIND for module in (plans,)}
