"""The command: exit statuses, one line for bad input, JSON and nothing else, a quick start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from catalogs.ui.entry_point import run_command
from planner.main import app

GOOD = ["--model", "llama3.1-8b", "--slo", "p99=2s", "--hw", "rtx4090", "--set", "search.trials=2"]

#: The same of requests with few steps, also for other processes, whose runs are as long as those of users.
FEW_STEPS = [*GOOD, "--input-tokens", "500", "--output-tokens", "20", "--precision", "native"]


def but(option: str, value: str) -> list[str]:
    """GOOD with one option replaced or added."""
    args = dict(zip(GOOD[::2], GOOD[1::2], strict=True)) | {option: value}
    return [word for pair in args.items() for word in pair]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "--model is needed"),
        (["--model", "llama3.1-8b"], "--hw is needed"),
        (["frobnicate"], "frobnicate"),
        (but("--model", "llama3.1-405"), "llama3.1-405b"),
        (but("--hw", "rtx409"), "rtx4090"),
        (but("--slo", "p99=2"), "2s"),
        (but("--objective", "cheap"), "cost"),
        (but("--rate", "-1"), "above zero"),
        (but("--rate", "many"), "--rate"),
        (but("--workload", "chatt"), "chat"),
        (but("--precision", "fp7"), "fp"),
        (but("--precision", ""), "precision"),
        (but("--price", "0"), "above zero"),
        (but("--set", "tariff.grid=mars"), "grid"),
        (but("--engine", "vlm"), "vllm"),
        (but("--seed", "-1"), "seed"),
        (but("--nonsense", "1"), "--nonsense"),
        (but("--study", "/proc/nowhere/study.log"), "study"),
        (but("--json", "/nowhere/answer.json"), "folder"),
        (but("--json", ""), "name"),
        (but("--json", "/tmp"), "folder"),
        (but("--deployment-out", "-"), "only --json"),
        (but("--seed", "99999999999999999999"), "seed"),
        (but("--rate", "1e-12"), "at least 1e-06"),
        (but("--slo", "p99.99999=2s"), "p99.9"),
        (but("--hw", "cerebras"), "catalog list hardware"),
        (but("--set", "tariff.cloud=zzz"), "aws"),
        ([*but("--price", "3"), "--set", "tariff.cloud=aws"], "--price or tariff.cloud"),
        ([*but("--json", "a.json"), "--deployment-out", "a.json"], "a different name"),
        (["/tmp"], "this is a folder: got '/tmp'; nearest valid choice: /tmp/SCENARIO.yaml"),
        (["frnt"], "nearest valid choice: front"),
        (["llama3.1-8b"], "plan --model"),
        (but("--html", "page.json"), "page.html"),
        (but("--html", "/tmp"), "/tmp/page.html"),
        (but("--confidence", "90%"), "nearest valid choice: 0.9\n"),
        (but("--confidence", "high"), "such as 0.9"),
    ],
)
def test_bad_input_is_one_line_and_status_2(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("plan", app, args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err


def test_files_of_other_commands_are_no_scenarios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text, says in (
        ("answer.json", '{"schema_version": 1, "request": {}}', "this file is a result"),
        ("deployment.yaml", "model: llama3.1-8b\nhardware: h100\nreplicas: 2\n", "nearest valid choice: --rate"),
    ):
        (tmp_path / name).write_text(text)
        assert run_command("plan", app, [str(tmp_path / name)]) == 2
        assert says in capsys.readouterr().err


def test_json_on_stdout_is_all_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("plan", app, [*FEW_STEPS, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["feasible"] is True


def test_an_answer_that_cannot_be_written_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("plan", app, [*FEW_STEPS, "--json", "/dev/full"]) == 74
    assert "Recommended" in capsys.readouterr().out


def test_no_is_status_1_and_a_file_holds_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "answer.json"
    assert run_command("plan", app, [*FEW_STEPS, "--slo", "tpot.p99=1ms", "--json", str(target)]) == 1
    assert capsys.readouterr().out.startswith("Request")
    assert json.loads(target.read_text())["feasible"] is False


def test_a_page_that_cannot_be_drawn_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    kept = tmp_path / "a.json"
    assert run_command("plan", app, [*GOOD, "--json", str(kept), "--html", str(tmp_path / "a.html")]) == 2
    assert "plotly" in capsys.readouterr().err
    assert not kept.exists()


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.log"
    study.write_text("not a journal\n")
    assert run_command("plan", app, but("--study", str(study))) == 2
    assert "journal" in capsys.readouterr().err


def test_ctrl_c_is_status_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.pipeline.make_plan", interrupted)
    assert run_command("plan", app, GOOD) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_closed_pipe_is_not_a_no() -> None:
    code = (
        "import sys\nfrom catalogs.ui.entry_point import run_command\nfrom planner.main import app\n"
        f"sys.exit(run_command('plan', app, {[*FEW_STEPS, '--json', '-']!r}))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait() == 0


def test_starting_up_imports_nothing_heavy() -> None:
    heavy = {"numpy", "pandas", "optuna", "scipy", "sklearn", "torch", "simpy", "yaml", "pydantic"}
    code = f"import planner.main, sys; print(sorted({heavy!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
