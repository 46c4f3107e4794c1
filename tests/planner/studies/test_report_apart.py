"""A page and an explanation of prefill and decode servers: each kind taken apart, what cannot be made says so."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from catalogs.ui.entry_point import run_command
from planner.answer.answer_schema import Answer
from planner.cli.main import app
from planner.sections.full_answer import read_answer
from planner.studies.bottleneck import PoolUse, simulated_pool_uses
from planner.studies.capacity_inputs import API_SERVER, ARRIVALS, MEMORY, TRANSFER, capacity_inputs
from planner.studies.rerun import Rerun
from simulator.analysis.bottleneck import IDLE


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An answer whose best plan is 1 prefill + 1 decode: the search's own, put first."""
    target = tmp_path_factory.mktemp("apart") / "a.json"
    asked = ["--model", "llama3.2-1b", "--hw", "l4x2", "--slo", "tpot.p99=16ms,ttft.p90=5s", "--precision", "native"]
    asked += ["--confidence", "0.5"]
    wide = [
        "--workload",
        "azure-conv",
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
    plans.sort(key=lambda p: not p["deployment"]["disaggregation"])
    target.write_text(json.dumps(answer | {"best": plans[0], "alternatives": plans[1:]}))
    return target


@pytest.fixture(scope="module")
def answer(path: Path) -> Answer:
    return read_answer(path)


@pytest.fixture(scope="module")
def parts(answer: Answer) -> list[PoolUse]:
    return simulated_pool_uses(Rerun.of(answer), answer.plans[0])


def test_each_kind_does_its_own_part(parts: list[PoolUse], answer: Answer) -> None:
    """The prefill server's busy time is its steps; nobody decodes there and no prompt is computed on the other."""
    prefill, decode = parts
    assert (prefill.role, decode.role) == ("prefill", "decode")
    assert prefill.bottleneck.samples.mean_decodes == 0
    assert prefill.bottleneck.samples.prefill_step_fraction == 1
    assert decode.bottleneck.samples.prefill_step_fraction == 0
    assert not any("prefill" in row.name for row in decode.bottleneck.samples.operators)
    assert not any("decode" in row.name for row in prefill.bottleneck.samples.operators)
    metrics = answer.plans[0].metrics or {}
    steps, used = decode.bottleneck.samples, decode.bottleneck
    busy_s = used.replica_s - used.steps_s[IDLE]
    assert busy_s == pytest.approx(steps.n_steps * metrics["itl_s"]["mean"], rel=0.05)  # a token each step
    per_request = steps.mean_decodes * steps.n_steps / prefill.bottleneck.samples.n_steps
    # Two runs of some hundred requests, whose output lengths spread about as widely as they are long.
    assert per_request == pytest.approx(metrics["output_tokens_per_s"] / metrics["requests_per_s"], rel=0.25)
    rate = (
        prefill.bottleneck.samples.n_steps / prefill.bottleneck.replica_s
    )  # one prompt a step, nearly always, at this load
    assert rate == pytest.approx(answer.plans[0].requests_per_s, rel=0.15)


def test_inputs_are_those_of_each_kind_and_of_the_transfer(answer: Answer) -> None:
    """A change of one kind leaves the other as it is."""
    rerun = Rerun.of(answer)
    found = {each.words: each for each in capacity_inputs(rerun)}
    assert {f"{role}: {MEMORY}" for role in ("prefill", "decode")} <= set(found)
    assert {TRANSFER, ARRIVALS} <= set(found)
    plain = rerun.evaluator_of(0).deployments.part(rerun.candidates[0], 1)
    changed = found[f"decode: {API_SERVER}"].improved(2.0).deployments.part(rerun.candidates[0], 1)
    hosts = [[pool.resolved.engine.host.api_token_s for pool in part.deployments] for part in (plain, changed)]
    assert hosts[1] == [hosts[0][0], hosts[0][1] / 2]


def test_the_page_shows_both_kinds_and_says_what_it_has_not(path: Path, tmp_path: Path) -> None:
    page, tables = tmp_path / "a.html", tmp_path / "tables"
    short = ["--no-sensitivity", "--html", str(page), "--csv", str(tables)]
    assert run_command("plan", app, ["report", str(path), *short]) == 0
    text = page.read_text()
    said = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.S)
    for kind in ("Prefill servers.", "Decode servers."):
        assert f"{kind} Operators of the simulated run" in said
        assert f"{kind} KV = " in said
    assert "1 prefill x TP1 + 1 decode x TP1 on l4x2" in said
    rows: list[dict[str, Any]] = list(csv.DictReader((tables / "operators.csv").open()))
    assert {row["pool"] for row in rows} == {"prefill", "decode"}


def test_it_is_explained(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("plan", app, ["explain", str(path)]) == 0
    said = capsys.readouterr().out
    assert "decode: memory bandwidth" in said
    assert "20 % more capacity" in said
