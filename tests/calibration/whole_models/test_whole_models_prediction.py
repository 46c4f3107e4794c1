"""Laws of predictions of whole models: intervals hold for new groups, the planted law is found, limits are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student_t
from typer.testing import CliRunner

from calibration.cli.main import app
from calibration.profile.machine.energy import DEVICE_MEMORY, Meter
from calibration.report.model_page import page_of_study
from calibration.whole_models import prediction, predictor, table
from calibration.whole_models.intervals import interval_coverage, interval_factor
from calibration.whole_models.memory import peak_on_cuda
from calibration.whole_models.prediction import WholeModelPrediction, question
from calibration.whole_models.study import TARGETS, WholeModelStudy, study
from calibration.whole_models.workloads import WORKLOADS, workload_named
from catalogs.errors import InputError
from catalogs.ui.html_page import render
from tests.calibration import whole_model_rows as invented

RUN = CliRunner()
SHIPPED = Path(__file__).parents[3] / "benchmarks/data/whole-models-epyc"
MEASURED = ("opt-350m", "t5-small", "bart-base")
STUDIED = [t for t in TARGETS if t.name in ("total_s", "peak_memory_bytes")]


@pytest.fixture(scope="module")
def found() -> WholeModelStudy:
    """Three models, two batches, 3 % noise."""
    return study(invented.rows(0.03, MEASURED, keep=lambda p: p.batch in (1, 8)), ("linear physics",), STUDIED)


@pytest.fixture
def folder(found: WholeModelStudy, tmp_path: Path) -> Path:
    """A session's folder as `calibrate models` leaves it."""
    table.write(found.rows.to_dict("records"), tmp_path)
    predictor.save(found, tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"roofline": asdict(invented.RATES)}))
    return tmp_path


def predicted(folder: Path, model: str, workload: str = "translation", **more: Any) -> WholeModelPrediction:
    asked = question(model, workload, **({"batch": 4} | more))
    by = prediction.scheme(table.read_rows(folder), asked)
    return prediction.predict(asked, predictor.load(folder, by), prediction.session_rates(folder))


# ---- intervals


def test_interval_by_hand() -> None:
    """Two groups of two rows, 10 % too high and 10 % too low, without any spread within a group."""
    actual, groups = np.array([1.1, 1.1, 1 / 1.1, 1 / 1.1]), np.array(["a", "a", "b", "b"])
    assert interval_factor(actual, np.ones(4), groups) == pytest.approx(1.1 ** student_t.ppf(0.95, 2))
    same = np.array(["a", "b", "c", "d"])  # every row its own group: the spread is that of the groups
    assert interval_factor(actual, np.ones(4), same) == pytest.approx(1.1 ** student_t.ppf(0.95, 4))


@pytest.mark.parametrize(("between", "within"), [(0.1, 0.05), (0.02, 0.2)])
def test_interval_holds_for_a_group_not_seen(between: float, within: float) -> None:
    """Errors drawn from the model itself, 400 times: 90 % of the rows of a fifth group are inside, never fewer."""
    rng = np.random.default_rng(3)
    groups = np.repeat(np.array(["a", "b", "c", "d"]), 20)
    inside = []
    for _ in range(400):
        errors = rng.normal(0, between, 5).repeat(20) + rng.normal(0, within, 100)
        factor = interval_factor(np.exp(errors[:80]), np.ones(80), groups)
        inside.append(np.mean(np.abs(errors[80:]) <= np.log(factor)))
    assert 0.88 < np.mean(inside) < 0.97


def test_coverage_is_of_intervals_without_the_group_itself() -> None:
    actual = np.array([1.01, 0.99, 1.01, 0.99, 1.01, 0.99, 2.0, 2.0])
    groups = np.repeat(np.array(["a", "b", "c", "d"]), 2)
    assert interval_coverage(actual, np.ones(8), groups) == 0.75
    assert interval_coverage(actual[:4], np.ones(4), groups[:4]) is None


# ---- predictions


