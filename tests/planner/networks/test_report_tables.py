"""The table of the load on the page of a network: it has the capacity where one was searched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.networks.report.tables import load


@pytest.mark.parametrize(
    ("capacity", "users", "limit", "words"),
    [
        (None, None, None, None),
        (12.0, None, "e2e.p99 near its limit", "12 jobs/s"),
        (None, 1, None, "1 user"),
        (None, 340, None, "340 users"),
    ],
)
def test_the_capacity_is_a_rate_or_a_number_of_users(
    capacity: float | None, users: int | None, limit: str | None, words: str | None
) -> None:
    plan = SimpleNamespace(
        metrics=SimpleNamespace(jobs_per_batch=1.0, busy_fraction=0.5),
        capacity_requests_per_s=capacity,
        capacity_users=users,
        limited_by=limit,
        requests_per_s=10.0,
        energy=SimpleNamespace(w_mean=100.0),
    )
    rows = dict(load(cast(Any, plan)).rows)
    assert rows.get("Capacity") == words
    assert ("What limits it" in rows) == (limit is not None)
    assert not {"none", "unknown"} & set(rows.values())
