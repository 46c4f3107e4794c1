"""The arguments of a server, rendered for a shell, for a pod's `args` or as Python keywords."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from catalogs.deployments.resolution.stages import divided
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.io.input_files import exists, user_path
from catalogs.models.spec import Checkpoint, ModelSpec

_NEGATED = "--no-"

#: Flags with several values, which are separate words of the command.
_LISTS = ("--cuda-graph-bs",)


def own_stage_layers(r: ResolvedDeployment) -> list[int]:
    """Return the layers of each pipeline stage where they are not those of the engine's own division; else none."""
    stages = len(r.stage_layers)
    if not stages or r.stage_layers == divided(r.engine.spare_layers, r.model.n_layers, stages):
        return []
    return list(r.stage_layers)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The program (with the model where it is positional) and its flags; a flag without a value is a switch.

    `notes` are further steps for the operator. `environment` holds the variables that the plan assumes.
    """

    program: tuple[str, ...]
    flags: tuple[tuple[str, str | None], ...]
    notes: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    model: str = ""  # the name under which the server serves the model

    @property
    def flag_words(self) -> list[str]:
        """Return the flags and their values as separate words."""
        found: list[str] = []
        for flag, value in self.flags:
            values = () if value is None else value.split() if flag in _LISTS else (value,)
            found += [flag, *values]
        return found

    @property
    def words(self) -> list[str]:
        """Return the whole command as separate words."""
        return [*self.program, *self.flag_words]

    @property
    def text(self) -> str:
        """Return the whole command as one shell line, without its variables."""
        return shlex.join(self.words)

    @property
    def text_with_environment(self) -> str:
        """Return the whole command as one shell line that begins with its variables."""
        return "".join(f"{name}={shlex.quote(value)} " for name, value in self.environment.items()) + self.text

    @property
    def keywords(self) -> dict[str, object]:
        """Return the flags as keywords of the engine's own arguments class; `--no-enable-x` becomes enable_x=False."""
        found: dict[str, object] = {}
        for flag, value in self.flags:
            negated = flag.startswith(_NEGATED)
            name = flag.removeprefix(_NEGATED if negated else "--").replace("-", "_")
            found[name] = not negated if value is None else _typed(value)
        return found


def weights_at(model: ModelSpec) -> str:
    """Return the location of the weights: a Hugging Face id, or the absolute path of the folder of a config.json.

    The path is absolute because scripts and servers run in other folders.
    """
    path = user_path(model.name)
    if model.hf_id or not exists(path):
        return model.hf_id or model.name
    return str((path if path.is_dir() else path.parent).resolve())


def served_weights(r: ResolvedDeployment) -> tuple[str, Checkpoint | None]:
    """Return the location of the weights that a server loads, and the published checkpoint where it is one."""
    found = r.model.checkpoint(r.weight_dtype)
    return (weights_at(r.model), None) if found is None else (found.repository, found)


def checkpoint_notes(model: ModelSpec, found: Checkpoint) -> list[str]:
    """Return notes on a published checkpoint: which it is, and whether it holds the weights of another model."""
    notes = [f"the published checkpoint {found.words} is served instead of quantising {weights_at(model)} at start"]
    if not found.holds(model.hf_id):
        notes.append(
            f"this checkpoint holds the weights of {found.of}, not of {model.hf_id}: it is {found.kind}, which answers "
            f"differently; a plan with --precision native serves {model.hf_id} itself"
        )
    return notes


def folder_notes(model: ModelSpec) -> list[str]:
    """Return a note that the weights must be present on the server, for a model that is a local folder."""
    at = weights_at(model)
    note = f"the weights are a local folder: the engine, or its container, must find them at {at}"
    return [note] if at.startswith("/") else []


def _typed(value: str) -> object:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