def test_a_model_that_was_not_measured_follows_the_planted_law(folder: Path) -> None:
    answer = predicted(folder, "bloom-560m", input_tokens=64)
    law = invented.law(invented.work(answer.question.point))
    assert not answer.measured_model
    assert [t.target.name for t in answer.targets] == ["total_s", "peak_memory_bytes"]
    for t in answer.targets:
        assert t.low < t.value < t.high
        assert t.low < law[t.target.name] < t.high
    assert set(answer.nearest["model"]) <= set(MEASURED)
    assert answer.nearest["distance"].is_monotonic_increasing


def test_a_measured_model_has_the_errors_of_held_out_configurations(folder: Path, found: WholeModelStudy) -> None:
    answer = predicted(folder, "opt-350m", "generation")
    assert answer.measured_model
    scores = found.targets[0].by_configuration
    assert answer.targets[0].errors["mape"] == pytest.approx(scores.score().mape, rel=1e-4)
    assert answer.targets[0].high / answer.targets[0].value == pytest.approx(scores.interval_factor, rel=1e-4)
    assert set(answer.nearest["model"]) == {"opt-350m"}


def test_a_measured_point_is_the_nearest_row(folder: Path, found: WholeModelStudy) -> None:
    row = found.used.iloc[5]
    lengths = {"input_tokens": int(row["input_tokens"]), "output_tokens": int(row["output_tokens"])}
    answer = predicted(folder, row["model"], row["workload"], batch=int(row["batch"]), **lengths)
    assert answer.nearest.iloc[0]["key"] == row["key"]
    assert answer.nearest.iloc[0]["distance"] == pytest.approx(0.0, abs=1e-6)
    assert answer.notices == ()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": "opt-350m", "batch": 500}, "500 batch (measured: 1 to 8)"),
        ({"model": "opt-350m", "output_tokens": 400}, "400 output tokens"),
        ({"model": "qwen3-8b"}, "parameters (measured"),
        ({"model": "qwen3-30b-a3b"}, "mixture of experts"),
        ({"model": "qwen3-8b"}, "does not fit"),
        ({"model": "opt-350m", "output_tokens": 4000}, "accepts 2,048 tokens"),
    ],
)
def test_what_no_row_covers_is_named(folder: Path, more: dict[str, Any], words: str) -> None:
    answer = predicted(folder, **more)
    assert any(words in text for text in answer.notices)


def test_disturbed_rows_are_named(folder: Path) -> None:
    asked, machine = question("opt-350m", "generation", 1), prediction.session_rates(folder)
    found = predictor.load(folder)
    loaded = replace(found, used=found.used.assign(contended=True))
    assert "other processes" in prediction.predict(asked, loaded, machine).notices[-1]
    assert not any("other processes" in text for text in prediction.predict(asked, found, machine).notices)


def test_other_sizes_under_a_measured_name_are_another_model(folder: Path) -> None:
    asked = question("opt-350m", "generation", 1)
    rows = table.read_rows(folder)
    assert prediction.scheme(rows, asked) == "configuration"
    assert prediction.scheme(rows, replace(asked, spec=question("bloom-560m", "generation", 1).spec)) == "model"


def test_rows_of_one_model_predict_no_other(found: WholeModelStudy, tmp_path: Path) -> None:
    rows = found.rows[found.rows["model"] == "opt-350m"]
    table.write(rows.to_dict("records"), tmp_path)
    predictor.save(study(rows, ("linear physics",), STUDIED), tmp_path)
    assert predictor.load(tmp_path).winner("total_s") == "linear physics"
    with pytest.raises(InputError, match="one model"):
        predictor.load(tmp_path, "model")


# ---- rows measured on a real machine


def test_the_interval_holds_for_models_left_out_of_the_shipped_rows() -> None:
    found = study(table.read_rows(SHIPPED), ("linear physics",), STUDIED)
    for t in found.targets:
        assert t.by_model is not None
        assert t.by_model.interval_coverage is not None
        assert t.by_model.interval_coverage > 0.85
        assert t.by_model.score().median < 0.10


