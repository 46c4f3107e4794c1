"""Import `vllm bench forward --output-json` (vLLM 0.33): one row per case with an exact batch and its forward time.

The file is a list of {case, requests: [{query_len, kv_len, num_draft_tokens, chunked}], median_us, ranks: [{latency_us:
{median, samples_us, sample_spread_pct, …}, finite, …}]} (vllm/benchmarks/forward/main.py and shapes.py). kv_len counts
the query; a request with a query of one token plus its drafts, after some prefix, is a decode. Times are of the model's
forward as one graph, without sampling and host work, the slowest rank where there are several. The file names neither
model nor hardware, so rows cannot be checked against a peak.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from calibration.bundles.ranges import first_fault
from calibration.importers.parsing import EngineSteps, ForeignDocument
from catalogs.errors import InputError
from catalogs.io.input_files import MOST_DATA_BYTES, read_limited

#: Spread of the sample medians above which vLLM itself warns, in %.
UNSTABLE_PERCENT: Final = 0.5


class _Request(ForeignDocument):
    query_len: int
    kv_len: int
    num_draft_tokens: int = 0

    @property
    def is_decode(self) -> bool:
        return self.kv_len > self.query_len and self.query_len == 1 + self.num_draft_tokens


class _Latency(ForeignDocument):
    median: float
    samples_us: tuple[float, ...] = ()
    sample_spread_pct: float = 0.0


class _Rank(ForeignDocument):
    latency_us: _Latency
    finite: bool = True


class _Case(ForeignDocument):
    case: str
    requests: list[_Request]
    median_us: float
    ranks: list[_Rank]


def read_forward_bench(path: Path) -> EngineSteps:
    """Return one row per case of a forward benchmark.

    Their columns are case, context_requests, context_tokens, context_prefix_tokens (in the cache before),
    generation_requests, generation_tokens, generation_context_tokens (sum with the query), max_context_tokens, seconds,
    spread, ranks.

    Raises:
        InputError: The file is unreadable or of another format, or none of its cases is sound.
    """
    import pandas as pd

    try:
        cases = TypeAdapter(list[_Case]).validate_json(
            read_limited(path, "forward benchmark cannot be read", MOST_DATA_BYTES)
        )
    except ValidationError as error:
        raise InputError(f"not a valid vllm bench forward result ({first_fault(error, 'file')})", str(path)) from None
    faults = [_fault(case) for case in cases]
    kept = [case for case, fault in zip(cases, faults, strict=True) if fault is None]
    counts = Counter(f for f in faults if f is not None)
    if not kept:
        raise InputError(f"no valid case in this forward benchmark ({', '.join(counts) or 'empty'})", str(path))
    notes = [f"dropped {n} of {len(cases)} cases: {why}" for why, n in sorted(counts.items())]
    unstable = sum(c.ranks[0].latency_us.sample_spread_pct > UNSTABLE_PERCENT for c in kept)
    if unstable:
        notes.append(f"{unstable} cases have sample medians that spread over {UNSTABLE_PERCENT} %")
    return EngineSteps(pd.DataFrame([_row(c) for c in kept]), "forwards", tuple(notes))


def _fault(case: _Case) -> str | None:
    if not case.requests or not case.ranks or any(r.query_len < 1 or r.kv_len < r.query_len for r in case.requests):
        return "batch makes no sense"
    if not all(r.finite for r in case.ranks):
        return "output not finite"
    if not case.median_us > 0:
        return "no time"
    samples = case.ranks[0].latency_us.samples_us
    if samples and abs(float(np.median(samples)) - case.median_us) > 0.01 * case.median_us + 0.01:
        return "median and samples disagree (wrong unit?)"
    return None


def _row(case: _Case) -> dict[str, Any]:
    decodes = [r for r in case.requests if r.is_decode]
    prefills = [r for r in case.requests if not r.is_decode]
    return {
        "case": case.case,
        "context_requests": len(prefills),
        "context_tokens": sum(r.query_len for r in prefills),
        "context_prefix_tokens": sum(r.kv_len - r.query_len for r in prefills),
        "generation_requests": len(decodes),
        "generation_tokens": sum(r.query_len for r in decodes),
        "generation_context_tokens": sum(r.kv_len for r in decodes),
        "max_context_tokens": max(r.kv_len for r in case.requests),
        "seconds": case.median_us * 1e-6,
        "spread": case.ranks[0].latency_us.sample_spread_pct / 100,
        "ranks": len(case.ranks),
    }
