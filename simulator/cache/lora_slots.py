"""Where LoRA adapters lie while a replica runs: in slots on the device, in host memory, or on disk.

What a replica is told of LoRA adapters: how many there are, where they may lie, what they add to a step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from catalogs.arrays import IntArray
from catalogs.errors import InputError


class AdapterSlots:
    """Adapters on the device and in host memory, each in order of last use."""

    def __init__(self, rules: LoraRules) -> None:
        self._rules = rules
        self._device: OrderedDict[int, None] = OrderedDict()
        self._host: OrderedDict[int, None] = OrderedDict()
        self.n_from_host = self.n_from_disk = 0  # brought to the device, and read from disk for that

    def use(self, adapter: int, active: AbstractSet[int]) -> tuple[int, int]:
        """Make it resident: (brought to the device, read from disk), 0 or 1. `active`: those that keep their slot."""
        read, brought = adapter not in self._host, adapter not in self._device
        if read:
            self._evict(self._host, self._rules.in_host, active)
        if brought:
            self._evict(self._device, self._rules.max_loras, active)
        self.n_from_disk += read
        self.n_from_host += brought
        self.touch(adapter)
        return int(brought), int(read)

    def touch(self, adapter: int) -> None:
        """It is used now."""
        for tier in (self._device, self._host):
            tier[adapter] = None
            tier.move_to_end(adapter)

    def _evict(self, tier: OrderedDict[int, None], most: int, active: AbstractSet[int]) -> None:
        if len(tier) >= most:
            del tier[next(adapter for adapter in tier if adapter not in active)]

    @property
    def resident(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(on the device, in host memory), the longest unused first."""
        return tuple(self._device), tuple(self._host)


@dataclass(frozen=True, slots=True)
class LoraRules:
    """max_loras: in one batch and on the device; in_host: in host memory, the others lie on disk. Seconds."""

    max_loras: int
    in_host: int
    adapters: int
    from_host_s: float = 0.0  # to bring one to the device
    from_disk_s: float = 0.0  # to read one into host memory, before that
    tokens: tuple[float, ...] = (0.0, 1.0)  # nodes of:
    step_s: tuple[float, ...] = (0.0, 0.0)  # what one adapter adds to a step in which so many tokens ask for it
    further_s: float = 0.0  # each further adapter of the batch

    def added_s(self, tokens: int, adapters: int) -> float:
        """To a step in which `tokens` tokens ask for `adapters` different adapters."""
        if not adapters:
            return 0.0
        return float(np.interp(tokens, self.tokens, self.step_s)) + (adapters - 1) * self.further_s

    def bringing_s(self, brought: int, read: int) -> float:
        """Before a step that needs `brought` more adapters on the device, `read` of them from disk."""
        return brought * self.from_host_s + read * self.from_disk_s


def check_adapters(wanted: IntArray | None, rules: LoraRules | None) -> None:
    """InputError where requests ask for an adapter that is not served."""
    highest = -1 if wanted is None or not len(wanted) else int(wanted.max())
    served = rules.adapters if rules else 0
    if highest >= served:
        asked = f"adapter {highest} of 0..{highest}"
        raise InputError(f"the deployment serves {served} LoRA adapters", asked, f"lora: {{adapters: {highest + 1}}}")
