"""A plan as a folder: a target's files, the benchmark that verifies it, what it predicts, and how to go about it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from catalogs.io.json_files import read_json
from catalogs.ui.words import rate
from planner.answer.answer_schema import Answer, chosen
from planner.deploy.benchmark import benchmark_files
from planner.deploy.files import MARK, DeploymentFiles, check_folder, write_folder
from planner.deploy.local_servers import pools_words
from planner.deploy.serving import Serving
from planner.deploy.targets.registry import find_target, write_target
from planner.sections.full_answer import read_answer
from planner.verify.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Package:
    """The files of a deployment by path, with the steps and notes of its README.md.

    `pools` holds one kind of replica, or a prefill and a decode pool.
    """

    target: str
    pools: tuple[Serving, ...]
    files: dict[str, str]
    steps: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def serving(self) -> Serving:
        """Return the pool that generates the output tokens."""
        return self.pools[-1]

    @property
    def words(self) -> str:
        """Return a summary, for example "2 replicas x TP1 of MODEL on HARDWARE, IMAGE"."""
        s = self.serving
        return f"{pools_words(self.pools)} of {s.model} on {s.resolved.hardware.text}, {s.image}"

    def document(self) -> dict[str, Any]:
        """Return the document of `plan deploy --json`."""
        return {
            "target": self.target,
            "image": self.serving.image,
            "replicas": sum(s.replicas for s in self.pools),
            "files": sorted(self.files),
            "steps": list(self.steps),
            "notes": list(self.notes),
        }


def pack(answer: Answer, source: Path, target: str, alternative: int = 0, image: str | None = None) -> Package:
    """Return the files that start a plan on a target, including a copy of the answer.

    Args:
        answer: The answer that contains the plan.
        source: File of the answer.
        target: Name of the target.
        alternative: Number of the plan; 0 is the recommended one.
        image: Container image; None for the engine's own.

    Raises:
        InputError: The answer does not contain the plan, or the target cannot start it.
    """
    find_target(target)
    plan = chosen("deploy", answer, alternative)
    prediction = Prediction.of(answer, plan)
    pools = tuple(s if image is None else replace(s, image=image) for s in Serving.of(plan))
    written = write_target(target, pools)
    versions = [plan.versions] if plan.versions and image is None else []
    own = dict.fromkeys(note for s in pools for note in s.arguments.notes)
    notes = (*own, *versions, *written.notes, *plan.notices)
    files = written.files | benchmark_files(prediction, pools[-1], written)
    files[MARK] = json.dumps(prediction.document(), indent=1, allow_nan=False) + "\n"
    files["plan.json"] = _only(source, alternative)
    package = Package(target, pools, files, tuple(written.steps), notes)
    files["README.md"] = _readme(package, prediction, written)
    return package


def write_deployment(
    answer_file: Path, target: str, folder: Path, alternative: int = 0, image: str | None = None, force: bool = False
) -> Package:
    """Write the files that start a plan into a new folder, with the benchmark that checks it, and return them.

    Args:
        answer_file: File written by `plan --json`.
        target: vllm, compose, kubernetes, leaderworkerset, kserve, llm-d, ray-serve, triton, sglang or llama.cpp.
        folder: The folder to create.
        alternative: The plan's number; 0 is the recommended one.
        image: Container image; None for the engine's own.
        force: Whether an existing deployment folder is replaced.

    Raises:
        InputError: The answer does not contain the plan, the target cannot start it, or the folder exists.
    """
    check_folder(folder, force)
    package = pack(read_answer(answer_file), answer_file, target, alternative, image)
    write_folder(folder, package.files, force)
    return package


def _only(source: Path, alternative: int) -> str:
    """Return the answer with the deployed plan as the recommended one, for `plan verify`."""
    data = read_json(source)
    plans = [data["best"], *data["alternatives"]]
    data |= {"best": plans.pop(alternative), "alternatives": plans}
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _readme(p: Package, prediction: Prediction, written: DeploymentFiles) -> str:
    workload, commands = prediction.answer.workload_words, "\n".join(written.steps)
    paragraphs = [
        f"# {p.serving.model} with {p.target}",
        f"{p.words}.",
        f"Planned for {rate(prediction.requests_per_s)} of workload {workload} by",
        f"```\n{prediction.answer.reproduce.command}\n```",
        f"## Start\n\n```\n{commands}\n```",
        "## Verify",
        "`./verify.sh` (needs `vllm bench serve` of vLLM 0.32 or later, and this version of `plan`) sends the\n"
        f"planned requests to `BASE_URL` (default {written.base_url}) and compares the results with `{MARK}`.",
        *(["## Notes", "\n".join(f"- {note}" for note in p.notes)] if p.notes else []),
        f"Files for this target are tested with {find_target(p.target).checked}; they have not been run on a cluster.",
    ]
    return "\n\n".join(paragraphs) + "\n"
