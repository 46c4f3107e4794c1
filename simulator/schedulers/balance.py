"""When data-parallel ranks start prompts together (TensorRT-LLM's attention_dp_config)."""

from __future__ import annotations


class Balance:
    """Prompts start in a step in which ranks are even, and in each `steps`-th step on end in which they are not. Who
    counts says what even is: every rank has a prompt to start, or some rank has nothing to generate."""

    __slots__ = ("_steps", "_uneven")

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._uneven = 0  # steps since prompts could last start

    @property
    def holds(self) -> bool:
        """No prompt starts in the step counted last."""
        return self._uneven > 0

    @property
    def left(self) -> int:
        """Further steps that start no prompts, while ranks stay uneven."""
        return self._steps - self._uneven - 1

    def count(self, even: bool, steps: int = 1) -> None:
        """So many more steps."""
        self._uneven = 0 if even else (self._uneven + steps) % self._steps
