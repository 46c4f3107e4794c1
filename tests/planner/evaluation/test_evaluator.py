"""The evaluator's parts: hardware parsed once, variants that share what they do not change, several hardware."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from calibration.accuracy.regime import Regime
from catalogs.hardware import catalog as hardware_names
from catalogs.hardware.catalog import parse_hardware, with_count
from catalogs.workloads.workload import load_workload
from planner.answer.replica_counts import ReplicaChoice
from planner.evaluation.closed_forms.candidate_forms import StepTimes
from planner.evaluation.closed_forms.queueing import LIGHT
from planner.evaluation.multi_hardware import NOTHING_MEASURED, HardwareChoiceEvaluator, open_evaluator
from planner.evaluation.observation import Load
from planner.evaluation.run_sizes import RunSizes
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.evaluation.varied_workload import VariedWorkload
from planner.pipeline import make_plan
from planner.problem.price_list import PriceList
from planner.problem.request import DISAGGREGATED, PlanRequest, SearchOptions
from planner.problem.slo import parse_slos
from planner.problem.tariff import Tariff
from simulator.core.batch import BatchShape
from simulator.costs.step_cost import StepCost

SLOS = parse_slos(["ttft.p90=2s"])


def request(hardware: str, **asked: object) -> PlanRequest:
    asked |= {"workload": "lmsys-turns", "precisions": ("native",)}
    return PlanRequest(model="llama3.2-1b", hardware=hardware, slos=SLOS, **asked)  # type: ignore[arg-type]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts every text that is parsed as hardware."""
    counts: Counter[str] = Counter()
    nodes = hardware_names._NODES

    class CountingPattern:
        @staticmethod
        def match(plain: str) -> re.Match[str] | None:
            counts[plain] += 1
            return nodes.match(plain)

    monkeypatch.setattr(hardware_names, "_NODES", CountingPattern)
    return counts


@pytest.mark.parametrize("hardware", ["l4x2", "l4x2,l40sx1"])
def test_a_plan_parses_each_hardware_text_once(hardware: str, parsed: Counter[str]) -> None:
    asked = request(hardware, requests_per_s=1.0, search=SearchOptions(trials=2))
    evaluator = open_evaluator(asked)
    answer = make_plan(asked, evaluator, evaluator.elsewhere).document()
    assert answer["feasible"]
    texts = hardware.split(",")
    assert [parsed[text] for text in texts] == [1] * len(texts)
    names = {text.partition("x")[0] for text in texts}  # a calibration may look up the accelerator it is of
    assert set(parsed) <= {*texts, *names}


@pytest.mark.usual_runs
@pytest.mark.parametrize(
    ("objective", "quick", "full"),
    [
        ("ttft.mean=1s", 300, 1000),  # no percentile: the smallest sizes
        ("ttft.p90=1s", 300, 1000),  # 160 requests would leave 16 beyond the percentile
        ("ttft.p99=1s", 320, 1600),
        ("ttft.p99.9=1s", 3200, 16_000),
        ("ttft.p99.99=1s", 4000, 20_000),  # 160,000 are too many
    ],
)
def test_runs_are_long_enough_for_the_highest_percentile(objective: str, quick: int, full: int) -> None:
    assert RunSizes.for_slos(parse_slos([objective])) == RunSizes(quick, full)
    assert RunSizes.for_slos(parse_slos([objective, "tpot.p50=40ms"])) == RunSizes(quick, full)


@pytest.mark.parametrize(("n_input", "n_output"), [(4000, 1), (100, 400)])
def test_a_light_load_is_a_small_share_of_the_saturation_rate(n_input: int, n_output: int, tmp_path: Path) -> None:
    """With long prompts and one token of output, nearly all of the work is prefill."""
    lengths = f"input_tokens: {{constant: {n_input}}}\noutput_tokens: {{constant: {n_output}}}\n"
    path = tmp_path / "load.yaml"
    path.write_text(f"arrivals: {{poisson: {{requests_per_s: 1}}}}\nrequests: 1000\nseed: 0\n{lengths}")
    asked = request("l4x4", also=(DISAGGREGATED,)).replace(workload=str(path))
    found = open_evaluator(asked).evaluators[parse_hardware("l4x4")]
    split = {bool(c.split): c for c in found.space()}
    assert False in split
    assert True in split or n_output == 1
    for candidate in split.values():
        light, saturated = found.light_requests_per_s(candidate), found.fluid_requests_per_s(candidate)
        assert 0 < light <= LIGHT * saturated


@pytest.fixture(scope="module")
def two() -> HardwareChoiceEvaluator:
    return open_evaluator(request("l4x2,l40sx1"))


