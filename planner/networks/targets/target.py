"""What a target of `plan deploy` for networks is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.networks.schema import JobBlock, NetworkPlan


@dataclass(frozen=True, slots=True)
class NetworkTarget:
    """A server that starts plans of networks.

    Attributes:
        engines: The engines of plans that it can start.
        write: Returns its files by path; raises InputError if the plan has what the server lacks.
        notes: Returns what a user has to add or to know, one sentence each.
        families: The families of networks that it serves; None for all.
    """

    engines: tuple[str, ...]
    write: Callable[[JobBlock, NetworkPlan], dict[str, str]]
    notes: Callable[[NetworkPlan], list[str]]
    families: tuple[str, ...] | None = None
