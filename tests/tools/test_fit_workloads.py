"""The shipped workload tables are what a fresh fit of the public traces gives, and reproduce the traces' means."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fit_workloads import FITTED, FITTED_ELSEWHERE, FittedWorkload, fit, fit_outputs, main, read_lengths

from catalogs.errors import InputError
from catalogs.io.yaml_files import DATA, read_yaml
from catalogs.workloads.traces import Trace, read_trace
from catalogs.workloads.workload import load_workload

each_fitted = pytest.mark.parametrize("fitted", FITTED, ids=[f.name for f in FITTED])


@each_fitted
def test_shipped_tables_equal_a_fresh_fit(fitted: FittedWorkload, public_data: Path) -> None:
    fresh = fit(fitted, public_data / "traces")
    shipped = read_yaml(DATA / "workloads" / f"{fitted.name}.yaml")
    assert shipped == fresh


@each_fitted
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
