"""Prompts and decoding apart: ratios by closed form, pools that keep their bounds, runs of a part and of the whole."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from catalogs.deployments.resolve import resolve_pools
from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.evaluation.closed_forms.disaggregated import (
    RATIOS_ON_A_PART,
    RATIOS_ON_ALL_HARDWARE,
    DisaggregatedQueueing,
    ratios,
)
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.observation import Load
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.problem.candidate import Candidate
from planner.problem.request import DISAGGREGATED, PlanRequest
from planner.problem.slo import parse_slos

MODEL, HARDWARE = "llama3.2-1b", "l4x4"


def world(slo: str = "ttft.p90=1s", **asked: object) -> SimulatedEvaluator:
    request = PlanRequest(model=MODEL, hardware=HARDWARE, slos=parse_slos([slo]), also=(DISAGGREGATED,), **asked)  # type: ignore[arg-type]
    found = open_evaluator(request)
    return found.of(found.space()[0])


def queueing(found: SimulatedEvaluator, c: Candidate) -> DisaggregatedQueueing:
    return found.closed_forms.disaggregated(c)


@pytest.fixture(scope="module")
def plain() -> SimulatedEvaluator:
    return world()


def splits(found: SimulatedEvaluator) -> list[Candidate]:
    return [c for c in found.space() if c.split]


def test_every_ratio_fits_and_leaves_no_room(plain: SimulatedEvaluator) -> None:
    found = list(ratios(plain.request, plain.names))
    assert len(set(found)) == len(found) > 4 * RATIOS_ON_ALL_HARDWARE
    for c in found[::3]:
        assert c.accelerators <= 4 < c.accelerators + c.layout.accelerators
        pools = resolve_pools(c.deployment(MODEL, "vllm"))
        assert [(p.role, p.replicas) for p in pools] == [("prefill", c.split.replicas), ("decode", c.replicas)]


def test_only_a_handful_is_simulated_and_it_carries_most(plain: SimulatedEvaluator) -> None:
    kept = splits(plain)
    assert 0 < len(kept) <= RATIOS_ON_ALL_HARDWARE
    worst = min(min(queueing(plain, c).rates_per_s(plain.request.slos)) for c in kept)
    others = [c for c in ratios(plain.request, plain.names) if c not in kept and plain.discard(c) is None]
    assert all(min(queueing(plain, c).rates_per_s(plain.request.slos)) <= worst for c in others)
    unasked = open_evaluator(PlanRequest(model=MODEL, hardware=HARDWARE, slos=plain.request.slos)).space()
    assert [c for c in plain.space() if not c.split] == unasked


def test_the_rates_of_both_sides_by_hand(plain: SimulatedEvaluator) -> None:
    """Prompts: 80 % of a replica's time over what one takes. Decoding: Little's law, seats over their holding time."""
    c = splits(plain)[0]
    (_, prefill), (_, decode) = c.pools
    sides = queueing(plain, c)
    computed, decoded = sides.rates_per_s(plain.request.slos)
    assert computed == pytest.approx(0.8 * prefill.replicas / sides.prefill.prefill_s)
    model = sides.decode
    holding_s = model.step_s(model.seats) * model.output_tokens
    assert decoded == pytest.approx(decode.replicas * model.seats / holding_s)
    assert plain.fluid_requests_per_s(c) == pytest.approx(min(computed / 0.8, decoded))


def test_separate_pools_say_that_their_error_is_that_of_other_servers(plain: SimulatedEvaluator) -> None:
    together = next(c for c in plain.space() if not c.split)
    said = [sum("separate pools" in notice for notice in plain.facts(c).notices) for c in (splits(plain)[0], together)]
    assert said == [1, 0]


def test_a_promised_time_per_token_bounds_the_batch() -> None:
    tight = world("tpot.mean=12ms")
    c = splits(tight)[0]
    model = queueing(tight, c).decode
    _, decoded = queueing(tight, c).rates_per_s(tight.request.slos)
    full = c.replicas * model.seats / (model.step_s(model.seats) * tight.mean_output_tokens)
    assert decoded < full


def test_each_pool_is_bounded_by_what_it_does() -> None:
    tokens = world("tpot.mean=1us")
    assert not splits(tokens)
    c = next(ratios(tokens.request, tokens.names))
    found = tokens.discard(c)
    assert found is not None
    assert found.constraint == "tpot.mean"


def test_a_rate_asks_for_parts_of_the_hardware() -> None:
    by_text: dict[str, int] = {}
    for c in splits(world(requests_per_s=2.0)):
        by_text[c.hardware.text] = by_text.get(c.hardware.text, 0) + 1
    assert set(by_text) == {"l4x2", "l4x3", "l4x4"}
    assert max(by_text.values()) <= RATIOS_ON_A_PART


def test_an_even_part_stands_for_the_whole(plain: SimulatedEvaluator) -> None:
    """Two pairs under twice the load of one, which is what is simulated first."""
    c = next(c for c in ratios(plain.request, plain.names) if (c.split.replicas, c.replicas) == (2, 2))
    assert plain.deployments.even_parts(c) == math.gcd(2, 2)
    rate = 0.4 * plain.fluid_requests_per_s(c)
    part, whole = (plain.observe(c, Load(rate, 600, 0, entire)) for entire in (False, True))
    assert part.stable
    assert whole.stable
    for metric in ("tpot", "e2e"):
        mean_s = [float(o.samples_s[metric].mean()) for o in (part, whole)]
        assert mean_s[0] == pytest.approx(mean_s[1], rel=0.1)


def test_a_plan_apart_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Decoding alone fits the time per token at a higher rate; the answer can be deployed and given spares.

    One decode step alone takes 11.9 ms on the roofline of an L4, so a limit of 12 ms would leave no room for a batch.
    """
    target = tmp_path / "a.json"
    asked = ["--model", MODEL, "--hw", "l4x2", "--slo", "tpot.p99=13ms,ttft.p90=5s", "--precision", "native"]
    asked += ["--confidence", "0.5"]
    wide = [
        "--set",
        "also=disaggregated",
        "--set",
        "tensor_parallel=1",
        "--set",
        "kv_dtype=bf16",
        "--set",
        "search.trials=4",
    ]
    assert run_command("plan", app, [*asked, *wide, "--json", str(target)]) == 0
    answer = json.loads(target.read_text())
    plans = [answer["best"], *answer["alternatives"]]
    apart = [p for p in plans if p["deployment"]["disaggregation"]]
    assert apart
    assert apart[0]["deployment"]["disaggregation"]["prefill_replicas"] == 1
    assert "1 prefill x TP1 + 1 decode x TP1" in capsys.readouterr().out
    place, out = str(plans.index(apart[0])), tmp_path / "out"
    written = ["deploy", str(target), "--alternative", place, "--target", "vllm", "--out", str(out)]
    assert run_command("plan", app, written) == 0
    assert "kv_producer" in (out / "serve.sh").read_text()
    capsys.readouterr()
    assert run_command("plan", app, ["spares", str(target), "--mtbf", "9d", "--restart", "1min"]) == 0
    assert "spare" in capsys.readouterr().out


def test_survival_is_not_reckoned_apart(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", MODEL, "--hw", HARDWARE, "--slo", "p99=2s", "--set", "also=disaggregated"]
    assert run_command("plan", app, [*asked, "--survive", "1", "--rate", "2"]) == 2
    assert "one kind of replica" in capsys.readouterr().err


def test_a_load_over_time_is_of_one_kind() -> None:
    with pytest.raises(InputError, match="one kind of replica"):
        world(over_time=True, requests_per_s=1.0)
