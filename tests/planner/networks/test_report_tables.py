"""The tables and words of a network: the capacity where one was searched, and amounts of one list in one unit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from catalogs.ui.words import dollars
from planner.networks.report.tables import hardware, load
from planner.networks.screen import per_units


@pytest.mark.parametrize(
    ("capacity", "users", "limit", "words"),
    [
        (None, None, None, None),
        (12.0, None, "beyond it e2e.p99 is missed", "12 jobs/s"),
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
        energy=SimpleNamespace(w_mean=100.0, unused_w=0.0),
    )
    rows = dict(load(cast(Any, plan)).rows)
    assert rows.get("Capacity") == words
    assert ("Limit of the capacity" in rows) == (limit is not None)
    assert not {"none", "unknown"} & set(rows.values())


def test_amounts_of_one_list_are_of_as_many_units() -> None:
    """One of 0.00001 dollars alone would be a cent for 1,000 images, next to another of 2 dollars for 1,000,000."""
    assert per_units(1e-5, "image", dollars) == "$0.01 per 1,000 images"
    assert per_units(1e-5, "image", dollars, like=2e-6) == "$10.00 per 1,000,000 images"
    rows = [
        SimpleNamespace(hardware=name, words=name, why=None, state="holds", usd_per_hour=1.0, usd_per_unit=usd)
        for name, usd in (("cheap", 2e-6), ("dear", 1e-5))
    ]
    answer = SimpleNamespace(hardware=rows, best=rows[0], job=SimpleNamespace(unit="image"))
    assert [row[3] for row in hardware(cast(Any, answer)).rows] == [
        "$2.00 per 1,000,000 images",
        "$10.00 per 1,000,000 images",
    ]
