"""A load that changes with time: sizes calculated by hand, simulated in a toy fleet, and one question end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calibration.accuracy.stated_error import StatedError
from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command
from catalogs.workloads.arrivals import Piecewise
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import load_workload
from planner.cli.main import app
from planner.problem.load_curve import MOST_SIMULATED, LoadCurve, peak_of, steady
from planner.problem.request import PlanRequest
from planner.problem.scenario import request_of_keys
from planner.problem.slo import parse_slos
from planner.search.workers import ProcessPool
from planner.sections.daily_load import DailyLoadSection, OverTime, ReplicaUnit
from planner.sections.daily_load_block import ReplicaOption
from planner.sections.fleet_day import DailyRun, FleetSize
from planner.sections.full_answer import read_answer
from planner.studies.rerun import without_load
from simulator.cluster.run import Run
from tests.planner.screen_intervals import unlabelled_intervals
from tests.planner.seats_toy import COLD_S, seats_requests, seats_serve

HOUR_S = 3600.0
SLOS = parse_slos(["ttft.p90=3s"])
ERROR = StatedError("none", 0.01, {})
UNIT = ReplicaUnit(
    carries_per_s=0.5,
    in_flight=2.5,
    limit=8,
    spare=0,
    usd_per_hour=lambda n: 2.0 * n,
    pue=1.25,
    cold_start_s=COLD_S,
    sure=0.9,
)


def diurnal(tmp_path: Path, more: str = "", mean: float = 1.0) -> str:
    file = tmp_path / "day.yaml"
    arrivals = f"{{diurnal: {{requests_per_s: {mean}, swing: 0.6, period_s: 7200, peak_at_s: 3600{more}}}}}"
    file.write_text(
        f"arrivals: {arrivals}\ninput_tokens: {{lognormal: {{mean: 300, cv: 0.5}}}}\noutput_tokens: {{constant: 64}}\n"
    )
    return str(file)


def toy(tmp_path: Path, unit: ReplicaUnit = UNIT, **more: object) -> OverTime:
    curve = LoadCurve.of(load_workload(diurnal(tmp_path)))
    arrival_s = load_workload(diurnal(tmp_path)).materialise(0, curve.n_requests).arrival_s
    clock = DailyRun(SLOS, seats_requests(arrival_s), curve.duration_s, curve.n_windows, 1, seats_serve)
    return OverTime(clock, curve, unit, ERROR, **more)  # type: ignore[arg-type]


def test_the_curve_of_a_day(tmp_path: Path) -> None:
    curve = LoadCurve.of(load_workload(diurnal(tmp_path)))
    assert curve.duration_s == 7200.0
    assert curve.n_requests == 7200
    assert curve.mean_per_s == pytest.approx(1.0)
    assert curve.peak_per_s == pytest.approx(1.6, rel=0.01)
    assert curve.trough_per_s == pytest.approx(0.4, rel=0.01)
    # steepest at 0.6 * 2 pi / 7200 a second, of a rate of at least a half
    assert 1.05 < curve.growth_within(300.0) < 1.0 + 300.0 * 0.6 * 2 * np.pi / 7200 / 0.5


def test_the_curve_of_a_trace_is_counted(tmp_path: Path) -> None:
    """Two hours: one request a second in the first, four in the second."""
    times = np.concatenate([np.arange(0, 3600, 1.0), np.arange(3600, 7200, 0.25)])
    file = tmp_path / "trace.csv"
    rows = "".join(f"{t},100,10\n" for t in times.tolist())
    file.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    curve = LoadCurve.of(load_workload(str(file)))
    assert (curve.trough_per_s, curve.peak_per_s) == pytest.approx((1.0, 4.0), rel=0.03)
    assert curve.mean_per_s == pytest.approx(2.5, rel=0.01)
    assert peak_of(str(file)) == curve.peak_per_s
    even = steady(load_workload(str(file))).materialise(0, 2000, 4.0)
    assert np.ptp(even.arrival_s) == pytest.approx(500.0, rel=0.1)
    assert set(even.input_tokens.tolist()) == {100}


def test_an_hour_is_drawn_of_a_workload_that_is_no_trace(tmp_path: Path) -> None:
    """5.53 requests a second are 19,908 an hour; a file that states its requests, or its time, has those."""
    curve = LoadCurve.of(load_workload("azure-conv"))
    assert (curve.drawn, curve.n_requests) == (True, 19_908)
    assert curve.duration_s == pytest.approx(3600, rel=0.03)
    lengths = "input_tokens: {constant: 300}\noutput_tokens: {constant: 64}\n"
    file = tmp_path / "w.yaml"
    for keys, n in (("requests: 1000", 1000), ("duration_s: 200", 2000), ("", 36_000)):
        file.write_text(f"arrivals: {{poisson: {{requests_per_s: 10}}}}\n{lengths}{keys}\n")
        assert LoadCurve.of(load_workload(str(file))).n_requests == n
    file.write_text(f"arrivals: {{poisson: {{requests_per_s: 1000}}}}\n{lengths}")
    assert LoadCurve.of(load_workload(str(file))).n_requests == MOST_SIMULATED
    assert not LoadCurve.of(load_workload(diurnal(tmp_path))).drawn


@pytest.mark.parametrize(("slo", "windows"), [("p90=3s", 72), ("p99=3s", 14), ("p99.9=3s", 4), ("mean=3s", 72)])
def test_windows_have_enough_requests_for_the_percentile(tmp_path: Path, slo: str, windows: int) -> None:
    """7,200 requests: 72 windows of a hundred, of which five are beyond a p95; 500 for a p99."""
    curve = LoadCurve.of(load_workload(diurnal(tmp_path)), slos=parse_slos([f"ttft.{slo}"]))
    assert curve.n_windows == windows
    assert curve.window_s == pytest.approx(7200 / windows)


def test_rates_and_objectives_are_of_the_same_windows(tmp_path: Path) -> None:
    block = toy(tmp_path).block()
    assert {option.n_windows for option in block.options} == {len(block.rates_per_s)}
    assert block.window_s * len(block.rates_per_s) == pytest.approx(block.duration_s)
    drawn = "(drawn from the distributions of the workload, not a recorded trace)"
    for model in (block, block.model_copy(update={"drawn": True})):
        lines = dict(DailyLoadSection().screen(model, None))  # type: ignore[arg-type]
        assert (drawn in lines["Load"]) == model.drawn


def test_the_plan_is_for_the_peak_of_the_windows_of_its_objectives(tmp_path: Path) -> None:
    keys = {"model": "llama3.2-1b", "hardware": "l4", "workload": diurnal(tmp_path), "over_time": True}
    for slo in ("ttft.p90=2s", ["ttft.p99=2s"]):
        asked = request_of_keys(keys | {"slo": slo})
        curve = LoadCurve.of(load_workload(diurnal(tmp_path)), slos=asked.slos)
        assert asked.requests_per_s == curve.peak_per_s
        assert request_of_keys(keys | {"slo": slo, "rate": curve.peak_per_s}) == asked  # as an answer holds it


def test_a_question_outlives_the_peak_of_its_workload_and_an_answer_keeps_it(tmp_path: Path) -> None:
    keys = {"model": "llama3.2-1b", "hardware": "l4", "workload": diurnal(tmp_path), "over_time": True}
    asked = request_of_keys(keys | {"slo": "ttft.p90=2s"})
    diurnal(tmp_path, mean=2.0)
    again = request_of_keys(asked.scenario())
    assert again.requests_per_s == pytest.approx(2 * (asked.requests_per_s or 0), rel=0.01)
    assert PlanRequest(**asked.as_dict()) == asked  # as another command reads it from the answer


def test_a_steady_workload_keeps_its_requests(tmp_path: Path) -> None:
    workload = load_workload(diurnal(tmp_path))
    ours, theirs = steady(workload).materialise(3, 500, 2.0), workload.materialise(3, 500, 2.0)
    assert np.array_equal(ours.input_tokens, theirs.input_tokens)
    assert not np.array_equal(ours.arrival_s, theirs.arrival_s)


def test_sizes_are_reckoned_from_what_a_replica_carries(tmp_path: Path) -> None:
    """0.5 a second each: 1.6 need four, 1.0 needs two, which carry 1.6 at the very most: late at the peak."""
    block = toy(tmp_path).block()
    peak, mean, scaled = block.options
    assert (peak.replicas, mean.replicas) == (4, 2)
    assert peak.holds
    assert peak.windows_met == 1.0
    assert not mean.holds
    assert mean.windows_met < 0.95
    assert mean.slo[0].worst_at_s == pytest.approx(3600, abs=1800)
    assert peak.accelerator_hours_per_day == pytest.approx(4 * 24, rel=0.01)
    assert peak.usd_per_day == pytest.approx(4 * 24 * 2.0, rel=0.01)
    assert scaled.replicas_min < scaled.replicas_max <= 8
    assert block.cheapest == ("autoscaled" if scaled.price < peak.price else "peak")
    ideal = np.ceil(np.array(block.rates_per_s) / 0.5).mean() * 24
    assert block.least_accelerator_hours_per_day == pytest.approx(ideal)
    assert ideal < scaled.accelerator_hours_per_day


def test_the_energy_of_a_day_includes_the_facility(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that take one kWh in two hours take twelve a day, and the facility as much more as its PUE says."""
    monkeypatch.setattr("planner.sections.fleet_day._joules", lambda _run: 3.6e6)
    peak = toy(tmp_path).block().options[0]
    assert peak.kwh_per_day == pytest.approx(12 * UNIT.pue * peak.simulated_part, rel=0.01)


