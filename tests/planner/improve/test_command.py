"""`plan improve` and `plan whatif --from-command` refuse bad input in one line, before anything is simulated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.studies.written_deployment import WrittenDeployment

SERVE = ["--from-command", "vllm serve llama3.1-8b"]


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*words: str) -> tuple[int, str]:
        return run_command("plan", app, list(words)), capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["improve"], "plan improve needs one start command"),
        (["improve", *SERVE, "--launch", "a.sh"], "plan improve needs one start command"),
        (["improve", *SERVE, "--slo", "p99=2s"], "does not name one kind of accelerator"),
        (["improve", *SERVE, "--hw", "h100"], "an SLO is needed"),
        (["improve", *SERVE, "--hw", "h100", "--slo", "p99=2s", "--set", "seqs=1"], "deployment.yaml has no such key"),
        (["whatif", *SERVE, "--command-hw", "h100"], "nothing is changed"),
        (["whatif", *SERVE, "--command-hw", "h100", "--rate", "x2"], "nearest valid choice: --command-rate R"),
        (
            ["whatif", *SERVE, "--command-hw", "h100", "--rate", "2", "--command-rate", "-1"],
            "--command-rate is a number",
        ),
        (["whatif", "a.json", *SERVE, "--rate", "x2"], "an answer or a start command, not both"),
        (["whatif", "a.json", *SERVE, "--rate", "x2"], "needs an answer or a start command"),
        (["whatif", "a.json", "--command-hw", "h100", "--rate", "x2"], "--command-hw belongs to --from-command"),
    ],
)
def test_bad_input_is_one_line(plan: Callable[..., tuple[int, str]], words: list[str], rule: str) -> None:
    code, err = plan(*words)
    assert code == 2
    assert rule in err
    assert err.strip().count("\n") == 0


@pytest.mark.parametrize(
    ("setting", "rule"),
    [("kv_dtype=fp16x", "unknown kv_dtype"), ("tensor_parallel=3", "does not divide the 32 attention")],
)
def test_a_change_that_is_invalid_is_refused_before_the_present_deployment_is_simulated(
    plan: Callable[..., tuple[int, str]], setting: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulated(*_: object) -> None:
        pytest.fail("the present deployment is simulated")

    monkeypatch.setattr(WrittenDeployment, "entry", simulated)
    code, err = plan("whatif", *SERVE, "--command-hw", "h100", "--slo", "p99=2s", "--set", setting)
    assert (code, err.strip().count("\n")) == (2, 0)
    assert rule in err


def test_help_is_without_heavy_imports() -> None:
    heavy = "{'numpy', 'optuna', 'pydantic'} & set(sys.modules)"
    text = f"import sys; from planner.cli.main import app; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", text], timeout=20, check=False).returncode == 0
