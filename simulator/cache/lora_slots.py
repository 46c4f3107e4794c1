"""The location of LoRA adapters while a replica runs (device, host memory or disk), and the rules of their loading."""

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
        self.n_from_host = self.n_from_disk = 0  # loaded to the device, and of those read from disk

    def use(self, adapter: int, active: AbstractSet[int]) -> tuple[int, int]:
        """Load an adapter to the device; return (loaded to the device, read from disk), each 0 or 1.

        Args:
            adapter: The adapter.
            active: Adapters of the batch, which keep their slots.
        """
        read, brought = adapter not in self._host, adapter not in self._device
        for tier, most in ((self._host, self._rules.in_host), (self._device, self._rules.max_loras)):
            if adapter not in tier and len(tier) >= most:
                del tier[next(other for other in tier if other not in active)]
        self.n_from_disk += read
        self.n_from_host += brought
        self.touch(adapter)
        return int(brought), int(read)

    def touch(self, adapter: int) -> None:
        """Mark an adapter as used now."""
        for tier in (self._device, self._host):
            tier[adapter] = None
            tier.move_to_end(adapter)


@dataclass(frozen=True, slots=True)
class LoraRules:
    """The limits and costs of adapters. All times are in seconds."""

    max_loras: int  # adapters in one batch and on the device
    in_host: int  # adapters in host memory; the others are on disk
    adapters: int  # adapters that the deployment serves
    from_host_s: float = 0.0  # to load one adapter from host memory to the device
    from_disk_s: float = 0.0  # to read one adapter from disk into host memory
    tokens: tuple[float, ...] = (0.0, 1.0)  # nodes of `step_s`
    step_s: tuple[float, ...] = (0.0, 0.0)  # added to a step by one adapter, by the tokens that use it
    further_s: float = 0.0  # added by each further adapter of the batch

    def added_s(self, tokens: int, adapters: int) -> float:
        """Return the seconds added to a step in which `tokens` tokens use `adapters` different adapters."""
        if not adapters:
            return 0.0
        return float(np.interp(tokens, self.tokens, self.step_s)) + (adapters - 1) * self.further_s

    def bringing_s(self, brought: int, read: int) -> float:
        """Return the seconds of loading `brought` adapters to the device before a step, `read` of them from disk."""
        return brought * self.from_host_s + read * self.from_disk_s


def check_adapters(wanted: IntArray | None, rules: LoraRules | None) -> None:
    """Check that the deployment serves every adapter that the requests use.

    Args:
        wanted: The adapter of each request; -1 for none. Shape (requests,).
        rules: The rules of adapters; None if the deployment serves none.

    Raises:
        InputError: A request uses an adapter that is not served.
    """
    highest = -1 if wanted is None or not len(wanted) else int(wanted.max())
    served = rules.adapters if rules else 0
    if highest >= served:
        rule = f"the deployment serves {served} LoRA adapters"
        raise InputError(rule, f"adapter {highest} of 0..{highest}", f"lora: {{adapters: {highest + 1}}}")
