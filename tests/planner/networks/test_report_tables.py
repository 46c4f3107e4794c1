"""The table of the load on the page of a network: it has the capacity where one was searched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.networks.report.tables import load


@pytest.mark.parametrize(("capacity", "limit"), [(None, None), (12.0, "e2e.p99 near its limit")])
def test_a_plan_for_users_has_no_capacity(capacity: float | None, limit: str | None) -> None:
    plan = SimpleNamespace(
        metrics=SimpleNamespace(jobs_per_batch=1.0, busy_fraction=0.5),
        capacity_requests_per_s=capacity,
        limited_by=limit,
        requests_per_s=10.0,
        energy=SimpleNamespace(w_mean=100.0),
    )
    rows = dict(load(cast(Any, plan)).rows)
    assert ("Capacity" in rows) == (capacity is not None)
    assert ("What limits it" in rows) == (limit is not None)
    assert not {"none", "unknown"} & set(rows.values())
