"""Laws of measuring whole models: points are distinct work, nothing is dropped, killed and resumed is the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from calibration.profile.run import ProgressReporter
from calibration.profile.session.session import ROWS_NAME, Session
from calibration.whole_models import table
from calibration.whole_models.collect import collect, counts
from calibration.whole_models.generation import extended
from calibration.whole_models.physics import architecture
from calibration.whole_models.point_decision import PlannedPoint, SessionLimits, decide, growth_bytes, run_seconds
from calibration.whole_models.subjects import DEFAULTS, RandomWeightModel, load_subject
from calibration.whole_models.workloads import BATCHES, Point, points
from catalogs.errors import InputError
from catalogs.models.hf_config import model_from_config
from catalogs.models.hf_reader import merged_reader
from catalogs.models.spec import ModelSpec
from tests.calibration import whole_model_rows as invented

QUIET = ProgressReporter(lambda _text: None, lambda _spent, _what: None)
HEAD = {"family": "whole_model", "role": "fit"}


class Killed(BaseException):
    """Stands for kill -9: only what was on disk counts afterwards."""


@dataclass
class Bench:
    """Invented runs: a point takes four generations; more than `memory_bytes` fails; `dies_at` kills."""

    memory_bytes: float = 1e12
    free: float = 1e12
    dies_at: int | None = None
    slower: float = 1.0
    asked: list[str] = field(default_factory=list)

    def measure(self, point: Point, repeats_s: float, memory_bytes: float, limit_s: float) -> dict[str, Any]:
        assert memory_bytes <= self.free
        assert repeats_s < limit_s
        if self.dies_at is not None and len(self.asked) >= self.dies_at:
            raise Killed
        self.asked.append(point.key)
        row = invented.measured(point)
        growth = row["peak_memory_bytes"] - row["weight_bytes"]
        if growth > self.memory_bytes:
            return {"status": "oom", "reason": "invented", "elapsed_s": 1.0}
        total = row["total_s"] * self.slower
        found = {"status": "ok", "reason": "", "contended": False, "memory_growth_bytes": growth}
        found |= {c: row[c] for c in ("prefill_s", "decode_s_per_token", "peak_memory_bytes")}
        return found | {"total_s": total, "elapsed_s": 0.7 + 4 * total}

    def free_bytes(self, model: str) -> float:
        assert model in DEFAULTS
        return self.free


def candidates(keep: int | None = None) -> list[PlannedPoint]:
    asked = points(DEFAULTS, BATCHES, 512, (16,))[:keep]
    return [PlannedPoint(p, HEAD | invented.work(p)) for p in asked]


def session(folder: Path) -> Session:
    return Session.open(folder, QUIET.line)


def keys(folder: Path) -> list[str]:
    return [json.loads(line)["key"] for line in (folder / ROWS_NAME).read_text().splitlines()]


# ---- points


def test_points_are_distinct_work_and_cover_every_configuration_in_each_round() -> None:
    asked = points(DEFAULTS, BATCHES, 512, (16,))
    work = [(p.model, p.batch, p.input_tokens, p.output_tokens) for p in asked]
    assert len(set(work)) == len(work) == len({p.key for p in asked})
    configurations = [(p.model, p.workload, p.batch) for p in asked]
    assert len(set(configurations[:62])) == 62  # 64 less what is the same work under two names
    assert set(configurations) == set(configurations[:65])
    assert max(p.input_tokens for p in asked) == 512
    assert min(p.output_tokens for p in asked) >= 2


def test_order_is_random_by_seed_and_the_same_for_the_same() -> None:
    assert points(DEFAULTS, BATCHES, 512, (16,)) == points(DEFAULTS, BATCHES, 512, (16,))
    assert points(DEFAULTS, BATCHES, 512, (16,), seed=1) != points(DEFAULTS, BATCHES, 512, (16,))
    batches = [p.batch for p in points(DEFAULTS, BATCHES, 512, (16,))[:64]]
    assert batches != sorted(batches)


@pytest.mark.parametrize(("batches", "longest"), [((0,), 512), ((1,), 4)])
def test_impossible_points_are_one_line(batches: tuple[int, ...], longest: int) -> None:
    with pytest.raises(InputError):
        points(DEFAULTS, batches, longest, (16,))


# ---- models and their arithmetic


def spec_of_config(subject: RandomWeightModel) -> ModelSpec:
    return model_from_config(merged_reader(subject.config, subject.name), subject.name)


@pytest.mark.parametrize("name", DEFAULTS)
def test_configurations_agree_with_the_catalog(name: str) -> None:
    subject = load_subject(name)
    assert spec_of_config(subject).n_params == subject.spec.n_params
    assert spec_of_config(subject).is_encoder_decoder == subject.spec.is_encoder_decoder


def test_a_catalog_model_becomes_a_configuration_and_back() -> None:
    subject = load_subject("qwen2.5-0.5b")
    assert spec_of_config(subject).n_params == pytest.approx(subject.spec.n_params, rel=1e-3)
    with pytest.raises(InputError, match=r"config\.json"):
        load_subject("deepseek-v3")


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(load_subject("opt-350m").config))
    subject = load_subject(str(tmp_path / "mine"))
    assert (subject.name, architecture(subject.spec)) == ("mine", "decoder-only")
    assert subject.spec.n_params == load_subject("opt-350m").spec.n_params


def test_work_by_hand() -> None:
    """t5-small, one sequence of 16 tokens, 2 generated: what torch's flop counter gave for the same run."""
    row = invented.work(Point("t5-small", "translation", 1, 16, 2))
    assert row["prefill_flops"] + row["decode_flops"] == 862097408.0
    twice = invented.work(Point("t5-small", "translation", 2, 16, 2))
    assert twice["prefill_flops"] == 2 * row["prefill_flops"]
    assert twice["decode_weight_bytes"] == row["decode_weight_bytes"]


