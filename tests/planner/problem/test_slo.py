"""The SLO grammar: what it accepts, what it means, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import InputError
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import UNIT_S, Slo, parse_slos, statistic_s

metrics = st.sampled_from(sorted(LATENCY_METRICS))
stats = st.one_of(st.just("mean"), st.integers(1, 99).map(lambda n: f"p{n}"), st.just("p99.9"))
limits = st.tuples(st.integers(1, 10**6), st.sampled_from(sorted(UNIT_S)))


@given(metrics, stats, limits)
def test_what_is_written_is_what_is_meant(metric: str, stat: str, limit: tuple[int, str]) -> None:
    (slo,) = parse_slos([f"{metric}.{stat}={limit[0]}{limit[1]}"])
    assert (slo.metric, slo.stat, slo.metric_given) == (metric, stat, True)
    assert slo.limit_s == limit[0] * UNIT_S[limit[1]]


@given(metrics, stats, st.floats(1e-6, 1e6))
def test_the_full_text_parses_back_to_the_same_objective(metric: str, stat: str, limit_s: float) -> None:
    slo = Slo(metric, stat, limit_s)
    assert parse_slos([slo.text]) == (slo,)


def test_a_bare_percentile_is_ttft_and_says_so() -> None:
    (slo,) = parse_slos(["p99=2s"])
    assert (slo.name, slo.limit_s) == ("ttft.p99", 2.0)
    assert "time to first token assumed" in slo.words
    assert "assumed" not in parse_slos(["ttft.p99=2s"])[0].words
    assert parse_slos(["mean=1s"])[0].name == "ttft.mean"
    assert parse_slos(["p99.9=1s"])[0].name == "ttft.p99.9"


def test_options_repeat_and_take_commas() -> None:
    slos = parse_slos(["ttft.p99=2s,tpot.p95=50ms", "e2e.mean=10s"])
    assert [s.name for s in slos] == ["ttft.p99", "tpot.p95", "e2e.mean"]


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("tfft.p99=2s", "ttft"),
        ("ttft.p0=2s", "p"),
        ("ttft.median=2s", "p50"),
        ("ttft.p100=2s", "p99.9"),
        ("ttft.p99=2", "2s"),
        ("ttft.p99=2m", "2min"),
        ("ttft.p99=0s", "1s"),
        ("ttft.p99=-2s", "2s"),
        ("ttft.p99=0", "choice: 1s"),
        ("ttft.p99=1e999s", "choice: 1s"),
        ("ttft.p99=fast", "2s"),
        ("ttft.p99", "ttft.p99=2s"),
        ("2s", "ttft.p99=2s"),
        ("", "ttft.p99=2s"),
    ],
)
def test_bad_objectives_name_the_nearest_good_one(text: str, nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_slos([text])
    assert nearest in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_statistic_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"one limit.* nearest valid choice: ttft\.p99=2s"):
        parse_slos(["p99=2s", "ttft.p99=3s"])


@given(st.text(max_size=20))
def test_any_text_is_an_objective_or_one_line(text: str) -> None:
    try:
        slos = parse_slos([text])
    except InputError as error:
        line = str(error)
    else:
        line = ""
        assert all(s.limit_s > 0 for s in slos)
    assert "\n" not in line


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0.01, 0.99))
def test_quantiles_agree_with_numpy(values: list[float], q: float) -> None:
    assert statistic_s(np.array(values), q) == pytest.approx(np.quantile(values, q), rel=1e-12, abs=1e-12)


def test_a_request_that_never_starts_counts_as_infinite() -> None:
    samples = np.array([1.0] * 98 + [np.inf] * 2)
    assert statistic_s(samples, 0.99) == np.inf
    assert statistic_s(samples, 0.9) == 1.0
    assert statistic_s(samples, None) == np.inf
