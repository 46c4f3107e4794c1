"""Copies of experts divide by the ranks, and need an exchange that sends tokens to their experts."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError

KEYS: dict[str, Any] = {
    "model": "deepseek-v3",
    "hardware": "9*h100x8",
    "engine": "sglang",
    "data_parallel": 72,
    "expert_parallel": True,
    "all2all_backend": "deepep_auto",
}


def test_experts_and_copies_divide_by_the_ranks() -> None:
    found = resolve(Deployment(**KEYS, redundant_experts=32))
    assert found.layout.redundant_experts == 32
    assert found.layout.words == "TP1 x DP72 + EP with 32 redundant experts"


@pytest.mark.parametrize(("copies", "nearest"), [(1, 32), (31, 32), (40, 32), (67, 32), (69, 104), (104 + 36, 176)])
def test_the_nearest_number_of_copies_that_divides_is_named(copies: int, nearest: int) -> None:
    with pytest.raises(InputError, match="256 experts and their copies must divide by the 72 ranks") as wrong:
        resolve(Deployment(**KEYS, redundant_experts=copies))
    assert wrong.value.nearest == f"redundant_experts: {nearest}"


def test_tokens_must_be_sent_to_their_experts() -> None:
    gathers = KEYS | {"all2all_backend": "allgather_reducescatter"}
    with pytest.raises(InputError, match="send tokens to their experts"):
        resolve(Deployment(**gathers, redundant_experts=32))


def test_models_without_experts_have_no_copies() -> None:
    with pytest.raises(InputError, match=r"copies of experts; .* has none") as wrong:
        resolve(Deployment(model="llama3.1-8b", hardware="h100x8", redundant_experts=8))
    assert wrong.value.nearest == "redundant_experts: 0"


def test_engines_without_a_balancer_refuse_copies() -> None:
    with pytest.raises(InputError, match="trtllm"):
        resolve(Deployment(**KEYS | {"engine": "trtllm"}, redundant_experts=32))
