"""Outputs that replace a file which the command reads, or cannot be written, are refused before anything is done."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from catalogs.errors import InputError
from catalogs.io.output_files import check_writable
from catalogs.ui.entry_point import run_command
from catalogs.ui.outputs import OUTPUT_OPTIONS, refuse_inputs_in_folder
from tests.catalogs.ui.test_shared_options import APPS

FILES = {
    "trace.csv": "arrival_s,input_tokens,output_tokens\n0,100,10\n1,100,10\n",
    "load.yaml": "trace: trace.csv\n",
    "question.yaml": "model: llama3.2-1b\nhw: l40s\nslo: p99=1s\nworkload: load.yaml\n",
    "deployment.yaml": "model: llama3.2-1b\nengine: vllm\nhardware: l40s\n",
    "answer.json": '{"request": {"workload": "trace.csv"}}',
    "config.json": "{}",
    "report.json": '{"request": {"workload": "curve.csv"}}',
    "curve.csv": "arrival_s,input_tokens,output_tokens\n0,100,10\n1,100,10\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "link.json").symlink_to("answer.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "plan --model llama3.2-1b --slo p99=1s --hw l40s --workload load.yaml --deployment-out load.yaml",
        "plan --model llama3.2-1b --slo p99=1s --hw l40s --workload load.yaml --deployment-out trace.csv",
        "plan question.yaml --deployment-out trace.csv",
        "plan question.yaml --json question.yaml",
        "plan --model . --slo p99=1s --hw l40s --json config.json",
        "plan --model llama3.2-1b --slo p99=1s --hw l40s --set tariff.prices=trace.csv --deployment-out trace.csv",
        "plan explain answer.json --json answer.json",
        "plan explain answer.json --json link.json",
        "plan whatif answer.json --rate x2 --json ./answer.json",
        "plan compare answer.json question.yaml --json answer.json",
        "plan report answer.json --html answer.json",
        "plan report report.json --csv .",
        "plan report report.json --csv ../{folder}",
        "plan report answer.json --front report.json --csv .",
        "plan deploy answer.json --target vllm --out ../{folder} --force",
        "simulate deployment.yaml --workload load.yaml --requests-out trace.csv",
        "simulate deployment.yaml --json deployment.yaml",
        "simulate deployment.yaml --compare trace.csv --requests-out trace.csv",
        "catalog fit-workload trace.csv --out trace.csv",
    ],
)
def test_an_output_that_is_an_input_is_refused(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, *args = line.format(folder=folder.name).split()
    assert run_command(name, import_module(APPS[name]).app, args) == 2
    shown = capsys.readouterr().err
    assert "would replace a file that this command reads" in shown
    assert "nearest valid choice" in shown
    assert shown.count("\n") == 1
    assert {path.name: path.read_text() for path in folder.iterdir() if not path.is_symlink()} == FILES


def test_a_folder_is_refused_only_for_the_files_that_are_written_into_it(folder: Path) -> None:
    written = {"report.json", "curve.csv"}
    refuse_inputs_in_folder("--csv", folder, written, [Path("answer.json"), Path("trace.csv")])
    refuse_inputs_in_folder("--csv", folder / "tables", written, [Path("report.json")])
    (folder / "answer.json").write_text('{"request": {"workload": "curve.csv"}}')
    with pytest.raises(InputError, match="--csv would replace a file that this command reads") as found:
        refuse_inputs_in_folder("--csv", Path("."), written, [Path("answer.json")])
    assert found.value.nearest == "--csv tables"


def test_another_existing_file_may_be_replaced(folder: Path) -> None:
    (folder / "run.json").write_text("of yesterday")
    args = ["deployment.yaml", "--workload", "load.yaml", "--json", "run.json"]
    assert run_command("simulate", import_module(APPS["simulate"]).app, args) == 0
    assert "metrics" in (folder / "run.json").read_text()


def commands_below(command: Any) -> list[Any]:
    return [command, *(found for each in getattr(command, "commands", {}).values() for found in commands_below(each))]


@pytest.mark.parametrize("name", APPS)
def test_every_option_that_writes_is_listed(name: str) -> None:
    from typer.main import get_command

    options = [p for c in commands_below(get_command(import_module(APPS[name]).app)) for p in c.params]
    texts = {p.opts[-1]: str(getattr(p, "help", "")) for p in options if p.metavar is not None}
    writes = {option for option, text in texts.items() if text.startswith(("Write ", "Keep ", "Folder to write"))}
    assert writes <= set(OUTPUT_OPTIONS)


@pytest.mark.parametrize(
    "line",
    [
        "plan --model llama3.2-1b --slo p99=1s --hw l40s --html /proc/page.html",
        "plan --model llama3.2-1b --slo p99=1s --hw l40s --deployment-out /proc/chosen.yaml",
        "plan --model bge-large --slo e2e.p99=1s --hw l40s --rate 1 --json /proc/answer.json",
        "plan --model llama3.2-1b --slo p99=1s --hw l40s --agents 5 --html /proc/page.html",
        "plan explain answer.json --json /proc/explained.json",
        "plan report answer.json --csv /proc/tables",
        "plan deploy answer.json --target vllm --out /proc/serve",
        "plan front question.yaml --axes cost,ttft.p99 --html /proc/page.html",
        "plan matrix question.yaml --csv /proc/tables",
        "simulate deployment.yaml --workload load.yaml --artefact /proc/run",
        "calibrate run --hw local --budget 1m --out /proc/profile",
        "catalog fit-workload trace.csv --out /proc/load.yaml",
        "catalog list models --json /proc/models.json",
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    line: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions alone do not tell: root may write below /proc, and every attempt fails."""
    monkeypatch.setattr("planner.pipeline.plan", None)
    name, *args = line.split()
    assert run_command(name, import_module(APPS[name]).app, args) == 2
    shown = capsys.readouterr().err
    assert "cannot write there: the folder is not writable: got '/proc/" in shown
    assert "nearest valid choice: " in shown
    assert shown.count("\n") == 1
    assert {path.name: path.read_text() for path in folder.iterdir() if not path.is_symlink()} == FILES


def test_what_can_be_written_is_left_as_it_was(folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    for name in ("new.json", "new/folder/below", "answer.json", "link.json", "."):
        check_writable(folder / name)
    check_writable(Path("/dev/null"))
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    with pytest.raises(InputError, match="a part of the path is a file"):
        check_writable(folder / "answer.json" / "below")
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    with pytest.raises(InputError, match="links lead in a circle"):
        check_writable(folder / "a")
