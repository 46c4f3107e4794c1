"""The command that starts one replica of a plan, with every choice of the planner written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.engines.files import unsupported_reason
from catalogs.errors import InputError, nearest_name
from catalogs.launch.arguments import Arguments
from catalogs.launch.writing import llama_cpp, sglang, transformers_static, trtllm, vllm

#: Supported engine families, by the first part of the names in the catalog (`vllm-0.15` is vllm).
COMMANDS: Final[dict[str, Callable[[ResolvedDeployment], Arguments]]] = {
    "vllm": vllm.vllm_arguments,
    "sglang": sglang.sglang_arguments,
    "llama.cpp": llama_cpp.llama_cpp_arguments,
    "trtllm": trtllm.trtllm_arguments,
    "transformers-static": transformers_static.transformers_static_arguments,
}

#: Engines whose names begin with that of a family to which they do not belong.
_OTHERS: Final = ("vllm-v0", "trtllm-tensorrt")


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """The command of one replica, and further steps for the operator."""

    command: str
    notes: tuple[str, ...]


def engine_family(engine: str) -> str:
    """Return the engine family that has the same command line as `engine`.

    Raises:
        InputError: No start command is known for this engine.
    """
    found = engine if engine in COMMANDS else engine.partition("-")[0]
    if engine in _OTHERS or found not in COMMANDS:
        why = unsupported_reason(engine)
        known = f"this engine is known, but not simulated ({why})" if why else "this engine has no start command here"
        rule = f"{known}; engines with a start command are {', '.join(COMMANDS)}"
        raise InputError(rule, engine, nearest_name(engine, COMMANDS) or "vllm")
    return found


def serve_arguments(resolved: ResolvedDeployment) -> Arguments:
    """Return the command line of one replica.

    Raises:
        InputError: The engine has no start command, or none for this deployment.
    """
    return COMMANDS[engine_family(resolved.engine.name)](resolved)


def serve_command(resolved: ResolvedDeployment) -> ServeCommand:
    """Return the command line, with its variables, and the notes of an answer.

    Flags are omitted only where they equal the engine's default.

    Raises:
        InputError: The engine has no start command, or none for this deployment.
    """
    made = serve_arguments(resolved)
    notes = list(made.notes)
    if resolved.replicas > 1:
        per = resolved.accelerators_per_replica
        which = "accelerator" if per == 1 else f"group of {per} accelerators"
        notes.append(f"start {resolved.replicas} of these, each on its own {which} and port, behind a router")
    return ServeCommand(made.text_with_environment, tuple(notes))
