"""A server's command line, taken apart: what a shell, a pod's `args` and a Python keyword all need of it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from catalogs.models.spec import ModelSpec

_NEGATED = "--no-"


@dataclass(frozen=True, slots=True)
class Arguments:
    """program, then the model where it is positional, then flags; a flag without a value is a switch.

    notes: what a reader must do besides starting it. environment: variables the plan assumes.
    """

    program: tuple[str, ...]
    flags: tuple[tuple[str, str | None], ...]
    notes: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def flag_words(self) -> list[str]:
        return [word for flag, value in self.flags for word in ((flag,) if value is None else (flag, value))]

    @property
    def words(self) -> list[str]:
        return [*self.program, *self.flag_words]

    @property
    def text(self) -> str:
        """One line of shell."""
        return shlex.join(self.words)

    @property
    def keywords(self) -> dict[str, object]:
        """The flags as keywords of the engine's own arguments class: `--no-enable-x` is enable_x=False."""
        found: dict[str, object] = {}
        for flag, value in self.flags:
            negated = flag.startswith(_NEGATED)
            name = flag.removeprefix(_NEGATED if negated else "--").replace("-", "_")
            found[name] = not negated if value is None else _typed(value)
        return found


def weights_at(model: ModelSpec) -> str:
    """What an engine is told to load: a Hugging Face id, or the whole path of the folder a config.json was read from.

    Whole, because scripts and servers start in folders of their own.
    """
    path = Path(model.name).expanduser()
    if model.hf_id or not path.exists():
        return model.hf_id or model.name
    return str((path.parent if path.is_file() else path).resolve())


def folder_notes(model: ModelSpec) -> list[str]:
    """That the weights must be where they are started, for a model that no server can fetch."""
    at = weights_at(model)
    return [f"the weights are a folder: the engine, its container too, must find them at {at}"] if at[:1] == "/" else []


def _typed(value: str) -> object:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
