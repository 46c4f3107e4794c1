"""The contract of the mixers of a layer on one rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calibration.operators.operators import Num
from catalogs.arrays import FloatArray
from simulator.layers.operator_call import Calls, OperatorCall, all_reduce_calls, norm_calls
from simulator.layers.shard import Shard

#: Whether the engine's prefill kernel also takes decodes, by head size and KV data type.
JoinsDecodes = Callable[[int, str], bool]


@dataclass(frozen=True, slots=True)
class ShardedMixer(ABC):
    """The mixers of `count` identical layers on one rank.

    Counts of tokens and sequences may be numbers or arrays that broadcast against each other. Contexts are per
    sequence, before any window.
    """

    shard: Shard
    count: int

    def token_calls(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        """Return all operators but the attention itself: norm, projections, the sum over tensor ranks."""
        norms = norm_calls(self.shard, "mixer", "input_norm", self.count, tokens)
        reduced = all_reduce_calls(self.shard, "mixer_all_reduce", self.count, tokens, graph)
        return [*norms, *self.projection_calls(tokens), *reduced]

    @abstractmethod
    def projection_calls(self, tokens: Num) -> list[OperatorCall]:
        """Return the operators that depend on the tokens, between the norm and the sum over tensor ranks."""

    @abstractmethod
    def decode_calls(self, sequences: FloatArray, mean: FloatArray, longest: FloatArray, joins: JoinsDecodes) -> Calls:
        """Yield the attention of decodes with a mean and a longest context.

        All arrays broadcast against each other. Shape (...).

        Args:
            sequences: The number of decodes.
            mean: Their mean context.
            longest: Their longest context.
            joins: Returns whether decodes run in the kernel of the prompts; `never_joins` in a step without prompts.
        """

    @abstractmethod
    def prefill_calls(self, chunks: FloatArray, each: FloatArray, prior: FloatArray) -> Calls:
        """Yield the attention of prompt chunks of `each` new tokens after `prior` earlier ones.

        All arrays broadcast against each other. Shape (...).
        """

    @abstractmethod
    def cache_bytes(self, tokens: float) -> float:
        """Return the cache and state of one sequence in all `count` layers, before division over cache ranks."""

    @abstractmethod
    def linear_params(self) -> float:
        """Return the weights of the matrix products of ONE layer on this rank."""

    @abstractmethod
    def activation_width(self) -> float:
        """Return the values that are alive inside the block for each token."""

    @property
    def qkv_width(self) -> int:
        """Return the outputs of one projection to queries, keys and values; 0 for kinds without such a projection."""
        return 0


def clip(context: FloatArray, window_tokens: int | None) -> FloatArray:
    """Return the part of each context that a window holds; None is no window. Shape of `context`."""
    return context if window_tokens is None else np.minimum(context, window_tokens)
