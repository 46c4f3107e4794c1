"""What a replica is told of LoRA adapters: how many there are, where they may lie, what they add to a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from catalogs.errors import InputError

IntArray = npt.NDArray[np.int64]


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