def test_an_autoscaled_fleet_follows_the_load(tmp_path: Path) -> None:
    scaled = toy(tmp_path).block().options[2]
    counts = scaled.replicas_over_time
    assert max(counts[10:14]) > 1.5 * min(counts[0], counts[-1])
    assert scaled.holds
    assert scaled.scaling is not None
    assert scaled.scaling.target < 2.5


def test_a_fleet_that_is_not_sure_enough_is_missed_though_all_windows_meet(tmp_path: Path) -> None:
    """The share of windows is of those that meet, also in the line of a fleet that misses."""
    block = toy(tmp_path).block()
    sure = block.options[0].model_copy(update={"windows_met": 1.0, "holds": True})

    def line(option: ReplicaOption) -> str:
        lines = DailyLoadSection().screen(block.model_copy(update={"options": [option]}), None)  # type: ignore[arg-type]
        return next(text for label, text in lines if label == "Replicas")

    assert f"objectives met in 100 % of {sure.n_windows} windows (" in line(sure)
    missed = line(sure.model_copy(update={"holds": False, "windows_met_ci_low": 0.93}))
    assert f"objectives missed at the required confidence; met in 100 % of {sure.n_windows} windows (" in missed
    assert "(90 % interval: 93 % to 100 %; 95 % are required)" in missed


