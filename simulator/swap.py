"""Host memory that a preempted request's blocks are moved to, and from which they come back (vLLM V0, swap_space)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from catalogs.errors import InputError

if TYPE_CHECKING:
    from catalogs.deployment import Resolved
    from simulator.memory import MemoryPlan


@dataclass(frozen=True, slots=True)
class SwapRules:
    """blocks: room for so many. A step that moves blocks runs after their copies, one after the other on one link."""

    blocks: int
    s_per_block: float

    @classmethod
    def of(cls, resolved: Resolved, memory: MemoryPlan) -> Self:
        """Every accelerator moves its part of a block at once, at the rate it reaches the host at."""
        part_bytes = memory.kv_bytes_per_token * memory.block_size
        return cls(int(resolved.swap_bytes / part_bytes), part_bytes / resolved.hardware.node.host_bytes_per_s)


class SwapSpace:
    """free + used = total, blocks."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0

    def take(self, blocks: int) -> None:
        """Raises InputError where they do not fit: the engine would stop with this error, too."""
        if self.used + blocks > self.total:
            raise InputError(
                f"vLLM V0 aborts for want of swap space: {self.used + blocks} blocks preempted at once, room for",
                self.total,
                "a larger swap_space_gib, or preemption: recompute",
            )
        self.used += blocks

    def give_back(self, blocks: int) -> None:
        self.used -= blocks
