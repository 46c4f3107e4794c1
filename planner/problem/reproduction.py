"""What is needed to reproduce an answer: the command, the seed, the calibration and the versions."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

from catalogs.ui.installation import DISTRIBUTION, own_version
from planner.problem.request import PlanRequest
from planner.problem.scenario import command_of


def reproduce_block(request: PlanRequest, fingerprint: str) -> dict[str, Any]:
    """Return the `reproduce` block of an answer; `fingerprint` identifies the calibration (Evaluator.fingerprint)."""
    return {
        "command": command_of(request),
        "seed": request.seed,
        "trials": request.search.trials,
        "tariff": request.tariff.model_dump(),
        "calibration": digest(fingerprint),
        "versions": {DISTRIBUTION: own_version(), "python": platform.python_version()},
    }


def digest(fingerprint: str) -> str:
    """Return sixteen hexadecimal digits that identify a calibration."""
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
