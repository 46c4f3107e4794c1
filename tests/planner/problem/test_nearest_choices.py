"""The nearest valid choice of an error is one that a user may have meant, and it is valid."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs.errors import InputError
from planner.problem.scenario import request_of_keys

REQUEST: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100x1", "slo": ["ttft.p99=2s"]}


@pytest.mark.parametrize(
    ("keys", "nearest"),
    [
        ({"confidence": 1.5}, "0.98"),
        ({"confidence": 2.0}, "0.98"),
        ({"confidence": 90.0}, "0.9"),
        ({"confidence": 99.0}, "0.98"),
        ({"confidence": 0.2}, "0.5"),
        ({"confidence": -1.0}, "0.5"),
        ({"tariff.usd_per_hour": 0.0}, "0.01"),
        ({"precisions": ["fp3"]}, "fp4"),
        ({"precisions": ["fp6"]}, "fp8"),
        ({"precisions": ["FP8"]}, "fp8"),
        ({"precisions": ["bf8"]}, "bf16"),
        ({"engine": "tgi"}, "vllm"),
        ({"rate": 20.0, "users": 10}, "--users 10 or --rate 20"),
    ],
)
def test_the_nearest_choice(keys: dict[str, Any], nearest: str) -> None:
    with pytest.raises(InputError) as found:
        request_of_keys(REQUEST | keys)
    assert found.value.nearest == nearest


def test_what_is_known_of_an_engine_is_said() -> None:
    with pytest.raises(InputError, match=r"its scheduler is not modelled.*start command are vllm, sglang"):
        request_of_keys(REQUEST | {"engine": "tgi"})
