"""The files that start a plan of a network: a deployment for `simulate`, and those of a target of `targets/`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalogs.errors import InputError
from catalogs.io.yaml_loader import dump_yaml
from planner.deploy.files import MARK, write_folder
from planner.networks.answer_file import chosen_plan
from planner.networks.schema import NetworkAnswer, NetworkPlan
from planner.networks.targets.registry import NETWORK_TARGETS
from planner.networks.targets.target import NetworkTarget


@dataclass(frozen=True, slots=True)
class NetworkPackage:
    """The files of a deployment by path, with notes."""

    target: str
    files: dict[str, str]
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the document of `plan deploy --json`."""
        return {"target": self.target, "files": sorted(self.files), "notes": list(self.notes)}


def usual_target(plan: NetworkPlan) -> str:
    """Return the target that starts the engine of a plan."""
    engine = plan.deployment["engine"]
    return next(name for name, target in NETWORK_TARGETS.items() if engine in target.engines)


def pack_network(answer: NetworkAnswer, target: str, alternative: int = 0) -> NetworkPackage:
    """Return the files that start a plan of a network.

    Raises:
        InputError: The answer has no such plan, or another target starts its engine.
    """
    plan = chosen_plan("deploy", answer, alternative)
    found = _find_target(target, answer, plan)
    files = {"deployment.yaml": dump_yaml(plan.deployment), **found.write(answer.job, plan)}
    files[MARK] = json.dumps(plan.document(), indent=1, allow_nan=False) + "\n"
    repeats = f"simulate deployment.yaml --rate {plan.requests_per_s:g} repeats the figures of the plan"
    return NetworkPackage(target, files, (repeats, *plan.notices, *found.notes(plan)))


def _find_target(name: str, answer: NetworkAnswer, plan: NetworkPlan) -> NetworkTarget:
    """Return the target of a name, which can start the plan.

    Raises:
        InputError: No target has this name, or it starts other engines or serves other networks.
    """
    engine, family = str(plan.deployment["engine"]), answer.job.family
    able = {
        other: target
        for other, target in NETWORK_TARGETS.items()
        if engine in target.engines and (target.families is None or family in target.families)
    }
    if name not in able:
        nearest = f"--target {' or '.join(able)}" if able else None
        raise InputError(f"this plan is for {engine}", f"--target {name}", nearest)
    return able[name]


def write_network_deployment(
    answer: NetworkAnswer, target: str, folder: Path, alternative: int = 0, force: bool = False
) -> NetworkPackage:
    """Write the files that start a plan of a network into a folder, and return them.

    Raises:
        InputError: The answer has no such plan, the target cannot start it, or the folder cannot be written.
    """
    package = pack_network(answer, target, alternative)
    write_folder(folder, package.files, force)
    return package