def test_counted_operations_go_on_by_equal_differences() -> None:
    steps = [7.0 + 3.0 * j for j in range(9)]
    assert extended([100.0, *steps[:2]], 9) == 100.0 + sum(steps)
    assert extended([100.0, 7.0], 1) == 107.0


# ---- the session


def test_every_point_is_a_row_once_measured_or_not(tmp_path: Path) -> None:
    asked = candidates()
    rows = collect(asked, session(tmp_path), Bench(), 200.0, QUIET)
    assert sorted(r["key"] for r in rows) == sorted(c.point.key for c in asked)
    found = counts(rows)
    assert found["ok"] > 30
    assert found["skipped"] > 30
    assert all(r["reason"] for r in rows if r["status"] == "skipped")
    table.write(rows, tmp_path)
    read = table.read_rows(tmp_path)
    assert sorted(read["key"]) == sorted(c.point.key for c in asked)
    assert (read["status"] == "skipped").sum() == found["skipped"]


def test_the_budget_is_kept_and_no_point_takes_more_than_its_share(tmp_path: Path) -> None:
    here = session(tmp_path)
    collect(candidates(), here, Bench(), 300.0, QUIET)
    assert 100.0 < here.spent_s < 300.0
    first = {(r["model"], r["batch"]): r["key"] for r in reversed(here.rows)}
    limits = SessionLimits(300.0, 0.0, 0.0)
    assert max(r["elapsed_s"] for r in here.rows if r["key"] not in first.values()) < 1.5 * limits.point_s
    assert max(r["elapsed_s"] for r in here.rows) < 1.5 * limits.first_point_s


def test_every_batch_size_is_measured_before_the_budget_is_spent(tmp_path: Path) -> None:
    """Batch 128 of the larger models costs more than an ordinary point may, and comes first nevertheless."""
    rows = collect(candidates(), session(tmp_path), Bench(), 900.0, QUIET)
    measured = [(r["model"], r["batch"]) for r in rows if r["status"] == "ok"]
    assert set(measured) == {(model, batch) for model in DEFAULTS for batch in BATCHES}
    assert len(set(measured[:16])) == 16
    assert [model for model, _ in measured[:4]] == list(dict.fromkeys(model for model, _ in measured[:4]))


