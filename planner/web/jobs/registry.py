"""The kinds of jobs by name."""

from __future__ import annotations

from typing import Final

from planner.web.jobs.kind import JobKind
from planner.web.jobs.kinds import (
    deployments,
    fronts,
    imports,
    inference_tasks,
    plans,
    profiles,
    reports,
    simulations,
    verifications,
    whatifs,
)

_MODULES: Final = (
    plans,
    simulations,
    fronts,
    whatifs,
    verifications,
    profiles,
    imports,
    inference_tasks,
    reports,
    deployments,
)

KINDS: Final[dict[str, JobKind]] = {module.KIND.name: module.KIND for module in _MODULES}

#: The kinds that make files of finished jobs.
DERIVED: Final = tuple(kind.name for kind in KINDS.values() if kind.derived)
