"""What a trace says of its requests beside times and lengths: the conversation, the model and adapter they ask for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from catalogs.errors import InputError

IntArray = npt.NDArray[np.int64]

#: Columns that name a request's conversation: ours, BurstGPT's.
SESSION_COLUMNS: Final = ("session", "session_id", "Session ID")


@dataclass(frozen=True, slots=True)
class Labels:
    """(n,) arrays, or None where the file says nothing. wanted_models: places in `models`."""

    sessions: IntArray | None = None
    wanted_models: IntArray | None = None
    models: tuple[str, ...] = ()
    adapters: IntArray | None = None  # LoRA adapters numbered in the order they first come up; -1: none

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]], where: str) -> Labels:
        sessions = next((_numbered(columns[c])[0] for c in SESSION_COLUMNS if c in columns), None)
        if sessions is None and "chat_id" in columns and "parent_chat_id" in columns:
            sessions = _chains(columns["chat_id"], columns["parent_chat_id"])
        adapters = _adapters(columns["adapter"]) if "adapter" in columns else None
        if "model" not in columns:
            return cls(sessions, adapters=adapters)
        missing = next((i for i, name in enumerate(columns["model"], 1) if not name), None)
        if missing is not None:
            raise InputError(f"{where}: model of row {missing} is missing")
        wanted, names = _numbered([str(name) for name in columns["model"]])
        return cls(sessions, wanted, tuple(map(str, names)), adapters)


def _numbered(values: Sequence[Any]) -> tuple[IntArray, list[Hashable]]:
    """Equal values, equal numbers, in the order they first come up; no value: a number of its own."""
    known: dict[Hashable, int] = {}
    named = ((v if v not in (None, "") else ("row", i)) for i, v in enumerate(values))
    return np.array([known.setdefault(v, len(known)) for v in named], dtype=np.int64), list(known)


def _adapters(values: Sequence[Any]) -> IntArray:
    """Names to numbers; no name: no adapter."""
    known: dict[str, int] = {}
    named = [str(v) if v not in (None, "") and v == v else "" for v in values]
    return np.array([known.setdefault(name, len(known)) if name else -1 for name in named], dtype=np.int64)


def _chains(ids: Sequence[Any], parents: Sequence[Any]) -> IntArray:
    """Turns of a conversation name the turn before (Bailian; none: -1)."""
    root: dict[Hashable, Hashable] = {}
    for own, parent in zip(ids, parents, strict=True):
        root[own] = root.get(parent, own)
    return _numbered([root[own] for own in ids])[0]


NO_LABELS: Final = Labels()
