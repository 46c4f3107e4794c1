"""A plan as a folder: a target's files, the benchmark that verifies it, what it predicts, and how to go about it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.answer.capabilities import chosen
from planner.answer.schema import Answer
from planner.deploy.benchmark import benchmark_files
from planner.deploy.disaggregated import DisaggregatedServing
from planner.deploy.files import MARK, DeploymentFiles, check_folder, write_folder
from planner.deploy.serving import Serving
from planner.deploy.targets.registry import find_target, write_target
from planner.sections.full_answer import read_answer
from planner.validation.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Package:
    """files by path; notes and steps as README.md tells them. pools: of replicas, one or (prefill, decode)."""

    target: str
    pools: tuple[Serving, ...]
    files: dict[str, str]
    steps: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def serving(self) -> Serving:
        """What clients get their tokens from."""
        return self.pools[-1]

    @property
    def words(self) -> str:
        s = self.serving
        count = "1 replica" if s.replicas == 1 else f"{s.replicas} replicas"
        kind = (
            DisaggregatedServing(*self.pools).words if len(self.pools) > 1 else f"{count} x {s.resolved.layout.words}"
        )
        return f"{kind} of {s.model} on {s.resolved.hardware.text}, {s.image}"

    def document(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "image": self.serving.image,
            "replicas": sum(s.replicas for s in self.pools),
            "files": sorted(self.files),
            "steps": list(self.steps),
            "notes": list(self.notes),
        }


def pack(answer: Answer, source: Path, target: str, alternative: int = 0, image: str | None = None) -> Package:
    """Raises InputError for an answer without such a plan, or a plan the target cannot start.

    source: the answer's file, which goes with the others. alternative: 0 is the best plan.
    """
    find_target(target)
    plan = chosen("deploy", answer, alternative)
    prediction = Prediction.of(answer, plan)
    pools = tuple(s if image is None else replace(s, image=image) for s in Serving.of(plan))
    written = write_target(target, pools)
    notes = (*dict.fromkeys(note for s in pools for note in s.arguments.notes), *written.notes, *plan.notices)
    files = written.files | benchmark_files(prediction, pools[-1], written)
    files[MARK] = json.dumps(prediction.document(), indent=1, allow_nan=False) + "\n"
    files["plan.json"] = _only(source, alternative)
    package = Package(target, pools, files, tuple(written.steps), notes)
    files["README.md"] = _readme(package, prediction, written)
    return package


def write_deployment(answer_file: Path, target: str, folder: Path, alternative: int = 0) -> Package:
    """Write the files that start a plan into a new folder, with the benchmark that checks it, and return them.

    Args:
        answer_file: What `plan --json` wrote.
        target: vllm, compose, kubernetes, leaderworkerset, kserve, llm-d, ray-serve, triton, sglang or llama.cpp.
        folder: The folder to make.
        alternative: The plan's number; 0 is the recommended one.

    Raises:
        InputError: The answer holds no such plan, the target cannot start it, or the folder exists.
    """
    check_folder(folder, force=False)
    package = pack(read_answer(answer_file), answer_file, target, alternative)
    write_folder(folder, package.files, force=False)
    return package


def _only(source: Path, alternative: int) -> str:
    """The answer with the deployed plan as its best, so that `plan verify` compares with that one."""
    data = json.loads(source.read_text(encoding="utf-8"))
    plans = [data["best"], *data["alternatives"]]
    data["best"] = plans.pop(alternative)
    data["alternatives"] = plans
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _readme(p: Package, prediction: Prediction, written: DeploymentFiles) -> str:
    lines = [f"# {p.serving.model} by {p.target}", "", f"{p.words}.", ""]
    asked = prediction.answer.request.workload
    lines += [f"Planned for {prediction.requests_per_s:.4g} requests/s of workload `{asked}` by", ""]
    lines += ["```", prediction.answer.reproduce.command, "```", ""]
    lines += ["## Start", "", "```", *written.steps, "```", ""]
    lines += [
        "## Verify",
        "",
        "`./verify.sh` (needs `vllm bench serve` of vLLM 0.32 or later, and this `plan`) sends the",
    ]
    lines += [f"planned requests to `BASE_URL` (default {written.base_url}) and compares with `{MARK}`.", ""]
    if p.notes:
        lines += ["## Mind", "", *(f"- {note}" for note in p.notes), ""]
    lines += [f"The files of this kind are held against {find_target(p.target).checked}; no cluster has run them.", ""]
    return "\n".join(lines)
