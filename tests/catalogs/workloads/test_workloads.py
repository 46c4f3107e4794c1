"""Laws of synthetic workloads: seeds, rates, bounds, moments, contents."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.workloads.files import parse_workload_file
from catalogs.workloads.lengths import parse_lengths
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.workload import Workload, list_workloads, load_workload

BASE = {"arrivals": {"poisson": {"requests_per_s": 8}}, "input_tokens": 100, "output_tokens": 10}


def build(**keys: object) -> Workload:
    _, content, notices = parse_workload_file({**BASE, **keys}, Path("."), "test")
    return Workload("test", "test", content, notices)


lengths = st.one_of(
    st.integers(1, 4000).map(lambda k: {"constant": k}),
    st.tuples(st.integers(1, 500), st.integers(0, 500)).map(lambda p: {"uniform": {"low": p[0], "high": p[0] + p[1]}}),
    st.tuples(st.floats(1, 1e4), st.floats(0.05, 4)).map(lambda p: {"lognormal": {"mean": p[0], "cv": p[1]}}),
    st.lists(st.integers(1, 9000), min_size=2, max_size=9).map(
        lambda q: {"quantiles": dict(zip(np.linspace(0, 1, len(q)).tolist(), sorted(q), strict=True))}
    ),
)
open_arrivals = st.one_of(
    st.just({"poisson": {}}), st.floats(0.2, 5).map(lambda cv: {"gamma": {"requests_per_s": 3.0, "cv": cv}})
)
workloads = st.builds(
    lambda a, i, o, p: build(arrivals=a, input_tokens=i, output_tokens=o, **({"shared_prefix": p} if p else {})),
    open_arrivals,
    lengths,
    lengths,
    st.one_of(
        st.none(), st.tuples(st.integers(1, 200), st.integers(1, 5)).map(lambda p: {"tokens": p[0], "groups": p[1]})
    ),
)


def same(a: RequestSet, b: RequestSet) -> bool:
    arrays = ((a.arrival_s, b.arrival_s), (a.input_tokens, b.input_tokens), (a.output_tokens, b.output_tokens))
    return all(np.array_equal(x, y) for x, y in arrays) and a.block_hashes == b.block_hashes


@given(workloads, st.integers(0, 2**40), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_same_seed_same_requests_other_seed_other_arrivals(workload: Workload, seed: int, n: int) -> None:
    first = workload.materialise(seed, n)
    assert same(first, workload.materialise(seed, n))
    assert first.n == n
    assert not np.array_equal(first.arrival_s, workload.materialise(seed + 1, n).arrival_s)


LOAD_GENERATOR = {
    "arrivals": {"closed_loop": 4},
    "input_tokens": {"uniform": {"low": 8, "high": 10}},
    "output_tokens": 5,
}


@pytest.mark.parametrize(
    ("changes", "drawn"),
    [
        ({}, True),
        ({"input_tokens": 100}, True),
        ({"random_prompts": False}, False),
        ({"arrivals": {"poisson": {}}}, False),
        ({"arrivals": {"poisson": {}}, "random_prompts": True}, True),
        ({"arrivals": {"closed_loop": {"concurrency": 4, "think_time_s": 2.0}}}, False),
        ({"input_tokens": {"lognormal": {"mean": 100, "cv": 1.0}}}, False),
        ({"shared_prefix": {"tokens": 4, "groups": 2}}, False),
    ],
)
def test_only_load_generators_send_random_tokens(changes: dict[str, object], drawn: bool) -> None:
    _, content, _ = parse_workload_file({**LOAD_GENERATOR, **changes}, Path(), "here")
    assert isinstance(content, SyntheticWorkload)
    assert content.random_prompts is drawn
    assert content.draw(0, 3, 1.0).random_prompts is drawn


@given(workloads, st.floats(0.01, 1e4), st.floats(0.01, 1e4))
@settings(max_examples=60, deadline=None)
def test_another_rate_stretches_arrivals_and_changes_nothing_else(workload: Workload, r1: float, r2: float) -> None:
    slow, fast = workload.materialise(5, 200, r1), workload.materialise(5, 200, r2)
    np.testing.assert_allclose(fast.arrival_s, slow.arrival_s * (r1 / r2), rtol=1e-13)
    assert np.array_equal(slow.input_tokens, fast.input_tokens)
    assert np.array_equal(slow.output_tokens, fast.output_tokens)
    assert slow.block_hashes == fast.block_hashes


@given(workloads, st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_more_requests_extend_fewer(workload: Workload, n: int) -> None:
    few, many = workload.materialise(3, n), workload.materialise(3, n + 57)
    assert np.array_equal(few.arrival_s, many.arrival_s[:n])
    assert np.array_equal(few.input_tokens, many.input_tokens[:n])
    assert np.array_equal(few.output_tokens, many.output_tokens[:n])


@given(lengths, st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_lengths_are_whole_numbers_in_their_bounds(spec: dict[str, object], seed: int) -> None:
    tokens = build(input_tokens=spec).materialise(seed, 500).input_tokens
    assert tokens.dtype == np.int64
    assert tokens.min() >= 1
    ((kind, keys),) = spec.items()
    if kind == "constant":
        assert set(tokens.tolist()) == {keys}
    elif kind == "uniform":
        assert keys["low"] <= tokens.min() <= tokens.max() <= keys["high"]  # type: ignore[index]
    elif kind == "quantiles":
        values = list(keys.values())  # type: ignore[attr-defined]
        assert values[0] <= tokens.min() <= tokens.max() <= values[-1]


def test_changing_one_distribution_leaves_the_other_streams_alone() -> None:
    a = build(input_tokens={"uniform": {"low": 1, "high": 99}}, output_tokens={"lognormal": {"mean": 50, "cv": 1}})
    b = build(input_tokens={"lognormal": {"mean": 9, "cv": 2}}, output_tokens={"lognormal": {"mean": 50, "cv": 1}})
    assert np.array_equal(a.materialise(1).arrival_s, b.materialise(1).arrival_s)
    assert np.array_equal(a.materialise(1).output_tokens, b.materialise(1).output_tokens)


def test_uniform_includes_both_ends_equally() -> None:
    tokens = build(input_tokens={"uniform": {"low": 3, "high": 6}}).materialise(0, 40_000).input_tokens
    values, counts = np.unique(tokens, return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert np.all(np.abs(counts - 10_000) < 4 * np.sqrt(10_000 * 0.75))


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gap_mean_and_cv_are_those_asked_for(cv: float) -> None:
    arrivals = {"gamma": {"requests_per_s": 4, "cv": cv}}
    gaps = np.diff(build(arrivals=arrivals).materialise(2, 200_001).arrival_s)
    assert gaps.mean() == pytest.approx(0.25, rel=4 * cv / np.sqrt(200_000))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_poisson_counts_have_variance_equal_to_mean() -> None:
    arrival_s = build(arrivals={"poisson": {"requests_per_s": 20}}).materialise(4, 100_000).arrival_s
    counts = np.bincount(arrival_s.astype(int))[:-1]
    assert counts.mean() == pytest.approx(20, rel=4 / np.sqrt(100_000))
    assert counts.var() / counts.mean() == pytest.approx(1, abs=4 * np.sqrt(2 / len(counts)))


def test_lognormal_mean_and_cv() -> None:
    tokens = build(input_tokens={"lognormal": {"mean": 512, "cv": 1.2}}).materialise(0, 200_000).input_tokens
    assert tokens.mean() == pytest.approx(512, rel=4 * 1.2 / np.sqrt(200_000))
    assert tokens.std() / tokens.mean() == pytest.approx(1.2, rel=0.05)


def test_quantile_table_is_interpolated_in_straight_lines() -> None:
    table = {"quantiles": {0: 1, 0.5: 101, 1: 1101}}
    tokens = build(input_tokens=table).materialise(0, 100_000).input_tokens
    np.testing.assert_allclose(np.quantile(tokens, [0.25, 0.5, 0.75]), [51, 101, 601], atol=12)


def test_output_follows_its_input_class() -> None:
    by_input = {"quantiles_by_input": {"probabilities": [0, 1], "tokens": [[1, 5], [1000, 2000]]}}
    drawn = build(input_tokens={"quantiles": {0: 10, 1: 30}}, output_tokens=by_input).materialise(0, 4000)
    short = drawn.input_tokens < 20
    assert drawn.output_tokens[short].max() <= 5
    assert drawn.output_tokens[drawn.input_tokens > 20].min() >= 1000
    assert 0.4 < short.mean() < 0.6


def test_constant_closed_loop_and_all_at_once() -> None:
    assert build(arrivals={"constant": {"requests_per_s": 4}}).materialise(0, 3).arrival_s.tolist() == [0, 0.25, 0.5]
    closed = build(arrivals={"closed_loop": {"concurrency": 7}})
    assert closed.closed_loop
    assert closed.requests_per_s is None
    requests = closed.materialise(0, 5)
    assert (requests.concurrency, requests.arrival_s.tolist()) == (7, [0] * 5)
    burst = build(arrivals="all_at_once")
    assert (burst.closed_loop, burst.materialise(0, 5).arrival_s.tolist()) == (False, [0] * 5)


# --- contents ---------------------------------------------------------------------------------------------------------


def assert_prefix_true(hashes: tuple[tuple[int, ...], ...]) -> None:
    prefix_of: dict[int, tuple[int, ...]] = {}
    for ids in hashes:
        for k, block in enumerate(ids):
            assert prefix_of.setdefault(block, ids[:k]) == ids[:k]


@given(workloads, st.integers(0, 5), st.booleans())
@settings(max_examples=40, deadline=None)
def test_equal_block_ids_have_equal_prefixes(workload: Workload, seed: int, turns: bool) -> None:
    if turns:
        prefix = {"tokens": 40, "groups": 2}
        workload = build(turns={"per_session": {"uniform": {"low": 1, "high": 4}}}, shared_prefix=prefix)
    requests = workload.materialise(seed, 60)
    if requests.block_hashes is None:
        return
    assert_prefix_true(requests.block_hashes)
    known = requests.input_tokens + (requests.output_tokens if turns else 0)
    assert [len(ids) for ids in requests.block_hashes] == (known // 16).tolist()


def test_shared_prefix_shares_its_full_blocks_within_groups_only() -> None:
    requests = build(shared_prefix={"tokens": 40, "groups": 3}).materialise(0, 300)
    assert requests.block_hashes is not None
    heads = {ids[:2] for ids in requests.block_hashes}
    rest = [block for ids in requests.block_hashes for block in ids[2:]]
    assert len(heads) == 3
    assert len(rest) == len(set(rest)) == 300 * (100 // 16 - 2)


def test_a_turn_holds_the_earlier_prompts_and_answers() -> None:
    requests = build(turns=3, input_tokens=100, output_tokens=10, requests=6).materialise()
    assert sorted(requests.input_tokens.tolist()) == [100, 100, 210, 210, 320, 320]
    assert requests.block_hashes is not None
    by_length = {}
    for tokens, ids in zip(requests.input_tokens.tolist(), requests.block_hashes, strict=True):
        by_length.setdefault(ids[0], {})[tokens] = ids
    assert len(by_length) == 2
    for turns in by_length.values():
        assert turns[210][: len(turns[100])] == turns[100]
        assert turns[320][: len(turns[210])] == turns[210]


def test_sessions_arrive_at_the_request_rate_and_think_in_seconds() -> None:
    workload = build(turns={"per_session": 4, "think_time_s": 5})
    for rate in (2.0, 20.0):
        requests = workload.materialise(0, 40_000, rate)
        assert np.all(np.diff(requests.arrival_s) >= 0)
        assert requests.n / requests.arrival_s[-1] == pytest.approx(rate, rel=0.03)
        assert requests.block_hashes is not None
        starts: dict[int, list[float]] = {}
        for at, ids in zip(requests.arrival_s.tolist(), requests.block_hashes, strict=True):
            starts.setdefault(ids[0], []).append(at)
        gaps = np.concatenate([np.diff(times) for times in starts.values()])
        assert gaps.mean() == pytest.approx(5, rel=0.05)


def test_closed_loop_clients_never_start_two_turns_of_a_session_together() -> None:
    requests = build(arrivals={"closed_loop": {"concurrency": 4}}, turns=3).materialise(0, 24)
    assert requests.block_hashes is not None
    sessions = [ids[0] for ids in requests.block_hashes]
    assert all(len(set(sessions[k : k + 4])) == 4 for k in range(0, 24, 4))


# --- files and bad input ----------------------------------------------------------------------------------------------


def test_json_in_a_yaml_file_and_defaults(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(json.dumps({**BASE, "requests": 7, "seed": 3}))
    workload = load_workload(str(tmp_path / "w.yaml"))
    requests = workload.materialise()
    assert (requests.n, requests.seed, requests.name, workload.requests_per_s) == (7, 3, "w", 8)
    assert same(requests, workload.materialise(3))


def test_trace_in_a_workload_file_is_found_beside_it_and_scaled(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,5,6\n2,7,8\n4,9,1\n")
    (tmp_path / "w.yaml").write_text("{trace: t.csv, rate_scale: 2, requests: 2}")
    workload = load_workload(str(tmp_path / "w.yaml"))
    assert workload.requests_per_s == 1.0
    assert workload.materialise().arrival_s.tolist() == [0, 1]
    assert workload.materialise(requests_per_s=0.5).arrival_s.tolist() == [0, 2]


BAD: list[tuple[dict[str, object], str]] = [
    ({"arivals": {}}, "nearest valid choice: arrivals"),
    ({"arrivals": {"poison": {"requests_per_s": 1}}}, "nearest valid choice: poisson"),
    ({"arrivals": {"poisson": {"request_per_s": 1}}}, "nearest valid choice: requests_per_s"),
    ({"arrivals": {"poisson": {"requests_per_s": -1}}}, "greater than or equal to 0.000001: got -1"),
    ({"arrivals": {"poisson": {"requests_per_s": "fast"}}}, "valid number"),
    ({"arrivals": {"poisson": {"requests_per_s": float("nan")}}}, "requests_per_s"),
    ({"arrivals": {"gamma": {"requests_per_s": 1}}}, "cv"),
    ({"arrivals": {"constant": {}}}, "requests_per_s"),
    ({"arrivals": {"closed_loop": {"concurrency": 0}}}, "greater than or equal to 1"),
    ({"arrivals": {"poisson": {}, "gamma": {}}}, "exactly one of poisson"),
    ({"requests": 0}, "requests"),
    ({"requests": 2.5}, "requests"),
    ({"seed": -1}, "seed"),
    ({"input_tokens": 0}, "greater than or equal to 1"),
    ({"input_tokens": {"uniform": {"low": 9, "high": 3}}}, "input_tokens.uniform: low 9 is above high 3"),
    ({"input_tokens": {"uniform": {"low": 0, "high": 3}}}, "low"),
    ({"input_tokens": {"lognormal": {"mean": 10}}}, "cv"),
    ({"input_tokens": {"lognormal": {"mean": 10, "cv": 0}}}, "cv"),
    ({"input_tokens": {"quantiles": {0: 5, 1: 3}}}, "never fall"),
    ({"input_tokens": {"quantiles": {0.1: 5, 1: 7}}}, "probability 0"),
    ({"input_tokens": {"quantiles_by_input": {"probabilities": [0, 1], "tokens": [[1, 2]]}}}, "depend on itself"),
    ({"output_tokens": {"quantiles_by_input": {"probabilities": [0, 1], "tokens": [[1, 2]]}}}, "given as quantiles"),
    ({"output_tokens": None}, "'output_tokens' is missing"),
    ({"trace": "x.csv"}, "remove this key"),
    ({"rate_scale": 2}, "needs a trace"),
    ({"shared_prefix": {"token": 3}}, "nearest valid choice: tokens"),
    ({"turns": {"per_session": 0}}, "greater than or equal to 1"),
    ({"arrivals": "all_at_once", "turns": 2}, "all at once"),
]


@pytest.mark.parametrize(("keys", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_workload_file_is_one_clear_line(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    (tmp_path / "w.yaml").write_text(yaml.safe_dump({**BASE, **keys}))
    with pytest.raises(InputError) as raised:
        load_workload(str(tmp_path / "w.yaml"))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "  \n", "- 1\n- 2\n", "arrivals: {poisson", "just words"])
def test_a_file_that_holds_no_mapping(tmp_path: Path, text: str) -> None:
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(InputError):
        load_workload(str(tmp_path / "w.yaml"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_requests": 0}, "the number of requests must be"),
        ({"n_requests": 1.5}, "the number of requests must be"),
        ({"requests_per_s": 0}, "a rate "),
        ({"requests_per_s": -3.0}, "a rate "),
        ({"requests_per_s": float("nan")}, "a rate "),
        ({"requests_per_s": float("inf")}, "a rate "),
        ({"requests_per_s": "8"}, "a rate "),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_materialise_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build().materialise(**arguments)  # type: ignore[arg-type]


def test_a_closed_loop_refuses_a_rate() -> None:
    with pytest.raises(InputError, match="no arrival rate to set"):
        build(arrivals={"closed_loop": {"concurrency": 2}}).materialise(requests_per_s=3)


@pytest.mark.parametrize(("text", "nearest"), [("azure-cov", "azure-conv"), ("chatt", "chat"), ("no/such.csv", None)])
def test_unknown_name_points_to_the_nearest(text: str, nearest: str | None) -> None:
    with pytest.raises(InputError) as raised:
        load_workload(text)
    assert raised.value.nearest == nearest


# --- the catalog ------------------------------------------------------------------------------------------------------


def test_the_catalog_names_what_the_contract_names() -> None:
    assert {"chat", "azure-conv", "azure-code", "sharegpt", "alpaca", "summarization", "reasoning"} <= set(
        list_workloads()
    )


@pytest.mark.parametrize("name", list_workloads())
def test_every_catalog_workload_has_a_source_and_draws(name: str) -> None:
    workload = load_workload(name.upper())
    assert workload.name == name
    assert len(workload.source) > 20
    assert (workload.requests_per_s is None) == (workload.rate_notice is not None or workload.closed_loop)
    requests = workload.materialise(n_requests=500, requests_per_s=None if workload.closed_loop else 5)
    assert (requests.arrival_s[-1] > 0) != workload.closed_loop
    assert workload.stats()["input_p50_tokens"] <= workload.stats()["input_p99_tokens"]


@pytest.mark.parametrize(("name", "inputs", "outputs"), [("alpaca", 19.31, 58.45), ("sharegpt", 161.31, 337.99)])
def test_published_means_are_met(name: str, inputs: float, outputs: float) -> None:
    requests = load_workload(name).materialise(0, 100_000)
    assert requests.input_tokens.mean() == pytest.approx(inputs, rel=0.03)
    assert requests.output_tokens.mean() == pytest.approx(outputs, rel=0.03)


TALKS = "{arrivals: {poisson: {}}, input_tokens: 50, output_tokens: 20, turns: {per_session: 4, think_time_s: 30}}"


def test_a_workload_is_written_in_braces() -> None:
    found = load_workload(TALKS)
    assert (found.name, found.source) == ("conversations", "the keys of the question")
    assert found.stats()["input_mean_tokens"] == pytest.approx(50 + 70 * 1.5, rel=0.02)
    for text, rule in (("{trace: x.csv}", "names no file"), ("{arrivals", "not valid YAML"), ("{turn: 3}", "turns")):
        with pytest.raises(InputError, match=rule):
            load_workload(text)


@pytest.mark.parametrize("rate", [0.5, 20.0, 1e6])
def test_steady_sessions_have_the_rate_from_the_beginning_to_the_end_of_a_run(rate: float) -> None:
    found = load_workload(TALKS)
    content = found.content
    assert isinstance(content, SyntheticWorkload)
    steady = replace(found, content=replace(content, steady_sessions=True)).materialise(3, 4000, rate)
    counts, _ = np.histogram(steady.arrival_s, bins=10, range=(0, 4000 / rate))
    assert counts.sum() == 4000
    assert np.abs(counts - 400).max() < 4.5 * np.sqrt(400 * 4)  # turns of a session may fall into one tenth
    unsteady = found.materialise(3, 4000, rate)
    assert sorted(unsteady.input_tokens) == sorted(steady.input_tokens)
    span_s = content.turns.span_s if content.turns else 0.0
    assert span_s == pytest.approx(90)
    if rate * span_s > 4000:  # a run shorter than a session has another rate without this
        assert unsteady.arrival_s[-1] > 2 * 4000 / rate


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ("fixed:100", "100"),
        ("constant = 1,000", "1000"),
        (100.5, "100"),
        ("lognorml", "lognormal"),
        ("many", "512"),
        ({"fixed": 100}, "constant"),
        ({"normal": {"mean": 100}}, "lognormal"),
        ({"unifrm": {"low": 1}}, "uniform"),
    ],
)
def test_lengths_in_another_form_are_answered_with_the_usual_one(written: object, nearest: str) -> None:
    with pytest.raises(InputError) as found:
        parse_lengths(written, "input_tokens")
    assert found.value.nearest == nearest