def test_every_candidate_has_its_evaluator(two: HardwareChoiceEvaluator) -> None:
    assert {two.of(c).names.hardware.text for c in two.space()} == {"l4x2", "l40sx1"}
    for c in two.space():
        assert two.names_of(c).hardware == c.hardware
        assert c in two.of(c).space()


def test_errors_before_and_after_a_run_are_those_of_one_regime(two: HardwareChoiceEvaluator) -> None:
    for c in two.space()[:1]:
        mine = two.of(c)
        choice = ReplicaChoice(c, mine.names, mine.closed_forms, mine.closed_forms.deployments.memory(c))
        ran = mine.detail(c, Load(1.0, 100, 0))
        assert Regime("ada", "dense") == two.stated_error(c).regime == choice.error.regime == ran.error.regime


def test_a_variant_shares_what_it_does_not_change(two: HardwareChoiceEvaluator) -> None:
    c = two.space()[0]
    plain, load = two.of(c), Load(1.0, 100, 0)
    plain.observe(c, load)
    before = plain.n_requests_simulated
    assert plain.with_().observe(c, load) is plain.observe(c, load)
    longer = plain.with_(workload=VariedWorkload.of(load_workload("lmsys-turns"), output_factor=2.0))
    assert longer.mean_output_tokens == pytest.approx(2 * plain.mean_output_tokens, rel=0.01)
    assert longer.deployments.compiled(c) is plain.deployments.compiled(c)
    longer.observe(c, load)
    assert plain.n_requests_simulated == before


def test_slower_steps_are_the_same_runs_in_slower_time(two: HardwareChoiceEvaluator) -> None:
    c = two.space()[0]
    plain, slower = two.of(c), two.of(c).with_(step_factor=2.0)
    at_two, at_one = plain.observe(c, Load(2.0, 100, 0)), slower.observe(c, Load(1.0, 100, 0))
    assert at_one.samples_s["ttft"] == pytest.approx(2 * at_two.samples_s["ttft"])
    assert slower.fluid_requests_per_s(c) == pytest.approx(plain.fluid_requests_per_s(c) / 2)
    assert slower.guess_s(c, 1.0, "tpot") == pytest.approx(2 * plain.guess_s(c, 2.0, "tpot"))
    assert slower.utilisation(c, 1.0).full == pytest.approx(plain.utilisation(c, 2.0).full)
    assert slower.runs.cache is plain.runs.cache
    with pytest.raises(ValueError, match="step factor"):
        slower.detail(c, Load(1.0, 100, 0))


def test_a_slower_host_and_a_power_limit_change_the_deployments(two: HardwareChoiceEvaluator) -> None:
    c, load = two.space()[0], Load(1.0, 100, 0)
    plain = two.of(c)
    waits_s = {
        name: float(evaluator.observe(c, load).samples_s["tpot"].mean())
        for name, evaluator in (
            ("plain", plain),
            ("host", plain.with_(host_factor=4.0)),
            ("limit", plain.with_(power_limit_w=50.0)),
        )
    }
    assert waits_s["host"] > waits_s["plain"] < waits_s["limit"]


def test_a_price_of_ones_own_is_shared_by_accelerators() -> None:
    whole = open_evaluator(request("l4x2")).names.hardware
    prices = PriceList(Tariff(usd_per_hour=3.0), whole)
    half = prices.price(with_count(whole, 1))
    assert half is not None
    assert (half.usd_per_hour, half.note) == (1.5, "your price in proportion: 1 of 2 accelerators")
    looked_up = prices.of_other(whole).price(whole)
    assert looked_up is not None
    assert looked_up.usd_per_hour != 3.0


def test_the_stated_error_does_not_depend_on_the_candidate_that_comes_first() -> None:
    """Candidates that differ only in limits share one error, whatever a worker process evaluated before."""
    question = PlanRequest(model="llama3.1-8b", hardware="l40sx2", slos=SLOS, workload="lmsys-turns")
    first, last = open_evaluator(question), open_evaluator(question)
    space = first.space()
    assert len({(c.max_num_seqs, c.max_num_batched_tokens) for c in space}) > 1
    forwards = {c: first.stated_error(c) for c in space}
    backwards = {c: last.stated_error(c) for c in reversed(space)}
    assert forwards == backwards
    by_replica: dict[tuple[object, ...], set[float]] = {}
    for candidate, error in forwards.items():
        by_replica.setdefault((candidate.hardware.text, candidate.replicas, *candidate.replica_choices), set()).add(
            error.operator_error
        )
    assert all(len(found) == 1 for found in by_replica.values())


