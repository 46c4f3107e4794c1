"""Towers as a choice of the search: an encoder pool, or whole towers on every tensor rank.

Both are a few more candidates for each placement, at the default limits of the engine, and only where encoding takes a
noticeable part of the time of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from planner.evaluation.closed_forms.candidate_forms import ClosedForms
from planner.evaluation.closed_forms.encoder_pools import EncoderPoolQueueing
from planner.problem.candidate import ENCODER_POOL, Candidate
from planner.problem.overrides import Overrides

#: Least share of the time of a prompt that encoding must take for another arrangement of the towers to be tried. A
#: judgement: below it, even free encoding gains no more than twice a tie.
LEAST_SHARE: Final = 0.04


def tower_variants(
    found: Iterable[Candidate], forms: ClosedForms, own_limits: tuple[int, int], fixed: Overrides
) -> Iterator[Candidate]:
    """Yield candidates with another arrangement of the towers: whole ones on every rank, or an encoder pool.

    At most two follow from a candidate, of those with the engine's default limits and one kind of replica that could
    meet the objectives. The encoder pool has the number of replicas with the highest estimated rate. What the request
    fixes is not varied.

    Args:
        found: The candidates.
        forms: Their closed forms.
        own_limits: The default (max_num_seqs, max_num_batched_tokens) of the engine.
        fixed: The keys that the request fixes.
    """
    how = fixed.values.get("multimodal")
    if not forms.statistics.media or ENCODER_POOL in fixed.values:
        return
    chooses_towers = not (isinstance(how, dict) and "encoder_parallel" in how)
    for candidate in found:
        plain = not candidate.split and not candidate.drafts and not candidate.encoders[0]
        if not plain or (candidate.max_num_seqs, candidate.max_num_batched_tokens) != own_limits:
            continue
        if forms.discard(candidate) is not None or forms.encoding_share(candidate) < LEAST_SHARE:
            continue
        if chooses_towers and candidate.layout.tensor_parallel > 1 and not candidate.whole_towers:
            yield candidate.with_whole_towers()
        if (best := best_pool(candidate, forms)) is not None:
            yield best


def best_pool(candidate: Candidate, forms: ClosedForms) -> Candidate | None:
    """Return the candidate with the encoder pool of the highest estimated rate on the same hardware.

    Returns:
        None where the engine has no server that only encodes, or the hardware holds one replica and no encoder.
    """
    total, each = candidate.hardware.n_accelerators, candidate.layout.accelerators
    unit = candidate.hardware.accelerator
    server = forms.deployments.names.engine.encoder_server
    if server is None or total <= each or unit.kind != "gpu" or unit.is_slice:
        return None
    first = candidate.with_encoders(1)
    if forms.discard(first) is not None:
        return None
    model = forms.queueing(first)
    assert isinstance(model, EncoderPoolQueueing)
    of_each = model.language.saturation_per_s / first.replicas
    counts = {n: (total - n) // each for n in range(1, total - each + 1)}
    best = max(counts, key=lambda n: (min(n / model.encode_s, min(counts[n], candidate.replicas) * of_each), -n))
    return candidate.with_encoders(best)