def test_a_plan_says_how_many_replicas_its_load_needs(tmp_path: Path) -> None:
    """The plan is for random arrivals at the rate of the busiest window, so the load may need more replicas."""
    block = toy(tmp_path).block()
    peak = block.options[0]
    assert (peak.name, peak.replicas) == ("peak", 4)
    section = DailyLoadSection()

    def caveat(replicas: int, **changed: object) -> str:
        shown = block.model_copy(update={"options": [peak.model_copy(update=changed), *block.options[1:]]})
        return section.caveat(shown, SimpleNamespace(deployment={"replicas": replicas}))  # type: ignore[arg-type]

    assert caveat(4) == ""
    assert caveat(3).endswith("The load itself needs 4 replicas for its peak, $192 per day.")
    assert caveat(3, usd_per_day=None).endswith("The load itself needs 4 replicas for its peak.")
    assert "No fixed number of replicas that was simulated meets" in caveat(4, holds=False)


def test_equal_sizes_for_the_peak_and_the_mean_are_one_row(tmp_path: Path) -> None:
    block = toy(tmp_path).block()
    peak = next(option for option in block.options if option.name == "peak")
    for replicas, names in ((peak.replicas, ["for the peak and the mean"]), (7, ["for the peak", "for the mean"])):
        mean = peak.model_copy(update={"name": "mean", "replicas": replicas})
        shown = block.model_copy(update={"options": [peak, mean], "cheapest": "peak"})
        lines = list(DailyLoadSection().screen(shown, None))  # type: ignore[arg-type]
        assert [text.partition(":")[0] for label, text in lines if label == "Replicas"] == names
        assert dict(lines)["Cheapest"].startswith(f"{names[0]};")


