"""`catalog import-launch`: the deployment on stdout or in a file, the notes on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from catalogs.cli.main import main
from catalogs.deployments.schema import load_deployment

COMMAND = "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp $TP --max-num-seqs 32 --port 1 --nosuchflag\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "run.sh"
    file.write_text(COMMAND, encoding="utf-8")
    return file


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["import-launch", *args])
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


def test_the_deployment_goes_to_stdout(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, str(script), "--hw", "h100x2", "--env", "TP=2")
    assert code == 0
    assert yaml.safe_load(out)["tensor_parallel"] == 2
    assert "unknown: --nosuchflag: vllm has no such flag" in err
    assert "no effect" not in err


def test_the_deployment_goes_to_a_file(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, document = tmp_path / "d.yaml", tmp_path / "d.json"
    options = ["--hw", "h100x2", "--env", "TP=2", "--set", "kv_dtype=fp8", "-o", str(file), "--json", str(document)]
    code, out, err = run(capsys, str(script), *options)
    assert (code, out) == (0, "")
    assert "no effect: --port 1" in err
    found = load_deployment(file)
    assert (found.max_num_seqs, found.kv_dtype) == (32, "fp8")
    assert {note["kind"] for note in json.loads(document.read_text())["notes"]} >= {"read", "unknown", "no effect"}


@pytest.mark.parametrize("n_flags", [0, 30])  # with 30, the command is longer than any file name
def test_a_command_in_place_of_a_file_names_the_option_that_takes_it(
    capsys: pytest.CaptureFixture[str], n_flags: int
) -> None:
    command = "vllm serve Qwen3-8B" + " --max-num-seqs 64" * n_flags
    code, out, err = run(capsys, command, "--hw", "h100x1")
    assert (code, out) == (2, "")
    assert "there is no such file" in err
    assert "--from-command" in err


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        (["--hw", "h100x2"], "uses a variable that nothing sets"),
        (["--env", "TP=2"], "does not name one kind of accelerator"),
        (["--hw", "h100x2", "--env", "TP"], "a variable is NAME=VALUE"),
        (["--hw", "h100x2", "--env", "TP=2", "--set", "max_num_sequences=1"], "deployment.yaml has no such key"),
        (["--hw", "h100x1", "--env", "TP=2"], "uses 2 accelerators, and h100x1 has 1"),
    ],
)
def test_bad_input_is_one_line(script: Path, capsys: pytest.CaptureFixture[str], more: list[str], rule: str) -> None:
    code, out, err = run(capsys, str(script), *more)
    assert (code, out) == (2, "")
    assert rule in err
    assert err.strip().count("\n") == 0
