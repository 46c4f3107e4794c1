"""The nearest valid choice of an error is one that a user may have meant, and it is valid."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs.errors import InputError
from planner.problem.overrides import parse_keys
from planner.problem.scenario import parse_plan_settings, request_of_keys

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
        ({"agents": 10, "survive": 1}, "--agents without --survive"),
        ({"agents": 10, "rate": 2.0, "survive": 1}, "--agents without --survive"),
        ({"agents": 10, "users": 2}, "--agents without --users"),
        ({"confidence": "90%"}, "0.9"),
        ({"input_tokens": "fixed:100"}, "100"),
        ({"over_time": "maybe"}, "true or false"),
    ],
)
def test_the_nearest_choice(keys: dict[str, Any], nearest: str) -> None:
    with pytest.raises(InputError) as found:
        request_of_keys(REQUEST | keys)
    assert found.value.nearest == nearest


def test_what_is_known_of_an_engine_is_said() -> None:
    with pytest.raises(InputError, match=r"its scheduler is not modelled.*start command are vllm, sglang"):
        request_of_keys(REQUEST | {"engine": "tgi"})


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("usd_per_hour", "tariff.usd_per_hour"),
        ("tariff:usd_per_hour", "tariff.usd_per_hour"),
        ("tarif.cloud", "tariff.cloud"),
        ("tarif", "tariff"),
        ("cloud", "tariff.cloud"),
        ("trials", "search.trials"),
        ("tp", "tensor_parallel"),
        ("fixed:kv_dtype", "kv_dtype"),
        ("foo", None),
        ("pol", None),
    ],
)
def test_a_setting_is_answered_with_a_key_that_is_near(key: str, nearest: str | None) -> None:
    with pytest.raises(InputError) as found:
        parse_plan_settings([f"{key}=1"])
    assert found.value.nearest == nearest
    assert bool(found.value.hint) == (nearest is None)


@pytest.mark.parametrize(
    ("key", "nearest", "hint"),
    [
        ("foo", None, "docs/engines.md"),
        ("tariff.cloud", None, "`plan` makes a new plan"),
        ("tp", "tensor_parallel", ""),
        ("pool", "pools", ""),
    ],
)
def test_a_change_is_answered_with_a_key_that_is_near(key: str, nearest: str | None, hint: str) -> None:
    with pytest.raises(InputError) as found:
        parse_keys([f"{key}=1"])
    assert found.value.nearest == nearest
    assert hint in (found.value.hint or "")


def test_a_price_is_named_by_its_key_and_its_option() -> None:
    with pytest.raises(InputError, match=r"tariff\.usd_per_hour \(--price\) must be at most"):
        request_of_keys(REQUEST | {"tariff.usd_per_hour": 1e300})
