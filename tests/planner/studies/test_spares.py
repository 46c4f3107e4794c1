"""Spare replicas: the binomial formula and windows by hand, the fewest that hold, and one question end to end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta

from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command
from catalogs.ui.words import parse_duration
from planner.cli.main import app
from planner.cli.screens.studies import show_spares
from planner.problem.slo import parse_slos
from planner.sections import full_answer
from planner.studies.outages import FailingReplicas, Outage, binomial_bounds
from planner.studies.spares import Observe, SparesDocument, SpareStudy, needed_replicas
from tests.planner.screen_intervals import unlabelled_intervals

DAY_S = 86400.0
#: An answer that the tests of damaged files change.
ANSWER = Path(__file__).parents[2] / "fuzz" / "corpus" / "answer.json"
SLOS = parse_slos(["ttft.p99=1s"])


def test_the_binomial_formula_by_hand() -> None:
    """Up three quarters of the time: of three, two are up 3 * (3/4)^2 / 4 + (3/4)^3 of it."""
    failing = FailingReplicas(mtbf_s=300.0, restart_s=100.0)
    assert failing.availability == 0.75
    assert failing.enough_up(3, 2) == pytest.approx(54 / 64)
    assert failing.enough_up(2, 2) == pytest.approx(9 / 16)
    assert failing.fewest(2, 54 / 64 - 1e-9, 9) == 3
    assert failing.fewest(2, 0.9999999, 4) == 4  # no more than that


def test_drawn_outages_are_as_frequent_as_said() -> None:
    failing = FailingReplicas(mtbf_s=2 * DAY_S, restart_s=600.0)
    rng = np.random.default_rng(0)
    outages = [o for _ in range(3000) for o in failing.window(rng, (4,), DAY_S)]
    crashes = sum(len(o.starts_s) for o in outages)
    assert crashes == pytest.approx(3000 * 4 / 2.0, rel=0.05)
    assert all(o.starts_s[0] == 0.0 for o in outages)
    assert {o.most_down() for o in outages} == {(1,), (2,)}
    deep = next(o for o in outages if o.most_down() == (2,))
    assert [place for _, place, _ in deep.victims()][:2] == [0, 1]
    assert deep.length_s == deep.starts_s[-1] + 1200.0


def test_a_replica_that_is_back_may_fail_again() -> None:
    outage = Outage((0.0, 700.0), 600.0)
    assert outage.most_down() == (1,)
    assert list(outage.victims()) == [(0, 0, 0.0), (0, 0, 700.0)]


def late_if_down(needed: tuple[int, ...], kind: int, more: int) -> Observe:
    """Return a simulation in which all is late while replicas of a kind are down: `more` of them than are spare."""

    def observe(replicas: tuple[int, ...], outage: Outage | None, *_: float) -> Mapping[str, FloatArray]:
        if outage is None:
            return {"ttft": np.full(1000, 0.1)}
        at = np.arange(10_000) / 10_000 * outage.length_s
        starts = [s for s, pool in outage.failures if pool == kind]
        down = sum((((at >= s) & (at < s + outage.restart_s)).astype(int) for s in starts), np.zeros(len(at)))
        return {"ttft": np.where(down >= replicas[kind] - needed[kind] + more, 9.0, 0.1)}

    return observe


def study(mtbf_s: float, late_when: int, n_windows: int = 2000) -> SpareStudy:
    """Return a study of three needed replicas, where all is late while `late_when` more are down than are spare."""
    observe = late_if_down((3,), 0, late_when)
    return SpareStudy(observe, SLOS, FailingReplicas(mtbf_s, 600.0), 10.0, (3,), DAY_S, 0.9, 0, n_windows)


@pytest.mark.parametrize("mtbf_d", [3.0, 30.0])
def test_windows_by_hand(mtbf_d: float) -> None:
    """Ten minutes are 0.7 % of a day, twenty 1.4 %: a day of three replicas holds with at most one crash. Poisson."""
    tried = study(mtbf_d * DAY_S, late_when=1).tried((3,))
    mean = 3 / mtbf_d
    expected = math.exp(-mean) * (1 + mean)
    assert tried.ci_low - 0.01 <= expected <= tried.ci_high + 0.01
    assert tried.late_by_down["0"] == 0.0
    assert tried.late_by_down["1"] == pytest.approx(0.5, abs=0.01)  # restart and settling last as long


def test_the_fewest_is_found_from_above_and_from_below() -> None:
    assert study(300 * DAY_S, late_when=1).fewest()[0] == (3,)  # a day with two crashes is rare enough
    found, tried = study(0.5 * DAY_S, late_when=1, n_windows=500).fewest()
    assert found is not None
    (n,) = found
    assert n > 3
    held = {row.replicas: row.windows_held for row in tried}
    assert held[n] >= 0.9 > held[n - 1]
    # every request is late, whichever replica fails
    assert study(0.5 * DAY_S, late_when=-9, n_windows=50).fewest()[0] is None


def kinds_study(mtbf_s: float, needed: tuple[int, int], weak: int) -> SpareStudy:
    """Return a study where all is late while too few replicas of kind `weak` are up; the other kind is never missed."""
    observe, roles = late_if_down(needed, weak, 1), ("prefill", "decode")
    return SpareStudy(observe, SLOS, FailingReplicas(mtbf_s, 600.0), 10.0, needed, DAY_S, 0.9, 0, 500, roles, (1, 2))


@pytest.mark.parametrize("weak", [0, 1])
def test_spares_are_of_the_kind_whose_failures_are_late(weak: int) -> None:
    """The formula gives every kind its spares; those of the kind that is never missed are taken away again."""
    found, tried = kinds_study(0.5 * DAY_S, (2, 2), weak).fewest()
    assert found is not None
    assert found[weak] > 2
    assert found[1 - weak] == 2
    row = next(row for row in tried if tuple(row.by_pool.values()) == found)
    kind = ("prefill", "decode")[weak]
    assert row.by_pool[kind] == found[weak]
    assert row.late_by_down[f"1 {('decode', 'prefill')[weak]}"] == 0.0
    assert row.late_by_down[f"{found[weak] - 2 + 1} {kind}"] > 0.0


def test_failures_of_several_kinds_are_counted_by_kind() -> None:
    """Two prefill replicas are down at once, and a decode replica later; victims are numbered within their kind."""
    outage = Outage((0.0, 100.0, 700.0), 600.0, (0, 0, 1))
    assert outage.most_down(2) == (2, 1)
    assert list(outage.victims()) == [(0, 0, 0.0), (0, 1, 100.0), (1, 0, 700.0)]
    rng = np.random.default_rng(1)
    drawn = [
        f for _ in range(2000) for o in FailingReplicas(DAY_S, 60.0).window(rng, (1, 3), DAY_S) for f in o.failures
    ]
    share = sum(pool for _, pool in drawn) / len(drawn)
    assert share == pytest.approx(3 / 4, abs=0.03)


def test_replicas_that_do_not_help_end_the_search() -> None:
    """Every request is late while all replicas are up: one more is tried, and the search ends."""
    late = SpareStudy(
        lambda *_: {"ttft": np.full(100, 9.0)}, SLOS, FailingReplicas(DAY_S, 600.0), 1.0, (3,), DAY_S, 0.9
    )
    found, tried = replace(late, n_windows=20).fewest()
    assert found is None
    assert len(tried) == 2


def test_gaps_between_tokens_stand_for_the_requests_they_belong_to() -> None:
    """Half of 40 gaps are late, so half of the requests count as late, however many gaps were sampled."""
    gaps = np.array([0.1] * 20 + [9.0] * 20)
    slos = parse_slos(["itl.p99=1s", "ttft.p99=1s"])
    one = SpareStudy(lambda *_: {}, slos, FailingReplicas(DAY_S, 600.0), 1.0, (3,), DAY_S, 0.9)
    counts = one._counts({"itl": gaps, "ttft": np.full(7, 0.1)}, 70.0)
    assert counts[:2].tolist() == [[70.0, 70.0], [35.0, 0.0]]


def test_more_spares_hold_more_windows() -> None:
    often = study(0.5 * DAY_S, late_when=1, n_windows=500)
    held = [often.tried((n,)).windows_held for n in (3, 4, 5, 6)]
    assert held == sorted(held)
    assert held[0] < held[-1]


def test_the_interval_of_a_share() -> None:
    """None of n seen: the upper end solves (1 - p)^n = 5 %."""
    assert binomial_bounds(0, 100, 0.9)[1] == pytest.approx(1 - 0.05 ** (1 / 100))
    for met, n, level in ((1, 5, 0.9), (50, 100, 0.8), (90, 100, 0.9), (999, 1000, 0.99)):
        tail = (1 - level) / 2
        low, high = beta.ppf(tail, met, n - met + 1), beta.ppf(1 - tail, met + 1, n - met)
        assert binomial_bounds(met, n, level) == pytest.approx((low, high), rel=1e-9)


def test_needed_and_times() -> None:
    assert needed_replicas(12.0, 4.0) == 3
    assert needed_replicas(12.1, 4.0) == 4
    assert (parse_duration("30d"), parse_duration("10min"), parse_duration("90 s")) == (30 * DAY_S, 600.0, 90.0)
    with pytest.raises(InputError, match="10min"):
        parse_duration("soon")


@pytest.mark.parametrize(
    ("survive", "replicas", "says"),
    [
        (None, 2, ""),
        ("1 replica lost", 2, "no part of this question: keep the 3 planned replicas"),
        ("1 replica lost", 3, "requires the objectives with 1 replica lost at any time (--survive)"),
    ],
)
def test_a_loss_that_the_answer_survives_is_said_to_be_no_part_of_the_question(
    survive: str | None, replicas: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = SparesDocument(
        schema_version=1,
        mtbf_s=30 * DAY_S,
        restart_s=600.0,
        availability=0.999,
        requests_per_s=8.0,
        window_s=DAY_S,
        windows_must_hold=0.9,
        n_windows=2000,
        ci_level=0.9,
        slo=["ttft.p99=1s"],
        needed=2,
        formula=0,
        late_allowed=0.01,
        spares=replicas - 2,
        replicas=replicas,
        confidence=0.9,
        slow_factor=1.1,
        held_as_simulated=0.95,
        spares_as_simulated=0,
        tried=[],
        planned_replicas=3,
        survive=survive,
        usd_per_hour_planned=None,
        usd_per_hour=None,
        most=8,
    )
    show_spares(found)
    shown = " ".join(capsys.readouterr().out.split())
    assert says in shown
    assert ("--survive" in shown) == (survive is not None)
    assert ("keep the 3 planned replicas" in shown) == (survive is not None and replicas < 3)


def test_spares_of_a_plan_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer, target = tmp_path / "a.json", tmp_path / "s.json"
    asked = ["--model", "llama3.2-1b", "--slo", "ttft.p90=1s", "--hw", "l4x4", "--precision", "native"]
    fixed = ["--set", "search.trials=1", "--set", "tensor_parallel=1", "--rate", "8", "--json", str(answer)]
    fixed += ["--survive", "1"]
    assert run_command("plan", app, [*asked, *fixed]) == 0
    terms = ["--mtbf", "1d", "--restart", "2min", "--window", "4h"]
    status = run_command("plan", app, ["spares", str(answer), *terms, "--json", str(target)])
    found = json.loads(target.read_text())
    assert status == (0 if found["spares"] is not None else 1)
    assert found["replicas"] == found["needed"] + found["spares"]
    row = next(row for row in found["tried"] if row["replicas"] == found["replicas"])
    assert row["holds"]
    assert row["ci_low"] <= row["windows_held"] <= row["ci_high"]
    assert float(row["late_by_down"]["0"]) < 0.1
    shown = capsys.readouterr().out
    assert "spare replicas" in shown
    assert found["survive"] == "1 replica lost"
    assert " of windows meet the objectives (90 % interval: " in shown
    assert unlabelled_intervals(shown) == []


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        (["--mtbf", "often", "--restart", "2min"], "10min"),
        (["--mtbf", "9d", "--restart", "1h", "--window", "2h"], "--window 10h"),
        (["--mtbf", "1h", "--restart", "10min"], "--mtbf 200min"),
        (["--mtbf", "1d", "--restart", "1min", "--held", "2"], "0.9"),
    ],
)
def test_bad_terms_are_one_line_and_the_answer_is_read_once(
    terms: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[Path]()
    monkeypatch.setattr(full_answer, "read_json", lambda path, *_: read.append(path) or json.loads(path.read_text()))
    assert run_command("plan", app, ["spares", str(ANSWER), *terms]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert says in err
    assert read == [ANSWER]
