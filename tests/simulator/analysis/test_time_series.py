"""A run over time: sums over the series are the totals of the run, however it was simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.workload import load_workload
from simulator.analysis.metrics import summarise
from simulator.analysis.time_series import ALL, COLUMNS, FIGURES, check_time_series, edges, series, write_time_series
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import Pool, compile_fleet
from simulator.cluster.run import Run
from simulator.cluster.serving_options import serving_options
from simulator.cluster.simulate import run_pools, run_rules, simulate
from simulator.engine.event_log import EventLog
from tests.simulator.cluster.test_pools import Script, crash_and_replacement
from tests.simulator.engine.test_fast_forward import World, worlds
from tests.simulator.worlds import Linear, requests, rules

SPLIT = {"prefill_replicas": 1, "decode_replicas": 1}
LAYOUTS = [
    {"hardware": "h100x2", "replicas": 2, "kv_blocks": 500},
    {"hardware": "h100x2", "pipeline_parallel": 2, "max_num_seqs": 16},
    {"hardware": "h100x2", "disaggregation": SPLIT},
]


def totals(done: Run, step_s: float) -> dict[str, float]:
    """Sums over the series of all replicas, times its step; of each replica they add up to the same."""
    parts = list(series(done, edges(done, step_s)))
    assert [part.replica for part in parts] == [*range(len(done.replicas)), ALL]
    found = {name: float(parts[-1].figures[name].sum()) * step_s for name in FIGURES}
    for name in set(FIGURES) - {"kv_fraction", *(["power_w"] if len(done.orders) else [])}:
        assert sum(float(p.figures[name].sum()) for p in parts[:-1]) * step_s == pytest.approx(found[name])
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("step_s", [1.0, 0.37])
def test_sums_are_the_totals_of_the_run(layout: dict[str, object], step_s: float) -> None:
    fleet = compile_fleet(Deployment(model="llama3.1-8b", max_model_len=4096, **layout))  # type: ignore[arg-type]
    work = load_workload("azure-conv").materialise(0, 120, 10.0)
    done = simulate(fleet, work, RunOptions(event_log=EventLog()))
    found, metrics = totals(done, step_s), summarise(done)["metrics"]
    assert max(float(log.steps.max()) for log in done.logs) > 1 or layout.get("pipeline_parallel")
    shown = metrics["output_tokens_per_s"] * metrics["duration_s"]  # the first is computed again after a hand-over
    assert found["output_tokens_per_s"] == pytest.approx(shown + len(done.handovers))
    assert found["power_w"] == pytest.approx(metrics["energy"]["gpu_j"], rel=1e-9)
    assert found["input_tokens_per_s"] == pytest.approx(sum(float(log.prefill_tokens.sum()) for log in done.logs))
    assert found["alive_fraction"] == pytest.approx(len(done.replicas) * metrics["duration_s"])
    in_kv = [part.figures["kv_fraction"] for part in series(done, edges(done, 0.01))][:-1]
    assert max(float(fraction.max()) for fraction in in_kv) == pytest.approx(done.kv_peak_fraction, rel=0.1)


def test_replicas_that_start_draw_power() -> None:
    scaled = {"metric": "queue", "target": 2, "max_replicas": 2, "interval_s": 2, "cold_start": {"image_gb": 0}}
    written = Deployment(model="llama3.1-8b", hardware="h100x2", max_model_len=4096, kv_blocks=600, autoscaling=scaled)  # type: ignore[arg-type]
    fleet = compile_fleet(written)
    work = load_workload("azure-conv").materialise(0, 500, 25.0)
    done = simulate(fleet, work, replace(serving_options(written, fleet), event_log=EventLog()))
    assert len(done.orders)
    assert totals(done, 1.0)["power_w"] == pytest.approx(summarise(done)["metrics"]["energy"]["gpu_j"], rel=1e-9)


@pytest.mark.parametrize("fast", [True, False])
def test_by_hand(fast: bool) -> None:
    """One seat: a prompt 0..1 and three decodes; another request waits from 0.5 to 4."""
    done = run_rules(
        rules(max_num_seqs=1, kv_blocks=10), Linear(), requests([0.0, 0.5], [4, 4], [4, 1]),
        options=RunOptions(event_log=EventLog(), fast_forward=fast),
    )  # fmt: skip
    figures = next(series(done, edges(done, 1.0))).figures
    assert figures["queue"].tolist() == [0.5, 1.0, 1.0, 1.0, 0.0]
    assert figures["running"].tolist() == [1.0] * 5
    assert figures["output_tokens_per_s"].tolist() == [1.0] * 5
    assert figures["input_tokens_per_s"].tolist() == [4.0, 0.0, 0.0, 0.0, 4.0]
    assert figures["busy_fraction"].tolist() == [1.0] * 5
    assert figures["power_w"].tolist() == [0.0] * 5
    assert figures["kv_fraction"][[0, 4]].tolist() == [0.1, 0.1]
    assert figures["kv_fraction"][1:4] == pytest.approx([0.2] * 3, abs=0.051)


def test_births_and_deaths() -> None:
    options = RunOptions(event_log=EventLog(), controllers=(Script(crash_and_replacement),))
    done = run_pools([Pool(rules(), Linear())], requests([0.0], [4], [5]), options)
    first, second, together = (part.figures for part in series(done, edges(done, 1.0)))
    assert first["alive_fraction"].tolist() == [1, 1, 0.5, 0, 0, 0, 0, 0, 0]
    assert first["running"].tolist() == [1, 1, 0.5, 0, 0, 0, 0, 0, 0]
    assert second["running"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert together["kv_fraction"][3] == 0.0


@settings(max_examples=25, deadline=None)
@given(worlds(), st.sampled_from([0.5, 1.0, 7.0]))
def test_any_world_step_by_step_or_not(world: World, step_s: float) -> None:
    found = []
    for fast in (True, False):
        options = RunOptions(router=world.router, fast_forward=fast, event_log=EventLog())
        done = run_rules(replace(world.rules), world.timer, world.requests, world.n_replicas, options)
        tokens = sum(float((log.logits * log.steps).sum()) for log in done.logs)
        found.append(list(series(done, edges(done, step_s))))
        figures = found[-1][-1].figures
        assert figures["output_tokens_per_s"].sum() * step_s == pytest.approx(tokens)
        assert min(float(values.min()) for values in figures.values()) > -1e-9
        assert figures["kv_fraction"].max() <= 1.0 + 1e-9
    for a, b in zip(*found, strict=True):
        for name in set(FIGURES) - {"kv_fraction"}:
            np.testing.assert_allclose(a.figures[name], b.figures[name], atol=1e-6, err_msg=name)


def test_files(tmp_path: Path) -> None:
    done = run_rules(rules(), Linear(), requests([0.0], [4], [4]), 2, RunOptions(event_log=EventLog()))
    write_time_series(done, tmp_path / "s.csv")
    lines = (tmp_path / "s.csv").read_text().splitlines()
    assert lines[0].split(",") == list(COLUMNS)
    assert len(lines) == 1 + 3 * 4
    from pyarrow import parquet

    write_time_series(done, tmp_path / "s.parquet")
    table = parquet.read_table(tmp_path / "s.parquet").to_pydict()
    rows = [",".join(map(repr, row)) for row in zip(*table.values(), strict=True)]
    assert rows == lines[1:]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    with pytest.raises(InputError, match=r"s\.parquet"):
        write_time_series(done, tmp_path / "s.txt")
    with pytest.raises(InputError, match="above 0"):
        check_time_series(tmp_path / "s.csv", 0.0)
    with pytest.raises(InputError, match="at most"):
        edges(done, 1e-7)
