"""What comes and goes beside a step's computing: KV blocks between the device and its host, and adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.host_cache import Copy
    from simulator.request import Request


@dataclass(slots=True)
class Moves:
    """Of one step; counts, and those they are for."""

    fetches: tuple[Request, ...] = ()  # their blocks start to come from the host with this step
    blocks: int = 0  # to host memory and back, before the step runs
    copies: tuple[Copy, ...] = ()  # blocks that go to the host when it has ended
    adapters: int = 0  # different LoRA adapters it asks for
    adapter_tokens: int = 0  # tokens that do
    brought_adapters: tuple[int, int] = (0, 0)  # to the device before it runs, and of those from disk