@pytest.mark.parametrize(
    ("duration_s", "says"), [(86400.0, "  replicas by hour: "), (240.0, "  replicas every 10 s: ")]
)
def test_the_parts_of_a_load_that_is_no_day_are_no_hours(tmp_path: Path, duration_s: float, says: str) -> None:
    block = toy(tmp_path).block()
    assert len(block.options[2].replicas_over_time) == 24
    whole = block.model_copy(update={"duration_s": duration_s})
    lines = [text for _, text in DailyLoadSection().screen(whole, None)]  # type: ignore[arg-type]
    assert sum(text.startswith(says) for text in lines) == 1


def test_a_spare_replica_is_always_there(tmp_path: Path) -> None:
    peak, mean, scaled = toy(tmp_path, replace(UNIT, spare=1)).block().options
    assert (peak.replicas, mean.replicas) == (5, 3)
    assert scaled.scaling is not None
    assert scaled.scaling.min_replicas == 2


def test_what_the_user_says_of_the_autoscaler_is_kept(tmp_path: Path) -> None:
    said = {"metric": "queue", "target": 1, "min_replicas": 3}
    scaled = toy(tmp_path, given=said).block().options[2]
    assert {key: getattr(scaled.scaling, key) for key in said} == said
    with pytest.raises(InputError, match="must not exceed 8"):
        toy(tmp_path, given={"max_replicas": 9}).block()


def test_one_part_of_a_fleet_stands_for_all_of_it(tmp_path: Path) -> None:
    """In turn, replicas never meet: two of four see what two of four see, and the day is counted as all of it."""
    clock = toy(tmp_path).clock
    whole, part = clock.day(FleetSize("peak", 4)), clock.day(FleetSize("peak", 4), share=2)
    assert part.values_s["ttft.p90"] == pytest.approx(whole.values_s["ttft.p90"], rel=0.1)
    assert part.accelerator_s == pytest.approx(whole.accelerator_s, rel=0.01)
    assert part.replicas == pytest.approx(whole.replicas)


def test_slower_steps_are_a_faster_clock(tmp_path: Path) -> None:
    """Steps of half a second under a clock of twice the speed are steps of a second."""
    plain = toy(tmp_path).clock
    same = plain.day(FleetSize("peak", 4))
    doubled = plain.day(FleetSize("peak", 4), speed=1.25)
    assert doubled.duration_s == pytest.approx(same.duration_s, rel=0.01)
    assert doubled.accelerator_s == pytest.approx(same.accelerator_s, rel=0.01)
    assert doubled.values_s["ttft.p90"] > 1.24 * same.values_s["ttft.p90"]


