"""Every question is answered for every kind of answer: colocated, prefill and decode servers, several hardware."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.deploy.targets.registry import TARGETS
from planner.problem.candidate import replicas_words
from tests.planner.short_runs import shortened

_PLAN = (
    *("--model", "llama3.2-1b", "--precision", "native", "--set", "search.trials=1", "--set", "kv_dtype=bf16"),
    *("--set", "max_num_batched_tokens=2048"),  # prefill and decode servers have only the engine's default limits
)

#: Options of `plan` by kind of answer.
REQUESTS = {
    "colocated": ("--hw", "l4x2", "--slo", "ttft.p90=5s,itl.p90=60ms", "--rate", "2", "--set", "tensor_parallel=1"),
    "several": ("--hw", "l4x2,l40sx1", "--slo", "ttft.p90=5s", "--rate", "2"),
}

DISAGGREGATED = "disaggregated"

KINDS = (*REQUESTS, DISAGGREGATED)

#: Every command that reads an answer, except `report` (it has its own tests) and those that need a measured run.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "explain": (),
    "whatif": ("--rate", "x1.1"),
    "spares": ("--mtbf", "60d", "--restart", "2min", "--window", "4h", "--held", "0.5"),
    "compare": (),
    "deploy": (),
}

ELSEWHERE = {"report", "verify", "drift"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """One answer of each kind, of short runs in slow tests, too, whose studies of it then have short runs as well.

    The answer with prefill and decode servers is the colocated one, changed by `plan whatif`.
    """
    with shortened():
        yield _answers(tmp_path_factory.mktemp("answers"))


def _answers(folder: Path) -> dict[str, Path]:
    found = {}
    for kind, options in REQUESTS.items():
        found[kind] = folder / f"{kind}.json"
        assert run_command("plan", app, [*_PLAN, *options, "--json", str(found[kind])]) == 0
    changed = folder / "changed.json"
    split = "disaggregation={prefill_replicas: 1, decode_replicas: 1}"
    change = ["whatif", str(found["colocated"]), "--hw", "l4x2", "--set", split, "--json", str(changed)]
    assert run_command("plan", app, change) == 0
    answer = json.loads(found["colocated"].read_text())
    answer["request"]["also"] = [DISAGGREGATED]
    answer |= {"best": json.loads(changed.read_text())["plan"], "alternatives": []}
    found[DISAGGREGATED] = folder / "disaggregated.json"
    found[DISAGGREGATED].write_text(json.dumps(answer))
    return found


def words(path: Path) -> str:
    return replicas_words(json.loads(path.read_text())["best"]["deployment"])


def test_the_answers_are_of_their_kinds(answers: dict[str, Path]) -> None:
    assert "prefill" in words(answers[DISAGGREGATED])
    assert "prefill" not in words(answers["colocated"])
    assert len(json.loads(answers["several"].read_text())["hardware"]) > 1


def test_every_command_that_reads_an_answer_is_a_question() -> None:
    readers = {
        str(command.name or command.callback.__name__)
        for command in app.registered_commands
        if command.callback is not None and {"answer", "first"} & set(inspect.signature(command.callback).parameters)
    }
    assert readers == set(QUESTIONS) | ELSEWHERE


@pytest.mark.parametrize("question", ["whatif", "spares", "compare", "explain"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_question_is_answered(kind: str, question: str, answers: dict[str, Path], tmp_path: Path) -> None:
    path, out = answers[kind], tmp_path / "out.json"
    given = [str(path), *([str(path)] if question == "compare" else []), *QUESTIONS[question]]
    assert run_command("plan", app, [question, *given, "--json", str(out)]) in (0, 1)
    found = json.loads(out.read_text())
    if question == "whatif":
        assert found["plan"]["deployment"]["disaggregation"] == json.loads(path.read_text())["best"]["deployment"].get(
            "disaggregation"
        )
        assert found["plan"]["slo"][0]["value_s"] > 0
    if question == "spares":
        kinds = {"prefill", "decode"} if kind == DISAGGREGATED else set()
        assert all(set(row["by_pool"]) == kinds for row in found["tried"])
        assert found["replicas"] == found["needed"] + found["spares"]
        assert any(row["holds"] for row in found["tried"])
    if question == "compare":
        assert not found["differs"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_target_starts_every_plan_of_its_engine(
    kind: str, target: str, answers: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every replica of the plan is in the files; a target that cannot start the plan names one that can."""
    out = tmp_path / "out"
    status = run_command("plan", app, ["deploy", str(answers[kind]), "--target", target, "--out", str(out)])
    if "vllm" not in TARGETS[target].engines:
        assert status == 2
        assert "nearest valid choice: vllm, compose, kubernetes" in capsys.readouterr().err
        return
    if kind == DISAGGREGATED and not TARGETS[target].disaggregates:
        assert target == "triton"  # its vLLM backend has no router between prefill and decode servers
        assert status == 2
        return
    assert status == 0
    written = {path.name: path.read_text() for path in out.rglob("*") if path.is_file()}
    documents: list[Any] = [d for name in written if name.endswith(".yaml") for d in yaml.safe_load_all(written[name])]
    assert documents or "serve.sh" in written
    if kind == DISAGGREGATED:
        together = "\n".join(text for name, text in written.items() if name not in ("plan.json", "README.md"))
        assert "prefill" in together
        assert "decode" in together


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_report_of_every_answer_states_what_moves_it(kind: str, answers: dict[str, Path], tmp_path: Path) -> None:
    """The sensitivity of each kind of answer has an effect of every input, in a page with the same sections."""
    page = tmp_path / "page.html"
    assert run_command("plan", app, ["report", str(answers[kind]), "--html", str(page)]) == 0
    text = page.read_text()
    assert "Sensitivity: inputs that change the answer" in text
    for name in ("request rate", "output length", "prompt length", "host overhead"):
        assert name in text
