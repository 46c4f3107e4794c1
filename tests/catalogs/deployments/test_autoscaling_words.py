"""An autoscaler in words: its limits, and its target in the unit of its metric."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs.deployments.autoscaling import Autoscaling, scaling_words


def words(**keys: Any) -> str:
    return scaling_words(Autoscaling(**{"max_replicas": 4} | keys), "82 s")


@pytest.mark.parametrize(
    ("metric", "target", "said"),
    [
        ("outstanding", 12.34, "12.3 requests unfinished per replica"),
        ("queue", 1.0, "1 request waiting per replica"),
        ("kv", 0.8, "80 % of the KV cache in use"),
        ("busy", 0.6, "replicas busy 60 % of the time"),
        ("ttft", 0.5, "the time to first token of 90 % of requests at 500 ms"),
    ],
)
def test_a_target_has_the_unit_of_its_metric(metric: str, target: float, said: str) -> None:
    assert words(metric=metric, target=target) == (
        f"1 to 4 replicas, to keep {said}; a new replica serves 82 s after its order"
    )


@pytest.mark.parametrize(("most", "said"), [(1, "always 1 replica: "), (3, "always 3 replicas: ")])
def test_equal_limits_are_one_number(most: int, said: str) -> None:
    found = words(metric="outstanding", target=2.0, min_replicas=most, max_replicas=most)
    assert found.startswith(said)
    assert " to " not in found
