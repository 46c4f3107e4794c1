"""The search for the cheapest deployment that meets the objectives under the load of agents.

The placements of a price are simulated briefly, with device memory alone and with host memory. The best of them is then
simulated for longer with every KV tier and router, and with other token budgets of a step. The search ends at the
lowest price at which the objectives are met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from catalogs.workloads.workload import Workload
from planner.agents.choices import Choice, PricedChoices, priced_choices
from planner.agents.rating import Judge, Rated

#: Requests of each agent in a run that compares placements. A judgement of cost: half of `TURNS`.
QUICK_TURNS: Final = 10

#: A placement whose short run misses the objectives by at most this factor is simulated with every variant. A
#: judgement: a variant may mend that much.
PROMISING: Final = 1.5

#: If a short run of the most promising placement of a price misses by more than this factor, the next price is tried. A
#: judgement: no variant mends that much.
HOPELESS: Final = 5.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search.

    Attributes:
        rated: The variants of the best placement, the best first; empty if no placement fits.
        n_placements: Legal placements that fit.
        n_simulated: Placements that were simulated.
    """

    rated: list[Rated]
    n_placements: int
    n_simulated: int

    @property
    def meets(self) -> bool:
        """Return whether the best variant meets the objectives in its run."""
        return bool(self.rated) and self.rated[0].meets


def find(judge: Judge, workload: Workload, agents: int, progress: Progress, whole: bool = False) -> Found:
    """Return the cheapest placement that meets the objectives with its variants, or the one that comes closest.

    Args:
        judge: Rates the choices.
        workload: The sessions.
        agents: Agents at work.
        progress: Called with what is simulated.
        whole: Whether only placements on all of the hardware are simulated, with host memory, and the first variants
            that meet the objectives are taken.

    Raises:
        InputError: A name of the request is unknown.
    """
    groups = priced_choices(judge.request, workload, agents)[-1 if whole else None :]
    tried: list[Rated] = []
    found: list[list[Rated]] = []
    for group in groups:
        progress(f"{len(group.choices)} of {group.n_all} placements at {group.price}")
        quick = _quick(judge, group, agents, group is groups[-1], whole)
        tried += quick
        best = min(quick, default=None)
        if best is None or (best.ratio > PROMISING and (group is not groups[-1] or best is not min(tried))):
            continue
        found.append(_variants(judge, best.choice, agents, whole))
        if found[-1][0].meets:
            break
    if tried and not found:
        found.append(_variants(judge, min(tried).choice, agents, whole))
    rated = min(found, key=lambda each: each[0], default=[])
    return Found(rated, sum(group.n_all for group in groups), len({each.choice.candidate for each in tried}))


def _quick(judge: Judge, group: PricedChoices, agents: int, is_last: bool, with_host: bool) -> list[Rated]:
    """Return the placements of a price, rated by short runs with host memory and, unless `with_host`, without.

    Where the most promising one misses the objectives by more than the factor HOPELESS, the others are not simulated,
    except at the last price. Separate prefill replicas find the outputs of decode replicas in a shared pool only.
    """
    if not is_last and group.choices:
        first = judge.rate([(group.choices[0].tiers()[0], 0)], agents, QUICK_TURNS)
        if first[0].ratio > HOPELESS:
            return first
    choices = []
    for choice in group.choices:
        tiered = choice.tiers()
        depth = min(2 if choice.candidate.split else 1, len(tiered) - 1)
        choices += [(tiered[n], n) for n in sorted({depth} if with_host else {0, depth})]
    return judge.rate(choices, agents, QUICK_TURNS)


def _variants(judge: Judge, choice: Choice, agents: int, first: bool) -> list[Rated]:
    """Return a placement with every tier, and the best of them with other routers and token budgets, the best first.

    Where device memory drops contexts, so that prompts are computed again, retention of their first tokens is tried.
    A simpler deployment comes first where another one is not better by a hundredth. Private and shared tiers differ
    most where requests are routed in turn, so the two best tiers are. With `first`, the tiers alone are returned if one
    of them meets the objectives.
    """
    found = judge.rate([(tiered, depth) for depth, tiered in enumerate(choice.tiers())], agents)
    if first and min(found).meets:
        return sorted(found)
    plain = next(rated for rated in found if not rated.depth)
    if plain.seen.hits.cached_tokens < plain.seen.hits.seen_tokens:
        found += judge.rate([(other, 1) for other in plain.choice.retentions(agents)], agents)
    routed = [(other, rated.depth) for rated in sorted(found)[:2] for other in rated.choice.routers()[1:]]
    found += judge.rate(routed, agents)
    best = min(found)
    budgets = [(other, best.depth + 1) for other in best.choice.budgets(judge.request)]
    return sorted([*found, *judge.rate(budgets, agents)])
