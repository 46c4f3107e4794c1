"""The command that starts one replica of a plan, every choice the planner made written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.errors import InputError, nearest_name
from catalogs.launch import llama_cpp, sglang, vllm
from catalogs.launch.arguments import Arguments

#: Engine families that can be started, by the first part of the catalog's names (`vllm-0.15` is vllm).
COMMANDS: Final[dict[str, Callable[[ResolvedDeployment], Arguments]]] = {
    "vllm": vllm.vllm_arguments,
    "sglang": sglang.sglang_arguments,
    "llama.cpp": llama_cpp.llama_cpp_arguments,
}

#: Names that begin like a family and are another engine.
_OTHERS: Final = ("vllm-v0",)


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """The command of one replica, and what a reader must do besides running it."""

    command: str
    notes: tuple[str, ...]


def engine_family(engine: str) -> str:
    """The engine whose command line this one has. Raises InputError where none can be written."""
    found = engine.partition("-")[0]
    if engine in _OTHERS or found not in COMMANDS:
        rule = f"no start command can be written for this engine; known are {', '.join(COMMANDS)}"
        raise InputError(rule, engine, nearest_name(engine, COMMANDS) or "vllm")
    return found


def serve_arguments(resolved: ResolvedDeployment) -> Arguments:
    """The command line of one replica."""
    return COMMANDS[engine_family(resolved.engine.name)](resolved)


def serve_command(resolved: ResolvedDeployment) -> ServeCommand:
    """For the answer: one line, and what to mind. Flags are left out only where the engine does the same without."""
    made = serve_arguments(resolved)
    notes = list(made.notes)
    if resolved.replicas > 1:
        per = resolved.accelerators_per_replica
        which = "accelerator" if per == 1 else f"group of {per} accelerators"
        notes.append(f"start {resolved.replicas} of these, each on its own {which} and port, behind a router")
    return ServeCommand(made.text, tuple(notes))
