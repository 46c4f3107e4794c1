"""Small hand-checkable worlds: toy timers, rules and workloads with times that floats hold exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from catalogs.engines.profile import HostTimes
from catalogs.workloads.request_set import RequestSet
from simulator.core.batch import BatchShape
from simulator.schedulers.rules import EngineRules


def host_times(**seconds: float) -> HostTimes:
    """Free but for what is given."""
    free = {field.name: 0.0 for field in fields(HostTimes) if field.name != "source"}
    return HostTimes(**{**free, **seconds})  # type: ignore[arg-type]


NO_HOST = host_times()
ENDLESS = 1 << 40


@dataclass(frozen=True)
class Linear:
    """Seconds linear in the counts of a step. The defaults are sums of powers of two, so that times are exact."""

    base_s: float = 1.0
    decode_s: float = 0.0
    prompt_token_s: float = 0.0
    context_s: float = 0.0  # per cached token of the decodes
    segment_steps: int = ENDLESS  # decode_segment promises no more
    pass_s: float = 0.0  # per pass over the weights beyond the first

    def cycle_s(self, shape: BatchShape) -> float:
        prompt = self.prompt_token_s * shape.prefill_tokens
        more = self.pass_s * (shape.passes - 1) + self.context_s * shape.decode_context_sum
        return self.base_s + self.decode_s * shape.decodes + prompt + more

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:
        shape = BatchShape(decodes=decodes, decode_context_sum=context_sum, decode_context_max=context_max)
        return self.cycle_s(shape), self.context_s * decodes, self.segment_steps


def rules(**changes: object) -> EngineRules:
    """A roomy engine with free host work; lag 0 unless said."""
    values: dict[str, object] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 4096,
        "kv_blocks": 1000,
        "host": NO_HOST,
        "block_size": 4,
        "lag": 0,
    }
    return EngineRules(**{**values, **changes})  # type: ignore[arg-type]


def requests(
    arrival_s: Sequence[float],
    input_tokens: Sequence[int],
    output_tokens: Sequence[int],
    hashes: Sequence[Sequence[int]] | None = None,
    concurrency: int | None = None,
) -> RequestSet:
    return RequestSet(
        arrival_s=np.array(arrival_s, dtype=np.float64),
        input_tokens=np.array(input_tokens, dtype=np.int64),
        output_tokens=np.array(output_tokens, dtype=np.int64),
        concurrency=concurrency,
        block_hashes=None if hashes is None else tuple(map(tuple, hashes)),
        hash_block_tokens=4,
    )
