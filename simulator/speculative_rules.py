"""From a deployment's speculation to the rules its replicas run by."""

from __future__ import annotations

from catalogs.deployment import Resolved
from simulator.acceptance import SpeculationRules


def speculation_rules(resolved: Resolved, seed: int) -> SpeculationRules | None:
    """None without speculative decoding."""
    asked = resolved.speculation
    if asked is None:
        return None
    return SpeculationRules(
        queries=asked.queries,
        rates=asked.rates,
        lookahead_tokens=asked.lookahead_tokens,
        budget_tokens=asked.budget_tokens,
        recomputes_block=asked.recomputes_block,
        seed=seed,
    )
