"""What-if, explain, compare and analyze of networks: they agree with the plan, and with worlds of known prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalogs.errors import InputError
from catalogs.ui.charts import time_text
from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.networks.answer_file import any_answer, chosen_plan, read_network_answer
from planner.networks.plan import plan_network
from planner.networks.request import network_request
from planner.networks.schema import NetworkAnswer
from planner.networks.screen import render
from planner.networks.studies.analysis import JobQuery, analyze_job, job_document
from planner.networks.studies.comparison import compare_any, compare_network_answers
from planner.networks.studies.explain import explain_network
from planner.networks.studies.inputs import find_network_binding
from planner.networks.studies.whatif import NetworkChanges, parse_changes, what_if_network
from planner.report.write import names_of_files
from planner.studies.capacity_inputs import ARRIVALS, COMPUTE
from tests.planner.networks.known_jobs import one, world

#: A plan with one candidate.
KEYS: dict[str, Any] = {
    "model": "resnet50", "hardware": "h100x2", "slo": "e2e.p90=20ms", "rate": 300, "modes": "compiled",
    "precisions": "bf16", "max_batch": 1, "max_instances": 1, "tariff.usd_per_hour": 4.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def answer() -> NetworkAnswer:
    return plan_network(network_request(KEYS))


@pytest.fixture(scope="module")
def file(answer: NetworkAnswer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("studies") / "answer.json"
    path.write_text(json.dumps(answer.document()))
    return path


def change(answer: NetworkAnswer, **given: Any) -> Any:
    return what_if_network(answer, chosen_plan("whatif", answer), NetworkChanges(**given))


def test_a_change_to_the_same_value_changes_nothing(answer: NetworkAnswer) -> None:
    found = change(answer, keys={"precision": "bf16"})
    assert not found.breaks
    assert found.comparison.differs == ()
    written_out = change(answer, job="224x224")  # the default job of the plan, which leaves it out
    assert written_out.comparison.differs == ()
    assert [f.name for f in found.comparison.figures if f.a != pytest.approx(f.b)] == []


def test_twice_the_rate_takes_longer_and_too_much_breaks(answer: NetworkAnswer) -> None:
    assert answer.best is not None
    assert answer.best.capacity_requests_per_s is not None
    more = change(answer, requests_per_s=0.98 * answer.best.capacity_requests_per_s)
    waits = next(f for f in more.comparison.figures if f.name == "mean wait")
    assert waits.b > waits.a
    broken = change(answer, requests_per_s=1.2 * answer.best.capacity_requests_per_s)
    assert broken.breaks


def test_a_change_that_cannot_serve_the_rate_keeps_the_figures_that_are_known(answer: NetworkAnswer) -> None:
    found = change(answer, requests_per_s=1e5)
    assert found.plan is None
    assert "the queue grows" in found.breaks[0]
    best, figures = answer.best, {f.name: f for f in found.comparison.figures}
    assert best is not None
    assert best.capacity_requests_per_s is not None
    assert figures["planned jobs/s"].b == 1e5
    assert figures["capacity, jobs/s"].b == pytest.approx(best.capacity_requests_per_s, rel=0.05)
    assert figures["$ per hour"].b == best.usd_per_hour
    assert figures["a single job"].b == figures["a single job"].a
    assert figures["e2e.p90"].b is None
    too_large = {f.name: f.b for f in change(answer, keys={"max_batch": 100_000}).comparison.figures}
    assert too_large["capacity, jobs/s"] is None
    assert too_large["$ per hour"] == best.usd_per_hour


def test_whatif_counts_units_as_plan_does(answer: NetworkAnswer) -> None:
    best = answer.best
    assert best is not None
    figures = {f.name: f for f in change(answer, keys={"precision": "bf16"}).comparison.figures}
    shown = render(answer)
    for name, unit, amount in (("$", "$", best.usd_per_unit), ("Wh", " Wh", best.energy.wh_per_unit)):
        found = next(f for n, f in figures.items() if n.startswith(f"{name} per") and n.endswith("s"))
        count = int(found.name.split()[2].replace(",", ""))
        assert found.a == pytest.approx((amount or 0.0) * count)
        assert found.name.partition(" ")[2] in " ".join(shown.split())
        assert unit in shown


@pytest.mark.parametrize(
    ("given", "faster"),
    [
        ({"hardware": "l4x2"}, False),
        ({"keys": {"precision": "fp32"}}, False),
        ({"job": "batch=4"}, False),
        ({"keys": {"mode": "tensorrt"}}, True),
    ],
)
def test_each_kind_of_change_moves_a_single_job(answer: NetworkAnswer, given: dict[str, Any], faster: bool) -> None:
    found = change(answer, requests_per_s=10.0, **given)
    alone = next(f for f in found.comparison.figures if f.name == "a single job")
    assert (alone.b < alone.a) == faster


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (["max_batch"], "KEY=VALUE"),
        (["max_batch=2", "max_batch=3"], "twice"),
        (["kv_dtype=fp8"], "no such key"),
        (["hardware=l4"], "no such key"),
    ],
)
def test_what_cannot_be_changed_is_refused(settings: list[str], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        parse_changes(settings)


def test_an_answer_equals_itself_and_differs_from_a_faster_one(answer: NetworkAnswer) -> None:
    same = compare_network_answers(answer, answer)
    assert same.differs == ()
    assert all(f.better in ("same", "") for f in same.figures)
    other = plan_network(network_request(KEYS | {"rate": 600}))
    found = compare_any(answer, any_answer(other.document()))
    assert ("rate", "300", "600") in found.differs
    assert any("planned rate" in note for note in found.notes)


def test_what_binds_is_the_input_that_raises_the_capacity_most() -> None:
    """A world of known seconds has no resources to improve: only milder bursts raise its capacity."""
    assessor = world(lambda _: 0.1, slo="e2e.p90=0.5s", confidence=0.5)
    candidate = one()
    floor = assessor.evaluator.verdict(candidate, assessor.light_per_s(candidate))
    capacity = assessor.capacity(candidate, floor).requests_per_s
    steps: list[str] = []
    found = find_network_binding(assessor, candidate, capacity, steps.append)
    assert found is not None
    assert [gain.input for gain in found.binding] == [ARRIVALS]
    assert len(steps) == len(found.gains) + 1


def test_explain_names_what_binds_and_what_it_would_take(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("plan", app, ["explain", str(file), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    gains = {use["resource"]: use["gain"] for use in found["uses"]}
    binding = [use["resource"] for use in found["uses"] if use["binds"]]
    assert binding
    assert max(gains, key=gains.__getitem__) in binding
    assert any("cheapest that serves 300 jobs/s" in line for line in found["why"])
    assert found["more_capacity"]["goal_requests_per_s"] > 300
    assert {use["of"] for use in found["uses"] if use["of"]} == {"the time of a single job"}  # no batches of several
    held = [change for change in found["more_capacity"]["changes"] if change["holds"]]
    assert held
    assert len({change["words"] for change in held}) == len(held)  # no plan twice


def test_the_shares_of_resources_are_those_of_the_batches_of_the_plan() -> None:
    """Weights are read once for all jobs of a batch, so that batches are bound by arithmetic more than single jobs."""
    keys = {"model": "bge-large", "hardware": "l40s", "slo": "e2e.p99=100ms", "rate": 2000, "max_batch": 32}
    batched = plan_network(network_request(KEYS | keys))
    found = explain_network(batched)
    assert batched.best is not None
    batch = round(batched.best.metrics.jobs_per_batch)
    assert batch > 1
    assert {use.of for use in found.uses if use.of} == {f"the time of a batch of {batch}"}
    alone, used = batched.best.stages, {use.resource: use.share for use in found.uses}
    alone_share = sum(stage.compute_s for stage in alone) / sum(stage.total_s for stage in alone)
    assert used[COMPUTE] is not None
    assert used[COMPUTE] > alone_share


def test_the_commands_take_the_answer_of_a_network(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert run_command("plan", app, ["whatif", str(file), "--rate", "x1.01", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["holds"] is True
    assert run_command("plan", app, ["compare", str(file), str(file), "--json", str(out)]) == 0
    assert (
        run_command(
            "plan", app, ["report", str(file), "--html", str(tmp_path / "page.html"), "--csv", str(tmp_path / "t")]
        )
        == 0
    )
    written = {path.name for path in (tmp_path / "t").iterdir()}
    assert {"plans.csv", "stages.csv", "curve.csv", "report.json"} <= written <= names_of_files(0)
    assert read_network_answer(file) is not None
    for wrong in (["--workload", "chat"], ["--set", "kv_dtype=fp8"], ["--alternative", "9", "--rate", "x2"], []):
        assert run_command("plan", app, ["whatif", str(file), *wrong]) == 2


def test_a_refusal_is_explained_and_has_nothing_to_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "no.json"
    refused = plan_network(network_request(KEYS | {"slo": "e2e.p90=0.1ms"}))
    file.write_text(json.dumps(refused.document()))
    assert run_command("plan", app, ["explain", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "The only candidate does not meet the request." in shown
    assert "1 was ruled out: one job alone takes" in shown
    assert run_command("plan", app, ["whatif", str(file), "--rate", "x2"]) == 2
    assert "has no plan" in capsys.readouterr().err


def test_the_kernels_of_a_job_add_up_to_its_stages() -> None:
    for model, steps in (("resnet50", None), ("wan2.1-t2v-1.3b", 4)):
        found = analyze_job(JobQuery(model, "h100", 1, None, steps))
        document = job_document(found)
        assert sum(row["seconds"] for row in document["operators"]) == pytest.approx(document["job"]["device_s"])
        assert sum(document["bound_s"].values()) == pytest.approx(document["job"]["device_s"])
        assert document["job"]["seconds"] == pytest.approx(sum(stage["total_s"] for stage in document["stages"]))
        assert document["batches"][0]["seconds"] == pytest.approx(document["job"]["seconds"])


def test_a_format_of_8_bits_that_is_slower_than_16_says_why() -> None:
    """Times of products are summed here from the kernels of both formats; a network of wide layers gains from fp8."""
    narrow = analyze_job(JobQuery("sam2.1-large", "l40s"))
    document = job_document(narrow)
    seconds = {(row["mode"], row["precision"]): row["seconds"] for row in document["formats"]}
    assert seconds["compiled", "fp8"] > seconds["compiled", "bf16"]
    (why,) = [notice for notice in document["notices"] if "fp8 takes longer than bf16" in notice]
    assert "eager and compiled execution" in why
    products_s = {}
    for precision in ("bf16", "fp8"):
        kernels = analyze_job(JobQuery("sam2.1-large", "l40s", precision=precision)).kernels
        products_s[precision] = sum(kernel.seconds for kernel in kernels if kernel.kind == "gemm")
    assert f"take {time_text(products_s['fp8'])} instead of {time_text(products_s['bf16'])} (compiled)" in why
    gained = seconds["compiled", "fp8"] - seconds["compiled", "bf16"]
    assert products_s["fp8"] - products_s["bf16"] == pytest.approx(gained, rel=0.01)
    wide = job_document(analyze_job(JobQuery("wan2.1-t2v-14b", "h100")))
    assert not [notice for notice in wide["notices"] if "takes longer" in notice]


def test_analyze_takes_a_network_and_refuses_tokens(tmp_path: Path) -> None:
    given = ["analyze", "--model", "sam2.1-large", "--hw", "h100"]
    assert run_command("plan", app, [*given, "--batch", "2", "--html", str(tmp_path / "a.html")]) == 0
    assert "sam2.1-large" in (tmp_path / "a.html").read_text()
    for wrong in (
        ["--context", "5"],
        ["--images", "2"],
        ["--mode", "fast"],
        ["--weight-dtype", "int3"],
        ["--batch", "0"],
    ):
        assert run_command("plan", app, [*given, *wrong]) == 2
    assert run_command("plan", app, ["analyze", "--model", "llama3.1-8b", "--hw", "h100", "--job", "512x512"]) == 2
