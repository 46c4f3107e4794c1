"""Where LoRA adapters lie while a replica runs: in slots on the device, in host memory, or on disk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet

from simulator.lora_rules import LoraRules


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