def test_hardware_that_is_measured_in_part_or_not_at_all_is_said_to_be() -> None:
    found = open_evaluator(PlanRequest(model="llama3.1-8b", hardware="h100x1,mi300xx1,tpu-v6ex1", slos=SLOS))
    assert f"{NOTHING_MEASURED}: mi300xx1" in found.notices  # its products are in dtypes that were not measured
    assert any(line.startswith("no calibration") and line.endswith("tpu-v6ex1") for line in found.notices)


@pytest.mark.parametrize(
    ("model", "words"), [("gpt-oss-120b", "experts"), ("deepseek-v3", "matrix products and experts")]
)
def test_only_what_the_model_runs_is_said_to_be_measured(model: str, words: str) -> None:
    """Products measured for other models were said to be measured where the evidence of the plan had only estimates."""
    found = open_evaluator(PlanRequest(model=model, hardware="h200x8,mi300xx8", slos=SLOS))
    some = "measured for some of the data types and layouts of this model, all else roofline estimates: mi300xx8"
    assert f"{words} {some}" in found.notices


def test_the_calibration_of_a_run_tells_roofline_estimates() -> None:
    for hardware, rough in (("mi300xx1", True), ("h100x1", False)):
        evaluator = open_evaluator(PlanRequest(model="llama3.2-1b", hardware=hardware, slos=SLOS))
        found = evaluator.detail(evaluator.space()[0], Load(1.0, 30, 0))
        assert (found.calibration["roofline_fraction"] > 0.5) is rough  # type: ignore[operator]


def test_closed_forms_compute_the_seconds_of_each_step_once() -> None:
    calls: Counter[tuple[object, ...]] = Counter()

    class Cost:
        def cycle_s(self, shape: BatchShape) -> float:
            calls[shape.counts() if not shape.ranks else ("ranks",)] += 1
            return shape.decodes + 0.5 * shape.prefill_tokens + 0.25 * shape.queries

    known = StepTimes(Cost()).cycle_s  # type: ignore[arg-type]
    drafting = BatchShape(decodes=4, logits=4).with_counts(queries=3)
    of_ranks = BatchShape(decodes=4, logits=4, ranks=(BatchShape(decodes=4, logits=4),))
    shapes = [BatchShape(decodes=4, logits=4), drafting, BatchShape(prefill_tokens=4, prefill_chunks=1), of_ranks]
    for _ in range(2):
        assert [known(shape) for shape in shapes] == [4.25, 4.75, 2.25, 4.25]
    assert calls.pop(("ranks",)) == 2
    assert len(calls) == 3
    assert set(calls.values()) == {1}


def test_candidates_with_one_step_cost_share_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[tuple[object, ...]] = Counter()
    plain = StepCost.cycle_s

    def counted(self: StepCost, shape: BatchShape) -> float:
        calls[id(self), shape.counts()] += 1
        return plain(self, shape)

    monkeypatch.setattr(StepCost, "cycle_s", counted)
    evaluator = open_evaluator(request("l4x2"))
    costs = {id(evaluator.of(c).deployments.step_cost(c)) for c in evaluator.space() if evaluator.discard(c) is None}
    left = [c for c in evaluator.space() if evaluator.discard(c) is None]
    assert len(costs) < len(left)
    for candidate in left:
        evaluator.guess_s(candidate, evaluator.fluid_requests_per_s(candidate) / 2, "ttft", 0.9)
    assert calls
    assert set(calls.values()) == {1}


def test_runs_on_a_trace_have_the_rate_of_the_load_and_other_requests_for_each_seed(tmp_path: Path) -> None:
    """The first tenth of the trace has a third of the mean rate and short outputs: it must not stand for the whole."""
    gaps_s = [3.0] * 400 + [0.78] * 3600
    times = np.cumsum(gaps_s).tolist()
    rows = "".join(f"{t},200,{8 if i < 400 else 16}\n" for i, t in enumerate(times))
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    asked = PlanRequest(model="llama3.2-1b", hardware="l4", slos=SLOS, workload=str(path), requests_per_s=4.0)
    cache = SimulatedEvaluator.of(asked, parse_hardware("l4")).runs.cache
    runs = [cache.workload.materialise(seed, 300, 4.0) for seed in range(6)]
    for drawn in runs:
        assert 299 / (drawn.arrival_s[-1] - drawn.arrival_s[0]) == pytest.approx(4.0)
        assert drawn.output_tokens.mean() == pytest.approx(0.1 * 8 + 0.9 * 16, rel=0.01)
    assert len({drawn.output_tokens.tobytes() + np.diff(drawn.arrival_s).tobytes() for drawn in runs}) > 1
