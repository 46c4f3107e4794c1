"""The lengths that every answer states, the names of the catalog with theirs, and constant lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.ui.shared_options import DEFAULT_WORKLOAD, WORKLOAD_NAMES
from catalogs.workloads.length_statistics import LengthStatistics
from catalogs.workloads.workload import Workload, list_workloads, load_workload, with_constant_lengths


def test_words_by_hand() -> None:
    several, one = np.array([100, 200, 3000]), np.array([1500, 1500, 1500])
    assert LengthStatistics.of(several, several).words == "mean 1,100 in, 1,100 out; p95 2,720 in, 2,720 out"
    assert LengthStatistics.of(one, one).words == "constant: 1,500 in, 1,500 out"
    assert LengthStatistics.of(one, several).words == "constant 1,500 in; mean 1,100, p95 2,720 out"
    assert LengthStatistics.of(several, one).block()["output_tokens"] == dict.fromkeys(
        ("mean", "p50", "p95", "p99", "max"), 1500.0
    )


def constant_lengths(input_tokens: int, output_tokens: int) -> LengthStatistics:
    return LengthStatistics.of(np.full(3, input_tokens), np.full(3, output_tokens))


def test_the_length_that_fits_by_hand() -> None:
    several = np.array([100, 200, 3000])
    assert constant_lengths(5000, 200).within(4096) == {"input_tokens": 3896}
    assert constant_lengths(400, 5000).within(4096) == {"output_tokens": 3696}
    assert constant_lengths(5000, 5000).within(4096) == {}
    assert constant_lengths(5000, 200).within_words(4096) == "prompts of at most 3,896 fit with outputs of 200"
    assert constant_lengths(400, 5000).within_words(4096) == "outputs of at most 3,696 fit with prompts of 400"
    assert LengthStatistics.of(several, several).within(2048) == {}
    assert LengthStatistics.of(several, several).within_words(2048) == "at most 2,048 fit, prompt and output together"


@given(inputs=st.integers(1, 10**5), outputs=st.integers(1, 10**5), most=st.integers(2, 10**5))
def test_the_length_that_fits_is_the_longest_one(inputs: int, outputs: int, most: int) -> None:
    found = constant_lengths(inputs, outputs).within(most)
    lengths = {"input_tokens": inputs, "output_tokens": outputs} | found
    assert not found or sum(lengths.values()) == most
    assert min(lengths.values()) >= 1
    assert bool(found) == (min(inputs, outputs) < most)


@given(tokens=st.lists(st.integers(1, 10**6), min_size=1, max_size=50))
def test_statistics_are_ordered_and_bounded(tokens: list[int]) -> None:
    found = LengthStatistics.of(np.array(tokens), np.array(tokens)).input_tokens
    assert min(tokens) <= found.p50 <= found.p95 <= found.p99 <= found.max == max(tokens)
    assert found.constant == (len(set(tokens)) == 1)


@pytest.mark.parametrize("name", list_workloads())
def test_lengths_are_those_of_the_drawn_requests(name: str) -> None:
    workload = load_workload(name)
    drawn = workload.materialise(workload.content.seed, 3000)
    inputs, outputs = workload.content.draw_lengths(workload.content.seed, 3000)
    assert np.array_equal(inputs, drawn.input_tokens)
    assert np.array_equal(outputs, drawn.output_tokens)


def test_the_help_names_every_workload_with_its_lengths() -> None:
    means = [(name, load_workload(name).lengths()) for name in list_workloads()]
    assert (
        ", ".join(f"{name} {found.input_tokens.mean:.0f}/{found.output_tokens.mean:.0f}" for name, found in means)
        == WORKLOAD_NAMES
    )


def test_the_default_is_whole_prompts_and_chat_is_its_second_name() -> None:
    default, chat = load_workload(DEFAULT_WORKLOAD), load_workload("chat")
    assert 500 < default.lengths().input_tokens.mean < 5000
    assert (chat.name, chat.content, chat.source) == ("chat", default.content, default.source)
    (notice,) = chat.notices
    assert "azure-conv" in notice
    turns = load_workload("lmsys-turns").lengths()
    assert f"mean {turns.input_tokens.mean:,.0f} in, {turns.output_tokens.mean:,.0f} out" in notice


@pytest.mark.parametrize("name", ["azure-conv", "lmsys-turns", "sharegpt"])
def test_constant_lengths_keep_the_arrivals(name: str) -> None:
    plain = load_workload(name)
    fixed = with_constant_lengths(plain, 1000, 7)
    drawn, own = fixed.materialise(3, 50, 2.0), plain.materialise(3, 50, 2.0)
    assert np.array_equal(drawn.arrival_s, own.arrival_s)
    assert set(drawn.input_tokens.tolist()) == {1000}
    assert set(drawn.output_tokens.tolist()) == {7}
    assert "exactly 1,000 input tokens and 7 output tokens" in fixed.notices[-1]
    assert with_constant_lengths(plain, None, None) is plain
    one = with_constant_lengths(plain, None, 9).materialise(3, 50, 2.0)
    assert np.array_equal(one.input_tokens, own.input_tokens)
    assert set(one.output_tokens.tolist()) == {9}


def test_constant_lengths_of_a_trace(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,5,6\n2,7,8\n")
    drawn = with_constant_lengths(load_workload(str(tmp_path / "t.csv")), 100, None).materialise()
    assert (drawn.input_tokens.tolist(), drawn.output_tokens.tolist()) == ([100, 100], [6, 8])


def conversations(tmp_path) -> Workload:  # type: ignore[no-untyped-def]
    (tmp_path / "w.yaml").write_text("{arrivals: {poisson: {}}, input_tokens: 5, output_tokens: 6, turns: 3}")
    return load_workload(str(tmp_path / "w.yaml"))


def test_lengths_that_cannot_be_replaced_are_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="conversations"):
        with_constant_lengths(conversations(tmp_path), 10, None)
    with pytest.raises(InputError, match="input_tokens must be a whole number"):
        with_constant_lengths(load_workload("azure-conv"), 0, None)
