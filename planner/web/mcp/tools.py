"""The tools of `plan mcp`: the verbs of the planner with the JSON Schema of their arguments.

Short questions are answered in this process. `plan` and `simulate` run the command of that name in a process of their
own, so that a client can cancel them, and their results are those of the command.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any, Final

from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_loader import dump_yaml
from planner.web.option_names import in_keys

#: Keys of an answer that are returned unless the whole answer is wanted.
_BRIEF: Final = (
    "feasible", "best", "infeasible", "prices", "assumptions", "reproduce", "search", "capacity_agents", "notices",
)  # fmt: skip

#: Parts of a plan that are left out unless the whole answer is wanted: curves and distributions.
_LARGE_PARTS: Final = ("curve", "stages", "latency_cdf", "metrics", "time_breakdown")


class RunningCommand:
    """The process of one call, which a cancellation ends."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None
        self._cancelled = False

    def run(self, arguments: list[str]) -> str:
        """Run a module's command to its end and return what it wrote to stderr.

        Raises:
            InputError: The command refused its input, or was cancelled.
        """
        with self._lock:
            if self._cancelled:
                raise InputError("the call was cancelled")
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
        _, words = self._process.communicate()
        if self._process.returncode not in (0, 1):  # 1: the objectives cannot be met, which is an answer
            raise InputError(_last_line(words) or f"the command {arguments[0]} failed")
        return words

    def cancel(self) -> None:
        """End the process; a call that has not started yet does not start."""
        with self._lock:
            self._cancelled = True
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)


