"""Plans side by side, and the planned deployment changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalogs.deployments.key_texts import with_keys
from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command
from catalogs.ui.terminal import PIPED
from planner.cli.main import app
from planner.cli.screens.studies import _cells
from planner.problem.overrides import parse_keys
from planner.sections.full_answer import parse_answer
from planner.studies.comparison import Figure, compare_answers
from planner.studies.whatif import Changes, parse_rate, run_words, what_if
from tests.planner.report.test_plan_report import answer, data, planned

NOTHING = Changes(None, None, None, {})


def other(**block: Any) -> dict[str, Any]:
    """The shared answer with its best plan changed."""
    found = data()
    found["best"] |= block
    return found


def test_an_answer_is_the_same_as_itself() -> None:
    found = compare_answers(answer(), answer())
    assert found.differs == ()
    assert found.better_at("A") == found.better_at("B") == []
    assert set(found.better_at("same")) == {f.name for f in found.figures if f.lower_is_better is not None}
    assert found.notes == ()


def test_what_differs_and_who_is_better() -> None:
    mine = data()
    cheaper = other(
        capacity_requests_per_s=mine["best"]["capacity_requests_per_s"] / 2,
        cost=mine["best"]["cost"] | {"usd_per_hour": 1.0},
        deployment=mine["best"]["deployment"] | {"tensor_parallel": 2, "kv_blocks": 7},
    )
    cheaper["request"] |= {"rate": 3.0}
    found = compare_answers(answer(), parse_answer(cheaper))
    assert ("rate", "free", "3") in found.differs
    assert ("tensor_parallel", str(mine["best"]["deployment"]["tensor_parallel"]), "2") in found.differs
    assert not any(what == "kv_blocks" for what, *_ in found.differs)
    assert found.better_at("A") == ["capacity, requests/s"]
    assert found.better_at("B") == ["$ per hour"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("confidence", 0.8), ("users", 30), ("input_tokens", 500), ("output_tokens", 20), ("survive", "1")],
)
def test_every_key_of_the_load_and_of_the_objectives_is_compared(key: str, value: object) -> None:
    """Answers at two confidences were said to be of the same request, with other capacities."""
    changed = data()
    changed["request"] |= {key: value} | ({"rate": 1.0} if key == "survive" else {})
    found = compare_answers(answer(), parse_answer(changed))
    assert key in {what for what, *_ in found.differs}


def test_a_refused_answer_shows_its_closest_plan() -> None:
    no = data()
    why = {"binding_constraint": "too slow", "closest": no["best"], "what_would_meet_it": []}
    no |= {"feasible": False, "best": None, "alternatives": [], "infeasible": why}
    found = compare_answers(answer(), parse_answer(no))
    assert ("answer", "yes", "no") in found.differs
    assert found.figures
    assert "too slow" in found.notes[0]


def test_better_by_hand() -> None:
    assert Figure("x", "usd", 1.0, 2.0).better == "A"
    assert Figure("x", "rate", 1.0, 2.0, lower_is_better=False).better == "B"
    assert Figure("x", "rate", 1.0, 1.01).better == "same"
    assert Figure("x", "rate", 1.0, None).better == ""
    assert Figure("x", "rate", 1.0, 2.0, lower_is_better=None).better == ""
    assert Figure("x", "rate", 2.0, 1.0).change == -0.5


def test_shares_change_by_percentage_points() -> None:
    """A confidence that falls from 50 % to 25 % loses 25 points, not 50 %."""
    confidence = Figure("confidence in ttft.p99", "share", 0.5, 0.25, lower_is_better=False)
    assert confidence.change == -0.25
    assert confidence.as_dict()["change_is"] == "difference"
    assert Figure("x", "rate", 0.5, 0.25).as_dict()["change_is"] == "relative"
    assert _cells(confidence, ("A", "B"))[3] == "−25 points"
    assert _cells(Figure("x", "rate", 0.5, 0.25), ("A", "B"))[3] == "−50 %"
    assert Figure("kv", "share", 0.0, 0.1).change == pytest.approx(0.1)


def test_no_confidence_is_better_if_the_limits_differ() -> None:
    mine = data()["best"]["slo"]
    for limit_s, directions in ((mine[0]["limit_s"], {False}), (2 * mine[0]["limit_s"], {None})):
        changed = other(slo=[mine[0] | {"limit_s": limit_s, "probability_met": 0.5}, *mine[1:]])
        found = compare_answers(answer(), parse_answer(changed)).figures
        name = f"confidence in {answer().best.slo[0].name}"
        assert {f.lower_is_better for f in found if f.name == name} == directions


def test_the_command_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(data()))
    b.write_text(json.dumps(other(capacity_requests_per_s=1.0)))
    assert run_command("plan", app, ["compare", str(a), str(b)]) == 0
    screen = capsys.readouterr().out
    assert "A is better at: capacity, requests/s" in screen
    assert max(map(len, screen.splitlines())) <= PIPED


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.json"], "'B.json': Second answer; nearest valid choice: plan compare A.json B.json"),
        ([], "'A.json': Answer written by plan --json; nearest valid choice: plan compare A.json B.json"),
        (["a.json", "answr.json"], "got 'answr.json'; nearest valid choice: answer.json; hint: write it with plan"),
        (["A.JSON", "answer.json"], "got 'A.JSON'; nearest valid choice: a.json"),
        (["no/a.json", "a.json"], "got 'no/a.json'; hint: write it with plan"),
    ],
)
def test_an_answer_that_is_missing_is_one_line_with_the_nearest_choice(
    names: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "answer.json"):
        Path(name).write_text(json.dumps(data()))
    assert run_command("plan", app, ["compare", *names]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


@pytest.mark.parametrize(("text", "value"), [("x2", 20.0), ("X0.5", 5.0), ("12", 12.0)])
def test_rates(text: str, value: float) -> None:
    assert parse_rate(text, 10.0) == value


@pytest.mark.parametrize("text", ["", "x", "xx2", "-1", "x0", "inf", "nan", "2x"])
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="factor"):
        parse_rate(text, 10.0)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("+20%", "x1.2"),
        ("-50 %", "x0.5"),
        ("-100%", "x2"),
        ("2x", "x2"),
        ("0.5X", "x0.5"),
        ("10 rps", "10"),
        ("0", "x2"),
    ],
)
def test_a_rate_is_answered_with_the_one_that_was_meant(text: str, nearest: str) -> None:
    with pytest.raises(InputError) as found:
        parse_rate(text, 10.0)
    assert found.value.nearest == nearest


def test_a_rate_has_a_bound_after_its_factor() -> None:
    with pytest.raises(InputError, match="at most 100,000,000"):
        parse_rate("x1e9", 10.0)


def test_settings() -> None:
    assert parse_keys(["kv_dtype=fp8", "max_num_seqs = 64", "prefix_caching=false", "lora=null"]) == {
        "kv_dtype": "fp8",
        "max_num_seqs": 64,
        "prefix_caching": False,
        "lora": None,
    }
    for text, says in (
        ("kv_dtyp=fp8", "kv_dtype"),
        ("kv_dtype", "KEY=VALUE"),
        ("hardware=h100", "--hw"),
        ("lora={", "YAML"),
    ):
        with pytest.raises(InputError, match=says):
            parse_keys([text])
    with pytest.raises(InputError, match=r"twice.*max_num_seqs=2.*choice: max_num_seqs=1"):
        parse_keys(["max_num_seqs=1", "max_num_seqs=2"])


@pytest.mark.parametrize("key", ["rate", "workload"])
def test_what_has_an_option_of_its_own_is_answered_with_it(key: str) -> None:
    with pytest.raises(InputError, match=f"nearest valid choice: --{key}"):
        parse_keys([f"{key}=1"])


@pytest.mark.runs_of(600)
def test_nothing_changed_is_the_plan_again() -> None:
    """The same requests on the same deployment give the plan's own figures and its capacity, to the last digit.

    From the capacity that an answer of still shorter runs states, a search may find a little more.
    """
    longer = parse_answer(json.loads(planned()))
    plan = longer.plans[0]
    found = what_if(longer, plan, NOTHING)
    assert found.comparison.differs == ()
    assert found.breaks == ()
    assert found.plan is not None
    assert found.plan.metrics == plan.metrics
    assert [row.value_s for row in found.plan.slo] == [row.value_s for row in plan.slo]
    assert found.plan.capacity_requests_per_s == plan.capacity_requests_per_s


def test_twice_and_more_the_rate_breaks_and_says_what() -> None:
    plan = answer().plans[0]
    found = what_if(answer(), plan, Changes(4 * (plan.requests_per_s or 0.0), None, None, {}))
    assert any("it serves" in line for line in found.breaks)
    assert [what for what, *_ in found.comparison.differs] == ["requests/s"]


@pytest.mark.parametrize(
    ("value_s", "probability", "words"),
    [
        (None, 0.0, "an overloaded run"),
        (0.5, 0.0, "an overloaded run"),
        (3.0, 0.1, "a run that misses ttft.p99"),
        (1.9, 0.7, "a run within the limits, without the required confidence of ttft.p99"),
    ],
)
def test_a_run_is_only_overloaded_where_its_queue_grows(value_s: float | None, probability: float, words: str) -> None:
    plan = answer().plans[0]
    row = plan.slo[0].model_copy(update={
        "metric": "ttft", "stat": "p99", "limit_s": 2.0, "value_s": value_s, "met": False,
        "probability_met": probability,
    })  # fmt: skip
    assert run_words(plan.model_copy(update={"slo": [row]})) == words


def test_larger_hardware_is_billed_for_what_the_plan_uses() -> None:
    plan = answer().plans[0]
    keys = {"replicas": 3, "tensor_parallel": 1}
    found = what_if(answer(), plan, Changes(None, "h200x8", None, keys))
    assert found.plan is not None
    assert found.plan.cost is not None
    assert sum(part.count * part.accelerators for part in found.plan.cost.instances) == 3
    assert found.plan.usd_per_hour == pytest.approx(3.39 + 6.78)
    notes = found.comparison.notes
    assert any(note.startswith("billed: ") and "on demand, verda FIN-02" in note for note in notes)
    assert any("5 of the 8 accelerators of h200x8 are not used" in note for note in notes)


def test_accelerators_of_a_rented_instance_are_billed_although_they_are_not_used() -> None:
    """Two H100 that work together are only rented in instances of eight."""
    found = what_if(answer(), answer().plans[0], Changes(None, "h100x4", None, {"replicas": 1, "tensor_parallel": 2}))
    assert found.plan is not None
    assert found.plan.cost is not None
    assert found.plan.cost.idle_accelerators == 6
    notes = found.comparison.notes
    assert any(note.startswith("billed: ") and "6 of the 8 rented accelerators are not used" in note for note in notes)
    assert not any("not billed" in note for note in notes)


def test_settings_no_search_chooses_are_simulated() -> None:
    """Four seats: the batch stays small and the queue grows."""
    plan = answer().plans[0]
    found = what_if(answer(), plan, Changes(None, None, None, {"max_num_seqs": 4, "max_model_len": 4096}))
    assert found.breaks
    assert {what for what, *_ in found.comparison.differs} == {"max_num_seqs", "max_model_len"}


def test_another_version_of_the_engine_is_a_difference() -> None:
    """The deployments name the engine without its version, and the request with it."""
    plan = answer().plans[0]
    found = what_if(answer(), plan, Changes(None, None, None, {"engine": "vllm-0.17"}))
    assert found.comparison.differs == (("engine", "vllm", "vllm-0.17"),)
    assert {f.unit for f in found.comparison.figures if f.name.startswith("confidence in")} == {"confidence"}


def test_a_confidence_reads_the_same_in_the_table_and_below_it() -> None:
    """61.9 % is not 62 %: a confidence that is not reached never reads as if it were."""
    figure = Figure("confidence in ttft.p99", "confidence", 0.9, 0.619, lower_is_better=False)
    assert figure.change == pytest.approx(-0.281)
    assert _cells(figure, ("planned", "changed"))[2:4] == ("61 %", "−28 points")


def test_a_dotted_key_changes_one_key_of_a_block() -> None:
    block = {"a": 1, "b": {"c": 2, "d": 3}, "e": None}
    assert with_keys(block, {"b.c": 9, "e.f.g": 1}) == {"a": 1, "b": {"c": 9, "d": 3}, "e": {"f": {"g": 1}}}
    assert block["b"] == {"c": 2, "d": 3}
    with pytest.raises(InputError, match="not a block"):
        with_keys(block, {"a.x": 1})
    assert parse_keys(["disaggregation.prefill.tensor_parallel=2"]) == {"disaggregation.prefill.tensor_parallel": 2}
    with pytest.raises(InputError, match="disaggregation"):
        parse_keys(["disagregation.prefill_replicas=2"])


def test_a_plan_split_into_prefill_and_decode_servers_is_simulated() -> None:
    """A key of one half changes that half alone; the halves stay on one kind of hardware."""
    plan = answer().plans[0]
    split: dict[str, object] = {"disaggregation": {"prefill_replicas": 1, "decode_replicas": 1}}
    keys = split | {"disaggregation.decode.max_num_seqs": 7}
    found = what_if(answer(), plan, Changes(None, "h100x8", None, keys))
    assert found.plan is not None
    block = found.plan.deployment
    assert block["max_num_seqs"] == 7
    assert block["disaggregation"]["prefill"]["max_num_seqs"] == plan.deployment["max_num_seqs"]
    other_kind = split | {"disaggregation.prefill.hardware": "h200x1"}
    with pytest.raises(InputError, match="same kind of hardware"):
        what_if(answer(), plan, Changes(None, None, None, other_kind))


def test_what_does_not_fit_is_an_answer_and_nonsense_is_not() -> None:
    plan = answer().plans[0]
    tight = what_if(answer(), plan, Changes(None, None, None, {"gpu_memory_utilization": 0.1}))
    assert tight.plan is None
    assert "weights" in tight.breaks[0]
    for keys in (
        {"replicas": 99},
        {"tensor_parallel": 3},
        {"kv_dtype": "fp9"},
        {"disaggregation": {"prefill_replicas": 1}},
    ):
        with pytest.raises(InputError):
            what_if(answer(), plan, Changes(None, None, None, dict(keys)))


def test_another_calibration_is_refused() -> None:
    stale = data()
    stale["reproduce"]["calibration"] = "0" * 16
    found = parse_answer(stale)
    with pytest.raises(InputError, match="another calibration"):
        what_if(found, found.plans[0], NOTHING)


def test_the_command_asks_what_if(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(data()))
    assert run_command("plan", app, ["whatif", str(path)]) == 2
    assert "nothing is changed" in capsys.readouterr().err
    assert run_command("plan", app, ["whatif", str(path), "--hw", "rtx4090x2", "--set", "max_model_len=8192"]) in (
        0,
        1,
    )
    screen = capsys.readouterr().out
    assert "rtx4090x2" in screen
    assert max(map(len, screen.splitlines())) <= PIPED
