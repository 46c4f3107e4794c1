"""Which changes a new command has: those with a gain, those that others need, and no further ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from planner.improve.changes import Change
from planner.improve.improver import ChangesInTurn

#: Keys as small deployments have them: a change sets a key to 1.
CHANGES = [Change(what, {what: None}, {what: 1}) for what in ("max_num_seqs", "max_num_batched_tokens", "block_size")]


class Costs:
    """An improver of deployments whose costs are known."""

    request = SimpleNamespace(given=True, objective="cost")

    def __init__(self, costs: Mapping[frozenset[str], float]) -> None:
        self.costs = costs

    def entry(self, keys: Mapping[str, Any]) -> Any:
        made = frozenset(key for key in keys if key != "model")
        plan, capacity_per_s = SimpleNamespace(energy=None), 5.0 + len(made)
        return SimpleNamespace(cost=self.costs.get(made, 100.0), plan=plan, capacity_requests_per_s=capacity_per_s)

    def better(self, a: Any, b: Any) -> bool:
        return bool(a.cost < 0.98 * b.cost)

    def meets(self, entry: Any) -> bool:
        return bool(entry.cost < 500)

    def report(self, what: str) -> None:
        """Nothing is shown."""


SEQS, TOKENS, BLOCKS = (change.what for change in CHANGES)


@pytest.mark.parametrize(
    ("costs", "made"),
    [
        ({}, []),
        ({(SEQS,): 90.0, (SEQS, TOKENS): 90.0, (SEQS, BLOCKS): 89.5, (SEQS, TOKENS, BLOCKS): 89.5}, [SEQS]),
        ({(SEQS, TOKENS): 50.0, (SEQS, TOKENS, BLOCKS): 50.0}, [SEQS, TOKENS]),  # neither alone, and not the third
        ({(SEQS,): 90.0, (SEQS, TOKENS): 50.0, (TOKENS,): 50.0, (TOKENS, SEQS, BLOCKS): 50.0}, [TOKENS]),
    ],
)
def test_a_change_is_made_if_it_brings_something_or_others_need_it(
    costs: dict[tuple[str, ...], float], made: list[str]
) -> None:
    improver: Any = Costs({frozenset(key): value for key, value in costs.items()})
    base = {"model": "llama3.1-8b"}
    turns = ChangesInTurn(improver, base, improver.entry(base), CHANGES)
    found = turns.made()
    assert [change.what for change in found] == made
    for change in CHANGES:
        alone = improver.entry(turns.keys([change]))
        why = turns.why(change, found, alone)
        if change not in found:
            assert why.startswith("left out: it brings no more than 2 %")
            assert "alone it serves 6 requests/s, not 5, but the objective is cost" in why
        elif improver.better(alone, turns.today):
            assert why == ""
        else:
            assert "no gain alone, but needed with" in why
            assert "the deployment is worse by more than 2 %" in why