def _last_line(words: str) -> str:
    """Return the error of a command, which follows its notices on stderr, without the name of the command."""
    return re.sub(r"^[a-z]+: ", "", (words.strip().splitlines() or [""])[-1])


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its name, what it does, the schema of its arguments, and the function that answers a call."""

    name: str
    title: str
    description: str
    properties: Callable[[], dict[str, Any]]
    required: tuple[str, ...]
    answer: Callable[[dict[str, Any], RunningCommand], dict[str, Any]]

    def definition(self) -> dict[str, Any]:
        """Return the definition that a client lists."""
        schema = {
            "type": "object",
            "properties": self.properties(),
            "required": list(self.required),
            "additionalProperties": False,
        }
        hints = {"readOnlyHint": True, "openWorldHint": False}
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": schema,
            "annotations": hints,
        }

    def call(self, arguments: Mapping[str, Any], running: RunningCommand) -> dict[str, Any]:
        """Return the answer to a call.

        Raises:
            InputError: An argument is missing, unknown or invalid; the message names arguments, and no options.
        """
        known = self.properties()
        for name in arguments:
            if name not in known:
                raise InputError(f"{self.name} has no such argument", name, nearest_name(name, known))
        for name in self.required:
            if arguments.get(name) in (None, "", []):
                raise InputError(f"{self.name} needs the argument {name}")
        try:
            return self.answer({name: value for name, value in arguments.items() if value is not None}, running)
        except InputError as error:
            raise in_keys(error, known) from None


# ---- arguments


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _number(description: str, kind: str = "number", **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": description, **more}


def _question_keys() -> dict[str, Any]:
    """Return the keys of a question that one chooses by hand, with their help texts."""
    from planner.problem.request_keys import plan_keys

    found: dict[str, Any] = {}
    for key in plan_keys().values():
        if key.run_only or (key.option is None and "." in key.name):
            continue
        found[key.name] = {"type": key.kind, "description": key.description}
        if key.kind == "array":
            found[key.name]["items"] = {"type": "string"}
    return found


def _plan_properties() -> dict[str, Any]:
    whole = {"type": "boolean", "description": "Return the whole answer of `plan --json`, not its main parts."}
    return {**_question_keys(), "whole_answer": whole}


def _step_properties() -> dict[str, Any]:
    from planner.studies.step_analysis import StepQuery
    from planner.web.documents.shapes import STEP_HELP

    kinds = {"int": "integer", "int | None": "integer"}
    types = {field.name: kinds.get(str(field.type), "string") for field in fields(StepQuery)}
    return {name: {"type": kind, "description": STEP_HELP[name]} for name, kind in types.items()}


# ---- answers


def _plan(arguments: dict[str, Any], running: RunningCommand) -> dict[str, Any]:
    from planner.problem.scenario import nested

    whole = arguments.pop("whole_answer", False)
    with tempfile.TemporaryDirectory(prefix="plan-mcp-") as folder:
        scenario, out = Path(folder, "scenario.yaml"), Path(folder, "answer.json")
        scenario.write_text(dump_yaml(nested(arguments)), encoding="utf-8")
        running.run(["planner.cli.main", str(scenario), "--json", str(out)])
        answer: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return answer if whole else _brief_answer(answer)


def _brief_answer(answer: dict[str, Any]) -> dict[str, Any]:
    brief = {key: answer[key] for key in _BRIEF if answer.get(key) not in (None, [])}
    plans = [answer["best"], *answer.get("alternatives", [])] if answer.get("best") else []
    shown = [{key: value for key, value in plan.items() if key not in _LARGE_PARTS} for plan in plans]
    return brief | ({"best": shown[0], "alternatives": shown[1:]} if shown else {})


def _simulate(arguments: dict[str, Any], running: RunningCommand) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="plan-mcp-") as folder:
        deployment, out = Path(folder, "deployment.yaml"), Path(folder, "out.json")
        deployment.write_text(dump_yaml(arguments.pop("deployment")), encoding="utf-8")
        options = [text for name, value in arguments.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        running.run(["simulator.cli.main", str(deployment), *options, "--json", str(out)])
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def _guess(arguments: dict[str, Any], _: RunningCommand) -> dict[str, Any]:
    from planner.web.documents.guess import any_guess_document
    from planner.web.questions import any_request

    return dict(any_guess_document(any_request(arguments)))


def _analyze(arguments: dict[str, Any], _: RunningCommand) -> dict[str, Any]:
    from planner.studies.step_analysis import StepQuery
    from planner.web.documents.analysis import analyze_document

    return analyze_document(StepQuery(**{"batch": 1, "context": 1024, **arguments}))


def _models(arguments: dict[str, Any], _: RunningCommand) -> dict[str, Any]:
    from planner.web.documents.catalogs import models

    return {"items": models(arguments.get("search", ""))}


def _hardware(arguments: dict[str, Any], _: RunningCommand) -> dict[str, Any]:
    from planner.web.documents.catalogs import hardware

    words = arguments.get("search", "").lower().split()
    items = [dict(item) for item in hardware()]
    return {"items": [i for i in items if all(w in f"{i['name']} {i['full_name']}".lower() for w in words)]}


_SEARCH: Final = {"search": _text("Words that the name contains; without them, every entry.")}

TOOLS: Final = (
    Tool(
        "plan",
        "Plan a deployment",
        "Find the cheapest deployment of a language model, or of a network such as an image or video model, an encoder "
        "or a detector, that meets latency objectives, by simulation of calibrated "
        "candidates. Returns the deployment, its cost, latencies with probabilities, and the command that starts it; "
        "or what would meet the objectives. Takes seconds to minutes.",
        _plan_properties,
        ("model", "hardware", "slo"),
        _plan,
    ),
    Tool(
        "guess",
        "Guess a plan at once",
        "Estimate within a second, without simulation, whether a model fits, what binds, and about how many "
        "accelerators and dollars a plan would need. Use plan for a decision.",
        _question_keys,
        ("model", "hardware", "slo"),
        _guess,
    ),
    Tool(
        "analyze",
        "Analyse one engine step",
        "Break one decode or prefill step down by operator: FLOPs, bytes, bound, calibrated time, memory and scaling.",
        _step_properties,
        ("model", "hardware"),
        _analyze,
    ),
    Tool(
        "simulate",
        "Simulate a deployment",
        "Simulate how a deployment serves a workload; returns latencies, throughput, energy and what limits it.",
        lambda: {
            "deployment": {"type": "object", "description": "Keys of deployment.yaml: model, hardware, engine, ..."},
            "workload": _text("Workload of the catalog, or path of a workload or trace file."),
            "rate": _number("Requests per second.", exclusiveMinimum=0),
            "requests": _number("Requests to simulate.", "integer", minimum=1),
            "input_tokens": _number("Prompt length of every request.", "integer", minimum=1),
            "output_tokens": _number("Output length of every request.", "integer", minimum=1),
            "seed": _number("Seed of the workload.", "integer", minimum=0),
        },
        ("deployment",),
        _simulate,
    ),
    Tool(
        "models",
        "List models",
        "List the models of the catalog with their sizes, attention, checkpoints and sources.",
        lambda: _SEARCH,
        (),
        _models,
    ),
    Tool(
        "hardware",
        "List hardware",
        "List the accelerators of the catalog with memory, peaks, dated prices and calibration.",
        lambda: _SEARCH,
        (),
        _hardware,
    ),
)


def tool(name: str) -> Tool | None:
    """Return the tool of this name, or None."""
    return next((found for found in TOOLS if found.name == name), None)