# ---- the command


def test_the_command_prints_one_screen_and_the_same_as_json(folder: Path) -> None:
    given = ["predict", "--model", "bloom-560m", "--workload", "question-answering", "--batch", "2"]
    screen = RUN.invoke(app, [*given, "--rows", str(folder)])
    assert screen.exit_code == 0, screen.output
    for words in ("latency", "peak memory", "90 % interval", "linear physics", "whole models", "nearest"):
        assert words in screen.output
    assert max(len(line) for line in screen.output.splitlines()) <= 100
    document = json.loads(RUN.invoke(app, [*given, "--rows", str(folder), "--json", "-"]).stdout)
    total = document["predictions"]["total_s"]
    assert total["low"] < total["value"] < total["high"]
    assert {"mae", "rmse", "r2", "median"} <= set(total["errors"])
    assert (document["input_tokens"], document["output_tokens"]) == (136, 24)
    assert document["held_out"] == "models"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--model", "opt-350n"], "opt-350m"),
        (["--model", "opt-350m", "--workload", "translatoin"], "translation"),
        (["--model", "opt-350m", "--batch", "0"], "the batch must be at least 1"),
        (["--model", "opt-350m", "--output-tokens", "1"], "the output must be at least 2"),
    ],
)
def test_bad_questions_are_one_line(folder: Path, given: list[str], words: str) -> None:
    answer = RUN.invoke(app, ["predict", *given, "--rows", str(folder)])
    assert isinstance(answer.exception, InputError)
    assert words in str(answer.exception)


def test_without_rows_the_hint_is_the_command_that_measures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "empty"))
    answer = RUN.invoke(app, ["predict", "--model", "opt-350m"])
    assert "calibrate models" in str(answer.exception)
    (folder / "manifest.json").write_text("{}")
    answer = RUN.invoke(app, ["predict", "--model", "opt-350m", "--rows", str(folder)])
    assert "continue the session" in str(answer.exception)


def test_workloads_have_lengths_of_their_own() -> None:
    assert [w.typical_input for w in WORKLOADS] == [256, 45, 136, 23]
    assert workload_named("Question-Answering") is workload_named("question answering")


# ---- the page


def test_the_page_holds_errors_intervals_and_both_figures(found: WholeModelStudy) -> None:
    used = found.used.assign(wall_s=found.used["total_s"] * 1.02, cpu_s=found.used["total_s"] * 1.9, threads=2)
    page = render(page_of_study(replace(found, used=used)))
    for words in ("RMSE", "Median error", "Latency by workload", "Device and host time", "processor time of a thread"):
        assert words in page
    bare = render(page_of_study(found))
    assert "these rows hold no processor time" in bare


# ---- memory by the driver


class GpuMemory:
    """Stands for torch.cuda and NVML: the allocator reserves more than is live, and keeps it after a run."""

    live = reserved = 0.0

    def __init__(self) -> None:
        self.cuda = self

    def empty_cache(self) -> None:
        self.reserved = self.live

    def synchronize(self) -> None: ...

    def reset_peak_memory_stats(self) -> None: ...

    def memory_allocated(self) -> float:
        return self.live

    def max_memory_allocated(self) -> float:
        return self.live + 70.0

    def sample(self) -> dict[str, float]:
        return {DEVICE_MEMORY: 500.0 + self.reserved}  # 500 bytes of the context and of other processes

    def run(self) -> None:
        self.reserved = self.live + 100.0


@pytest.mark.parametrize(("readable", "growth"), [(True, 100.0), (False, None)])
def test_the_driver_counts_what_the_allocator_reserves(readable: bool, growth: float | None) -> None:
    gpu = GpuMemory()
    gpu.live = 30.0
    sample: Callable[[], dict[str, float]] = gpu.sample if readable else dict
    peak = peak_on_cuda(gpu.run, gpu, Meter(None, sample))
    assert (peak.growth_bytes, peak.nvml_growth_bytes) == (70.0, growth)
    assert pd.isna(peak.nvml_growth_bytes) == (not readable)