@pytest.mark.parametrize("dies_at", [0, 1, 5, 40])
def test_killed_and_resumed_gives_the_same_rows_none_twice(tmp_path: Path, dies_at: int) -> None:
    whole = collect(candidates(), session(tmp_path / "whole"), Bench(), 200.0, QUIET)
    with pytest.raises(Killed):
        collect(candidates(), session(tmp_path / "cut"), Bench(dies_at=dies_at), 200.0, QUIET)
    before = keys(tmp_path / "cut") if dies_at else []
    again = collect(candidates(), session(tmp_path / "cut"), Bench(), 200.0, QUIET)
    after = keys(tmp_path / "cut")
    assert after[: len(before)] == before
    assert len(before) == dies_at
    assert len(set(after)) == len(after)
    assert after == keys(tmp_path / "whole")
    assert [(r["key"], r["status"]) for r in again] == [(r["key"], r["status"]) for r in whole]


def test_an_interrupt_leaves_tables_with_the_rest_as_skipped(tmp_path: Path) -> None:
    asked = candidates()
    with pytest.raises(Killed):
        collect(asked, session(tmp_path), Bench(dies_at=9), 200.0, QUIET)
    read = table.read_rows(tmp_path)
    assert (read["status"] == "ok").sum() == 9
    assert sorted(read["key"]) == sorted(c.point.key for c in asked)


def test_out_of_memory_is_a_row_and_smaller_ones_go_on(tmp_path: Path) -> None:
    rows = collect(candidates(), session(tmp_path), Bench(memory_bytes=1.5e8), 2000.0, QUIET)
    failed = [r for r in rows if r["status"] == "oom"]
    late = [r for r in rows if "which ran out of memory" in r.get("reason", "")]
    assert failed
    assert late
    assert counts(rows)["ok"] > 50
    first = next(i for i, r in enumerate(rows) if r["status"] == "oom")
    assert any(r["status"] == "ok" for r in rows[first + 1 :])


def test_what_cannot_fit_is_skipped_by_prediction(tmp_path: Path) -> None:
    rows = collect(candidates(), session(tmp_path), Bench(free=4e8), 2000.0, QUIET)
    skipped = [r for r in rows if "GB in addition to the weights" in r["reason"]]
    assert skipped
    grown = [r["memory_growth_bytes"] for r in rows if r["status"] == "ok"]
    assert max(grown) < 4e8


def test_predictions_follow_what_was_measured(tmp_path: Path) -> None:
    here = session(tmp_path)
    collect(candidates(), here, Bench(slower=5.0), 600.0, QUIET)
    for c in candidates()[::17]:
        row = invented.measured(c.point)
        if len([r for r in here.rows if r["model"] == c.point.model]) < 8:
            continue
        assert 1.0 < run_seconds(c, here.rows) / (5.0 * row["total_s"]) < 3.0
        assert 0.8 < growth_bytes(c, here.rows) / (row["peak_memory_bytes"] - row["weight_bytes"]) < 2.0


def test_decisions_say_why() -> None:
    c = candidates(1)[0]
    assert decide(c, [], SessionLimits(1e4, 0.0, 1e12)).measure
    assert "of the budget were left" in decide(c, [], SessionLimits(1e4, 1e4, 1e12)).reason
    assert "GB are free" in decide(c, [], SessionLimits(1e4, 0.0, 1e6)).reason
    failed = {**HEAD, **invented.work(c.point), "status": "oom", "elapsed_s": 1.0}
    assert "ran out of memory" in decide(c, [failed], SessionLimits(1e4, 0.0, 1e12)).reason


def test_rows_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows of whole models"):
        table.read_rows(tmp_path)
    other = session(tmp_path)
    other.append({"key": "gemm", "family": "gemm", "role": "fit", "status": "ok", "elapsed_s": 1.0})
    with pytest.raises(InputError, match="another kind"):
        table.check_whole_models(other.rows, tmp_path)
    with pytest.raises(InputError, match="not rows of whole models"):
        table.read_rows(tmp_path)
