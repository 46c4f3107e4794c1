"""Arrivals along a curve, and what requests may say of themselves: sessions and models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.io.yaml_files import check_keys
from catalogs.workloads.arrivals import Diurnal, Piecewise, RateCurve, VaryingRate, parse_arrivals
from catalogs.workloads.traces import trace_labels
from catalogs.workloads.workload import load_workload

LENGTHS = "input_tokens: {constant: 8}\noutput_tokens: {constant: 4}\n"


def workload(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "w.yaml"
    path.write_text(text + LENGTHS)
    return path


def test_counts_become_times_where_the_rate_has_reached_them() -> None:
    curve = RateCurve(np.array([0.0, 2.0, 3.0, 4.0]), np.array([1.0, 0.0, 4.0]))  # 2, 0 and 4 requests: 6 in 4 s
    assert curve.mean == 1.5
    times = curve.times_s(np.array([0.5, 2.0, 3.0, 5.5, 6.5, 12.5]))
    assert times.tolist() == [0.5, 3.0, 3.25, 3.875, 4.5, 8.5]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.0, 9.0)), min_size=1, max_size=6))
def test_times_never_go_back_and_the_mean_is_as_asked(pieces: list[tuple[float, float]]) -> None:
    lengths, rates = map(np.array, zip(*pieces, strict=True))
    rates[0] += 0.5
    curve = RateCurve(np.concatenate([[0.0], np.cumsum(lengths)]), rates).with_mean(2.0)
    assert curve.mean == pytest.approx(2.0)
    times = curve.times_s(np.linspace(0.0, 3.2 * curve.reached[-1], 400))
    assert (np.diff(times) >= 0.0).all()
    assert times[-1] == pytest.approx(3.2 * curve.period_s, abs=curve.period_s)


def test_a_day_has_its_peak_where_it_was_put_and_its_mean_over_the_day() -> None:
    day = parse_arrivals({"diurnal": {"requests_per_s": 5, "swing": 0.5, "peak_at_s": 50400}})
    assert isinstance(day, Diurnal)
    assert day.mean_per_s == pytest.approx(5.0)
    curve = day.curve()
    assert curve.edges_s[np.argmax(curve.rates)] == pytest.approx(50400, abs=61)
    assert (curve.rates.max(), curve.rates.min()) == pytest.approx((7.5, 2.5), rel=1e-4)
    times = day.starts_s(np.random.default_rng(0), 432_000, 5.0)
    assert times[-1] == pytest.approx(86400, rel=0.01)
    around_peak, around_trough = (((times > t - 3600) & (times < t + 3600)).sum() / 7200 for t in (50400, 7200))
    assert around_peak == pytest.approx(7.5, rel=0.03)
    assert around_trough == pytest.approx(2.5, rel=0.03)


def test_another_rate_raises_the_curve_and_leaves_its_clock() -> None:
    day = parse_arrivals({"piecewise": {"rates": {0: 1, 10: 3}, "period_s": 20}})
    assert isinstance(day, Piecewise)
    assert day.mean_per_s == 2.0
    slow, quick = (day.starts_s(np.random.default_rng(1), 4000, r) for r in (2.0, 8.0))
    for times in (slow, quick):
        assert (times % 20 >= 10).mean() == pytest.approx(0.75, abs=0.03)
    assert slow[-1] / quick[-1] == pytest.approx(4.0, rel=0.01)


def test_spikes_on_a_day_and_by_themselves() -> None:
    spike = {"at_s": 100, "lasts_s": 50, "factor": 10}
    day = parse_arrivals({"diurnal": {"requests_per_s": 1, "swing": 0, "period_s": 1000, "spikes": [spike]}})
    bursts = parse_arrivals({"spikes": {"requests_per_s": 1, "every_s": 1000, "lasts_s": 50, "factor": 10}})
    for kind in (day, bursts):
        assert isinstance(kind, VaryingRate)
        assert kind.mean_per_s == pytest.approx(1.45)


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        ({"diurnl": {"requests_per_s": 1}}, "diurnal"),
        ({"diurnal": {"requests_per_s": 1, "swing": 1.5}}, "less than or equal to 1"),
        ({"piecewise": {"rates": {5: 1}, "period_s": 9}}, "rise from 0"),
        ({"piecewise": {"rates": {0: 0}, "period_s": 9}}, "must not be zero"),
        ({"piecewise": {"rates": {0: 1, 10: 2}, "period_s": 9}}, "exceed the last time"),
        ({"spikes": {"requests_per_s": 1, "every_s": 10, "lasts_s": 10, "factor": 2}}, "shorter than every_s"),
    ],
)
def test_curves_that_make_no_sense_are_refused(arrivals: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_arrivals(arrivals)


def test_a_duration_stands_for_a_number_of_requests(tmp_path: Path) -> None:
    day = load_workload(str(workload(tmp_path, "arrivals: {diurnal: {requests_per_s: 2}}\nduration_s: 86400\n")))
    assert day.n_requests == 172_800
    for text, said in (
        ("arrivals: all_at_once\nduration_s: 10\n", "needs arrivals with a rate"),
        (
            "arrivals: {poisson: {requests_per_s: 2}}\nduration_s: 10\nrequests: 3\n",
            "give only one of requests and duration_s",
        ),
    ):
        with pytest.raises(InputError, match=said):
            load_workload(str(workload(tmp_path, text)))


def test_requests_ask_for_models_by_weight_and_sessions_keep_to_one(tmp_path: Path) -> None:
    text = "arrivals: {poisson: {requests_per_s: 2}}\nrequests: 4000\nmodels: {a: 3, b: 1}\nturns: 4\n"
    drawn = load_workload(str(workload(tmp_path, text))).materialise()
    assert drawn.models == ("a", "b")
    assert drawn.requested_models is not None
    assert drawn.sessions is not None
    assert drawn.requested_models.mean() == pytest.approx(0.25, abs=0.04)
    for session in range(5):
        assert len(set(drawn.requested_models[drawn.sessions == session])) == 1
        assert (drawn.sessions == session).sum() == 4


def test_a_trace_names_sessions_and_models(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,session,model\n0,4,2,x,a\n1,4,2,y,b\n2,9,2,x,a\n")
    drawn = load_workload(str(path)).materialise(n_requests=5)
    assert drawn.sessions is not None
    assert drawn.requested_models is not None
    assert drawn.sessions.tolist() == [0, 1, 0, 2, 3]  # a second lap has sessions of its own
    assert (drawn.models, drawn.requested_models.tolist()) == (("a", "b"), [0, 1, 0, 0, 1])
    path.write_text("arrival_s,input_tokens,output_tokens,model\n0,4,2,a\n1,4,2,\n")
    with pytest.raises(InputError, match="model of row 2 is missing"):
        load_workload(str(path))


def test_conversations_are_followed_from_turn_to_turn() -> None:
    chats = {"chat_id": [1, 2, 3, 4], "parent_chat_id": [-1, -1, 1, 3]}
    found = trace_labels(chats, "here")["sessions"]
    assert found is not None
    assert found.tolist() == [0, 1, 0, 0]


def test_the_keys_of_an_arrival_process_that_is_no_mapping_are_those_that_it_may_have() -> None:
    """Rates that change at given times have no single rate, so the message does not ask for one."""
    with pytest.raises(InputError, match=r"must hold the keys rates, period_s:"):
        check_keys(Piecewise, [[0, 5]], "arrivals.piecewise")
