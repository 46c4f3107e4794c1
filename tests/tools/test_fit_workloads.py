"""The shipped workload tables are what a fresh fit of the public traces gives, and reproduce the traces' means."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fit_workloads import FITTED, FITTED_ELSEWHERE, FittedWorkload, fit, main, read_lengths

from catalogs.errors import InputError
from catalogs.io.yaml_files import DATA, read_yaml
from catalogs.workloads.fit import fit_outputs
from catalogs.workloads.sessions.texts import TextTree
from catalogs.workloads.traces import Trace, read_trace
from catalogs.workloads.workload import load_workload

each_fitted = pytest.mark.parametrize("fitted", FITTED, ids=[f.name for f in FITTED])

#: Those of traces without sessions, whose lengths are drawn from the tables themselves.
WITH_LENGTHS = [fitted for fitted in FITTED if fitted.name != "agentic-coding"]

each_with_lengths = pytest.mark.parametrize("fitted", WITH_LENGTHS, ids=[f.name for f in WITH_LENGTHS])


@each_fitted
def test_shipped_tables_equal_a_fresh_fit(fitted: FittedWorkload, public_data: Path) -> None:
    fresh = fit(fitted, public_data / "traces")
    shipped = read_yaml(DATA / "workloads" / f"{fitted.name}.yaml")
    assert shipped == fresh


@each_with_lengths
def test_drawn_lengths_match_the_trace(fitted: FittedWorkload, public_data: Path) -> None:
    trace = read_trace(public_data / "traces" / fitted.file)
    drawn = load_workload(fitted.name).materialise(1, 100_000)
    for ours, theirs in ((drawn.input_tokens, trace.input_tokens), (drawn.output_tokens, trace.output_tokens)):
        assert ours.mean() == pytest.approx(theirs.mean(), rel=0.03)
        assert np.percentile(ours, 50) == pytest.approx(np.percentile(theirs, 50), rel=0.05, abs=1)
        assert np.percentile(ours, 99) == pytest.approx(np.percentile(theirs, 99), rel=0.1)
    assert rank_correlation(drawn.input_tokens, drawn.output_tokens) == pytest.approx(
        rank_correlation(trace.input_tokens, trace.output_tokens), abs=0.06
    )
    if fitted.own_arrivals:
        assert trace.arrival_s is not None
        natural = (len(trace.arrival_s) - 1) / (trace.arrival_s[-1] - trace.arrival_s[0])
        assert load_workload(fitted.name).requests_per_s == pytest.approx(natural, rel=1e-3)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(x, kind="stable")) for x in (a, b)]
    return float(np.corrcoef(ranks)[0, 1])


def test_fit_splits_outputs_by_input_length() -> None:
    inputs = np.array([4, 1, 3, 2])
    table = fit_outputs(Trace(None, inputs, inputs * 10, None, 16, "plain"), 2)["quantiles_by_input"]
    assert [(row[0], row[-1]) for row in table["tokens"]] == [(10, 20), (30, 40)]


def test_the_command_wants_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/no/such/folder"]) == 2
    assert "usage" in capsys.readouterr().err


def test_pairs_of_lengths_keep_their_joint_distribution(tmp_path: Path) -> None:
    """A planted file in which long prompts have short answers, and one request that is too long."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(1, 1000, 5000)
    outputs = np.maximum(1, 1000 - inputs + rng.integers(-50, 50, 5000))
    (tmp_path / "pairs.pkl").write_bytes(pickle.dumps([*np.stack([inputs, outputs], axis=1).tolist(), [9000, 1]]))
    planted = replace(FITTED_ELSEWHERE[0], file="pairs.pkl", most_tokens=4000)
    trace = read_lengths(tmp_path / "pairs.pkl", 4000)
    assert len(trace.input_tokens) == 5000
    drawn = load_workload(str(fit(planted, tmp_path) | {"source": "planted"})).materialise(1, 20_000)
    assert drawn.input_tokens.mean() == pytest.approx(inputs.mean(), rel=0.03)
    assert drawn.output_tokens.mean() == pytest.approx(outputs.mean(), rel=0.03)
    assert rank_correlation(drawn.input_tokens, drawn.output_tokens) < -0.9


def test_a_file_of_lengths_runs_no_code(tmp_path: Path) -> None:
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps(Path("x")))
    with pytest.raises(InputError, match="pairs of numbers only"):
        read_lengths(tmp_path / "bad.pkl", None)


def test_drawn_sessions_of_agents_are_like_the_recorded_ones(public_data: Path) -> None:
    recorded = read_trace(public_data / "traces" / "weka").recorded
    assert recorded is not None
    theirs, drawn = recorded.sessions, load_workload("agentic-coding").materialise(1, 30_000)
    # Published over all 710 sessions: a median prompt of 104k tokens, 96.3 % of it seen before in the session.
    assert np.median(drawn.input_tokens) == pytest.approx(104_000, rel=0.1)
    texts = drawn.block_hashes
    assert isinstance(texts, TextTree)
    seen = texts.kept_tokens[texts.text].sum() / drawn.input_tokens.sum()
    assert seen == pytest.approx(0.963, abs=0.015)
    assert np.median(drawn.output_tokens) == pytest.approx(np.median(theirs.outputs), rel=0.05)
    assert drawn.graph is not None
    followers = np.unique(drawn.graph.waits[:, 0])
    gaps = theirs.gap_s[recorded.previous >= 0]
    for share in (50, 90):
        assert np.percentile(drawn.graph.gap_s[followers], share) == pytest.approx(np.percentile(gaps, share), rel=0.1)
