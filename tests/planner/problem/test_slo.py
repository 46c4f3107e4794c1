"""The SLO grammar: what it accepts, what it means, what it refuses."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import InputError
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.length_condition import LengthCondition
from planner.problem.slo import (
    LEAST_LIMIT_S,
    MOST_LIMIT_S,
    UNIT_S,
    Slo,
    parse_slos,
    rounded_up,
    seconds_text,
    statistic_s,
)

metrics = st.sampled_from(sorted(LATENCY_METRICS))
stats = st.one_of(st.just("mean"), st.integers(1, 99).map(lambda n: f"p{n}"), st.just("p99.9"))
limits = st.sampled_from(sorted(UNIT_S)).flatmap(
    lambda unit: st.tuples(st.integers(1, min(10**6, round(MOST_LIMIT_S / UNIT_S[unit]))), st.just(unit))
)


@given(metrics, stats, limits)
def test_what_is_written_is_what_is_meant(metric: str, stat: str, limit: tuple[int, str]) -> None:
    (slo,) = parse_slos([f"{metric}.{stat}={limit[0]}{limit[1]}"])
    assert (slo.metric, slo.stat, slo.metric_given) == (metric, stat, True)
    assert slo.limit_s == float(limit[0] * Fraction(UNIT_S[limit[1]]).limit_denominator(10**6))  # the nearest number


@given(metrics, stats, st.floats(1e-6, MOST_LIMIT_S))
def test_the_full_text_parses_back_to_the_same_objective(metric: str, stat: str, limit_s: float) -> None:
    slo = Slo(metric, stat, limit_s)
    assert parse_slos([slo.text]) == (slo,)


@given(st.floats(0.01, 1e5), st.sampled_from(["p90", "mean"]), st.sampled_from(["", "[in<1k]"]))
def test_interactivity_keeps_its_words_and_its_limit(rate: float, stat: str, condition: str) -> None:
    (slo,) = parse_slos([f"interactivity{condition}.{stat}={rate:.3f}"])
    assert slo.text.startswith(f"interactivity{condition}.{stat}=")
    (again,) = parse_slos([slo.text])
    assert again == slo
    assert again.text == slo.text
    assert ("output tokens per second" in slo.words) == (stat != "mean")


@given(st.integers(1, 999))
def test_whole_milliseconds_are_written_as_milliseconds(n: int) -> None:
    """51 times 0.001 is not 0.051 in binary arithmetic, but both are 51 ms."""
    assert seconds_text(n / 1000) == f"{n}ms"
    assert parse_slos([f"p99={n}ms"])[0].limit_s == n / 1000


@given(st.floats(1e-6, 1e4))
def test_a_limit_is_rounded_up_to_two_digits(limit_s: float) -> None:
    rounded = rounded_up(limit_s)
    assert limit_s * (1 - 1e-9) <= rounded <= limit_s * 1.1 * (1 + 1e-9)
    assert rounded == float(f"{rounded:.2g}")


def test_long_limits_are_written_in_the_units_that_people_read() -> None:
    (slo,) = parse_slos(["session.p90=180min"])
    assert (slo.text, slo.words.rpartition(" at most ")[2]) == ("session.p90=3h", "3 h")
    assert parse_slos(["e2e.p90=90s"])[0].text == "e2e.p90=90s"
    assert parse_slos(["e2e.p90=1234.5s"])[0].text == "e2e.p90=1234.5s"


@pytest.mark.parametrize("limit", ["1e-300s", "0.0009ms", "0.999us"])
def test_limits_below_a_microsecond_are_refused(limit: str) -> None:
    with pytest.raises(InputError, match=rf"at least 1us.*got '{limit}'; nearest valid choice: 1us"):
        parse_slos([f"ttft.p99={limit}"])
    assert parse_slos(["ttft.p99=1us"])[0].limit_s == LEAST_LIMIT_S


@pytest.mark.parametrize("limit", ["1e300s", "24.1h", "86401s", "1e9min"])
def test_limits_above_a_day_are_refused(limit: str) -> None:
    with pytest.raises(InputError, match=rf"at most 24h: got '{limit}'; nearest valid choice: 24h"):
        parse_slos([f"ttft.p99={limit}"])
    assert parse_slos(["ttft.p99=24h"])[0].limit_s == MOST_LIMIT_S
    assert rounded_up(3 * MOST_LIMIT_S) == MOST_LIMIT_S


@pytest.mark.parametrize(("rate", "nearest"), [("1e300", "30"), ("0.00001", "0.0001"), ("2000000", "1000000")])
def test_interactivity_has_a_least_and_a_greatest_rate(rate: str, nearest: str) -> None:
    with pytest.raises(InputError) as found:
        parse_slos([f"interactivity.p90={rate}"])
    assert found.value.nearest == nearest


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("ttft.p99<=2s", "ttft.p99=2s"),
        ("tpot p95 40 ms", "tpot.p95=40ms"),
        ("e2e:mean=2s", "e2e.mean=2s"),
        ("ttft_p99=2s", "ttft.p99=2s"),
        ("p90<2s", "ttft.p90=2s"),
        ("e2e.p99==2s", "e2e.p99=2s"),
        ("foo.p99<2s", "ttft.p99=2s"),
        ("ttft.p99=2s;tpot.p99=30ms", "ttft.p99=2s,tpot.p99=30ms"),
        ("ttft.p99=2s tpot.p99=30ms", "ttft.p99=2s,tpot.p99=30ms"),
        ("a=b=c", "ttft.p99=2s,tpot.p99=50ms"),
        ("ttft.p99=2,5s", "ttft.p99=2.5s"),
        ("tpot.p99=20tok/s", "interactivity.p99=20"),
        ("ttft.p99=0.5d", "12h"),
        ("ttft.p99=3days", "24h"),
        ("ttft.p99=3msec", "3ms"),
    ],
)
def test_what_was_probably_meant_is_the_nearest_choice(text: str, nearest: str) -> None:
    with pytest.raises(InputError) as found:
        parse_slos([text])
    assert found.value.nearest == nearest
    assert parse_slos([nearest if "=" in nearest else f"p99={nearest}"])


@given(st.text("ptf9.=<>:;, 12smhd[]ine-", max_size=24))
def test_a_text_is_an_objective_or_refused(text: str) -> None:
    with suppress(InputError):
        assert parse_slos([text])


sides = st.tuples(st.none() | st.integers(1, 10**6), st.none() | st.integers(2, 10**6))


def bounds(side: str, least: int | None, below: int | None) -> list[str]:
    """Bounds of a length in one of their spellings; none if they leave no length."""
    if least is not None and below is not None and below <= least:
        return []
    found = [f"{side}>={least}"] if least is not None else []
    return found + ([f" {side} <= {below - 1}"] if below is not None else [])


@given(st.sampled_from([m for m in sorted(LATENCY_METRICS) if LATENCY_METRICS[m].is_per_request]), stats, sides, sides)
def test_conditions_hold_for_the_requests_that_they_name(
    metric: str, stat: str, inputs: tuple[int | None, int | None], outputs: tuple[int | None, int | None]
) -> None:
    parts = bounds("in", *inputs) + bounds("OUT", *outputs)
    if not parts:
        return
    (slo,) = parse_slos([f"{metric}[{','.join(reversed(parts))}].{stat}=2s"])
    assert parse_slos([slo.text]) == (slo,)
    assert parse_slos([f"ttft.p1=1s,{slo.text}"])[1] == slo
    assert LengthCondition.parse(slo.latency.condition.text) == slo.latency.condition  # type: ignore[union-attr]
    assert "with" in slo.words
    condition = slo.latency.condition
    assert condition is not None
    for i in {1, 10**6, *(n + d for n in inputs if n for d in (-1, 0, 1))}:
        for o in {1, 10**6, *(n + d for n in outputs if n for d in (-1, 0, 1))}:
            held = all(
                (least is None or tokens >= least) and (below is None or tokens < below)
                for tokens, side, (least, below) in ((i, "in", inputs), (o, "out", outputs))
                if bounds(side, least, below)
            )
            assert condition.holds(np.array([i]), np.array([o])).tolist() == [held]


def test_a_condition_is_written_in_its_shortest_form_and_said_in_words() -> None:
    (slo,) = parse_slos(["e2e[out<256, in<1K, in>=256].p99=5s"])
    assert slo.name == "e2e[in>=256,in<1k,out<256].p99"
    assert slo.words == (
        "99 % of requests with 256 to 999 input tokens and fewer than 256 output tokens have an end-to-end latency of "
        "at most 5 s"
    )
    assert parse_slos(["normalized[out>=100].mean=60ms"])[0].words == (
        "the mean end-to-end latency per output token of requests with at least 100 output tokens is at most 60 ms"
    )
    both = parse_slos(["e2e[in<1k,out<256].p99=5s,e2e.p99=9s", "e2e[in>=1000].p99=9s"])
    assert [slo.name for slo in both] == ["e2e[in<1k,out<256].p99", "e2e.p99", "e2e[in>=1k].p99"]


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("e2e[in<1k.p99=5s", "e2e"),
        ("e2e[in=128].p99=5s", "in<128"),
        ("e2e[tokens<5].p99=5s", "in<5"),
        ("e2e[in<1.5].p99=5s", "in<1"),
        ("e2e[in<1k,in<2k].p99=5s", "in<"),
        ("e2e[in>=1k,in<100].p99=5s", "in<1001"),
        ("e2e[out<1].p99=5s", "out<2"),
        ("e2e[].p99=5s", "in<1k"),
        ("e2e.p99[in<1k]=5s", "e2e[in<1k].p99=5s"),
        ("[in<1k].p99=5s", "ttft[in<1k].p99=5s"),
        ("p99[in<1k]=5s", "ttft[in<1k].p99=5s"),
        ("e2e[in<1k][out<5].p99=5s", "ttft[in<1k]"),
        ("itl[in<1k].p99=5s", "no condition"),
        ("lunch[in<1k].p99=5s", "ttft"),
    ],
)
def test_bad_conditions_name_the_nearest_good_one(text: str, nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_slos([text])
    assert nearest in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("e2e[in<1k,out<256.p99=20s", "e2e[in<1k,out<256].p99=20s"),
        ("ttft.p99=1s,e2e[in<1k.mean=20s,tpot.p90=9ms", "ttft.p99=1s,e2e[in<1k].mean=20s,tpot.p90=9ms"),
        ("e2e[in<1k.p99=5s,ttft[out<5.p9=1s", "e2e[in<1k].p99=5s,ttft[out<5].p9=1s"),
        ("e2e[in<1k", "e2e[in<1k].p99=2s"),
        ("e2e[[", "e2e[in<1k,out<256].p99=5s"),
    ],
)
def test_a_missing_bracket_is_named(text: str, nearest: str) -> None:
    with pytest.raises(InputError, match="] is missing") as caught:
        parse_slos([text])
    assert caught.value.nearest == nearest


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
        ("interactivty.p90=30", "nearest valid choice: interactivity"),
        ("ttft.p0=2s", "p"),
        ("ttft.median=2s", "p50"),
        ("ttft.p100=2s", "p99.9"),
        ("ttft.p101=2s", "p99.9"),
        ("ttft.p99=2", "2s"),
        ("ttft.p99=2m", "2min"),
        ("ttft.p99=0s", "1s"),
        ("ttft.p99=-2s", "2s"),
        ("ttft.p99=0", "choice: 1s"),
        ("ttft.p99=1e999s", "choice: 1s"),
        ("ttft.p99=fast", "2s"),
        ("ttft.p99", "ttft.p99=2s"),
        ("2s", "ttft.p99=2s"),
        ("ttft=2s", "choice: ttft.p99=2s"),
        ("TPOT=50ms", "choice: tpot.p99=50ms"),
        ("e2e[in<1k]=5s", "choice: e2e[in<1k].p99=5s"),
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


@given(st.text(max_size=20) | st.text("e2.p9=[]<>inout,15ks", max_size=24))
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


@pytest.mark.parametrize(("written", "nearest"), [("2", "2s"), ("500", "500ms")])
def test_a_limit_without_a_unit_is_answered_with_the_likely_one(written: str, nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_slos([f"ttft.p99={written}"])
    assert caught.value.nearest == nearest


@pytest.mark.parametrize(
    ("text", "rule", "nearest"),
    [
        ("energy=1J", "an SLO metric is one of ttft, tpot", "ttft"),
        ("throughput=1000", "an SLO metric is one of ttft, tpot", "ttft"),
        ("avg=2s", "an SLO statistic is mean or pNN", "mean"),
        ("meen=2s", "an SLO statistic is mean or pNN", "mean"),
    ],
)
def test_a_word_that_is_no_statistic_is_taken_for_a_metric(text: str, rule: str, nearest: str) -> None:
    """Energy was refused as a wrong percentile."""
    with pytest.raises(InputError) as refused:
        parse_slos([text])
    assert refused.value.rule.startswith(rule)
    assert refused.value.nearest == nearest