@pytest.mark.parametrize(
    ("more", "mean", "says"),
    [("", 0.01, "at least 400"), (", spikes: [{at_s: 0, lasts_s: 9, factor: 1}]", 1000.0, "at most 1,000,000")],
)
def test_loads_too_short_or_too_long_are_refused(tmp_path: Path, more: str, mean: float, says: str) -> None:
    with pytest.raises(InputError, match=says):
        LoadCurve.of(load_workload(diurnal(tmp_path, more, mean)))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--rate", "3"], "leave out --rate"),
        (["--users", "3"], "leave out --users"),
        (["--workload", "chat"], "leave out --workload"),
    ],
)
def test_a_load_is_said_once(tmp_path: Path, more: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", "llama3.1-8b", "--slo", "p99=2s", "--hw", "l4", "--trace", diurnal(tmp_path), *more]
    assert run_command("plan", app, asked) == 2
    assert says in capsys.readouterr().err


def test_a_rate_that_never_changes_has_no_peak_of_its_own() -> None:
    with pytest.raises(InputError, match="with its own rate"):
        peak_of("lmsys-turns")
    assert Piecewise(rates={0: 1.0}, period_s=10.0).curve().mean == 1.0


def test_a_question_over_time_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "a.json"
    asked = [
        "--model",
        "llama3.2-1b",
        "--slo",
        "ttft.p90=2s",
        "--hw",
        "l4x2",
        "--set",
        "search.trials=1",
        "--precision",
        "native",
    ]
    fixed = ["--set", "tensor_parallel=1", "--set", "autoscaling={cold_start: {image_gb: 0}}"]
    status = run_command("plan", app, [*asked, *fixed, "--trace", diurnal(tmp_path), "--json", str(target)])
    assert status == 0
    answer = json.loads(target.read_text())
    assert [option["name"] for option in answer["over_time"]["options"]] == ["peak", "mean", "autoscaled"]
    assert answer["request"]["rate"] == pytest.approx(1.6, rel=0.01)
    assert "--trace" in answer["reproduce"]["command"]
    assert "--rate" not in answer["reproduce"]["command"]
    asked_again = read_answer(target).request
    assert asked_again.over_time
    assert without_load(asked_again).requests_per_s is None  # what reports ask
    shown = capsys.readouterr().out
    assert "Cheapest" in shown
    assert "7,200 requests in 2 h" in shown
    sizes = shown.count("\nReplicas")
    assert sizes == (2 if "for the peak and the mean" in shown else 3)
    assert shown.count(" % interval: ") >= 1 + 2 * sizes  # of the plan, and of windows and objectives of each size
    assert unlabelled_intervals(shown) == []


def test_an_autoscaler_that_cannot_scale_is_simulated_as_the_fixed_fleet_that_it_is(tmp_path: Path) -> None:
    """The fixed fleet takes the fast path, and its runs are those of the size for the peak: none is added."""
    given = {"metric": "outstanding", "target": 2.0, "min_replicas": 4, "max_replicas": 4}
    plain = toy(tmp_path, given=given)
    served: list[tuple[FleetSize, float]] = []

    def serve(size: FleetSize, requests: RequestSet, speed: float) -> Run:
        served.append((size, speed))
        return seats_serve(size, requests, speed)

    peak, _, scaled = replace(plain, clock=replace(plain.clock, serve=serve)).block().options
    assert (peak.replicas, scaled.replicas) == (4, None)
    assert scaled.scaling is not None
    assert all(size.scaling is None for size, _ in served)
    assert len({(size.replicas, speed) for size, speed in served}) == len(served)
    assert [row.value_s for row in scaled.slo] == [row.value_s for row in peak.slo]
    real = plain.clock.day(FleetSize("autoscaled", 4, scaled.scaling))
    assert real.values_s == plain.clock.day(FleetSize("peak", 4)).values_s
    assert real.accelerator_s == plain.clock.day(FleetSize("peak", 4)).accelerator_s


def test_workers_share_the_runs_and_change_no_figure(tmp_path: Path) -> None:
    asked: list[int] = []

    class Counted(ProcessPool):
        def map(self, work: Any, tasks: Any, /) -> list[Any]:
            asked.append(len(tasks))
            return super().map(work, tasks)

    assert toy(tmp_path, workers=Counted(2)).block() == toy(tmp_path).block()
    assert max(asked) > 4  # the levels of the stated error of every option at once
