"""What stands before the engines: for each model, the API servers of the pools that take its prompts.

Pools of one model that run different engines have the API servers of the first: who gets a request is decided behind
them, when it has been read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simulator.api_server import Intake
from simulator.pool import Pool

FloatArray = npt.NDArray[np.float64]


class Front:
    """models: which model each request wants, by its place; None: all the first."""

    __slots__ = ("_intakes", "_models", "_output_s")

    def __init__(self, pools: Sequence[Pool], models: Sequence[int] | None) -> None:
        self._models = models
        self._intakes, self._output_s = list[Intake](), list[float]()
        for model in range(1 + max(pool.model for pool in pools)):
            taking = [pool for pool in pools if pool.model == model and pool.role != "decode"] or pools
            servers = sum(pool.replicas * pool.rules.attention_ranks for pool in taking)
            self._intakes.append(Intake(taking[0].rules.host, max(1, servers)))
            self._output_s.append(taking[0].rules.host.output_s)

    def admit(self, index: int, now: float, input_tokens: int) -> float:
        """A request is sent; when it will be at an engine, seconds of the run's clock."""
        return self._intakes[self._models[index] if self._models else 0].admit(now, input_tokens)

    def output_s(self, index: int) -> float:
        """Seconds from there to its client."""
        return self._output_s[self._models[index] if self._models else 0]

    def reach_times_s(self, sent_s: Sequence[float], input_tokens: Sequence[int]) -> FloatArray:
        """When each request is at an engine, (n,)."""
        if self._models is None:
            return np.array(list(map(self._intakes[0].admit, sent_s, input_tokens)))
        return np.array(list(map(self.admit, range(len(sent_s)), sent_s, input_tokens)))
