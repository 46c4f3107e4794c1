"""The question of a front: its axes, the keys that it takes, and the request that is simulated for them."""

from __future__ import annotations

import pytest

from catalogs.errors import InputError
from planner.problem.front import NO_LIMIT_S, front_request, parse_axes
from planner.problem.request_keys import FRONT_KEYS, request_keys


@pytest.mark.parametrize("text", ["cost", "cost,cost", "cost,energy", "cost,ttft", "cost,ttft.max", "price,ttft.p99"])
def test_axes_that_make_no_front_are_one_line(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_axes(text)
    assert "\n" not in str(error.value)


def test_axes_have_units() -> None:
    assert [(a.name, a.unit, a.is_known) for a in parse_axes("cost, TTFT.p99,energy")] == [
        ("cost", "USD", True),
        ("ttft.p99", "s", False),
        ("energy", "J", False),
    ]


def test_an_axis_takes_a_condition() -> None:
    cost, axis = parse_axes("cost, e2e[in<1k,out<256].p99")
    assert (cost.name, axis.name) == ("cost", "e2e[in<1k,out<256].p99")
    assert axis.words == (
        "end-to-end latency of requests with fewer than 1,000 input tokens and fewer than 256 output tokens, p99"
    )
    with pytest.raises(InputError, match="axis is"):
        parse_axes("cost,lunch[in<1k].p99")
    with pytest.raises(InputError, match="whole requests"):
        parse_axes("cost,itl[in<1k].p99")


def test_a_front_takes_keys_of_a_plan_only() -> None:
    assert set(FRONT_KEYS) <= set(request_keys())


def test_latencies_on_axes_are_observed_without_a_limit() -> None:
    keys = {"model": "llama3.2-1b", "hardware": "l40s", "slo": "ttft.p90=2s"}
    request, limits = front_request(keys, parse_axes("energy,ttft.p90,tpot.mean"))
    assert [slo.name for slo in limits] == ["ttft.p90"]
    assert [(slo.name, slo.limit_s) for slo in request.slos] == [("ttft.p90", 2.0), ("tpot.mean", NO_LIMIT_S)]
    assert request.objective == "energy"


def test_a_key_that_a_front_does_not_take_is_named() -> None:
    with pytest.raises(InputError, match="users"):
        front_request({"model": "llama3.2-1b", "users": 5}, parse_axes("cost,ttft.p90"))


@pytest.mark.parametrize(
    "texts", [("cost,e2e[in<1k,out<256.p99",), ("cost", "e2e[in<1k"), ("cost,e2e[in<1k.p99,tpot.mean",)]
)
def test_an_unclosed_bracket_is_named_and_not_split_at_its_comma(texts: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="] is missing") as caught:
        parse_axes(*texts)
    assert parse_axes(str(caught.value.nearest))


def test_axes_as_a_list_are_those_of_one_text() -> None:
    assert parse_axes("cost", "e2e[in<1k,out<256].p99") == parse_axes("cost,e2e[in<1k,out<256].p99")
