"""The `catalog` command as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from catalogs.cli.describe import KINDS
from catalogs.cli.main import main
from catalogs.io.yaml_files import user_folder

NAMES = {
    "models": "llama3.1-8b",
    "hardware": "h100x8",
    "engines": "vllm",
    "workloads": "chat",
    "prices": "h100x8",
    "grids": "de",
}
HEAVY = ("numpy", "pandas", "sklearn", "optuna", "scipy", "pyarrow", "torch", "transformers", "yaml", "pydantic")


def ran(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(args))
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    code, out, err = ran(capsys, *args, "--json", "-")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.parametrize("kind", KINDS)
def test_list_every_kind(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    code, out, _ = ran(capsys, "list", kind)
    assert code == 0
    assert out.strip()
    entries = as_json(capsys, "list", kind)["entries"]
    assert entries or kind == "calibrations"
    assert all(entry.get("source") or kind in ("models", "grids", "calibrations") for entry in entries)


@pytest.mark.parametrize(("kind", "name"), NAMES.items())
def test_show(capsys: pytest.CaptureFixture[str], kind: str, name: str) -> None:
    assert as_json(capsys, "show", kind, name)["entry"]
    assert ran(capsys, "show", kind, name)[0] == 0


def test_a_kind_may_be_named_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "show", "model", "llama3.1-8b")["entry"]["name"] == "llama3.1-8b"


def test_units_are_in_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    entry = as_json(capsys, "show", "hardware", "h100x8")["entry"]
    assert (entry["memory_gib"], entry["bandwidth_gb_per_s"], entry["accelerators"]) == (79.65, 3350.0, 8)
    assert "datasheet" in entry["source"]


def test_json_into_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = ran(capsys, "list", "engines", "--json", str(tmp_path / "e.json"))
    assert code == 0
    assert "vllm" in out
    assert json.loads((tmp_path / "e.json").read_text())["kind"] == "engines"


@pytest.mark.parametrize(
    "args",
    [
        ("show", "hardware", "h1000"),
        ("show", "engines", "tgi"),
        ("show", "models", "lama3"),
        ("show", "prices", "h100x9"),
        ("show", "calibrations", "nothing"),
        ("list", "hardwar"),
        ("list", "engines", "--json", "/nonexistent/folder/x.json"),
        ("list", "engines", "--json", ""),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    code, out, err = ran(capsys, *args)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", "null"])
def test_a_damaged_calibration_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = user_folder("calibrations") / "h100"
    folder.mkdir(parents=True)
    (folder / "bundle.json").write_text(text)
    code, out, err = ran(capsys, "list", "calibrations")
    assert (code, out) == (2, "")
    assert str(folder) in err
    assert err.count("\n") == 1


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys\nsys.argv = ['catalog', '--help']\nfrom catalogs.cli.main import main\n"
        "try:\n main()\nexcept SystemExit:\n pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("command", ["list", "show"])
def test_a_kind_that_is_missing_is_one_of_those_there_are(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ran(capsys, command)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert all(kind in err for kind in KINDS)


@pytest.mark.parametrize(
    ("header", "n", "source"),
    [
        ("arrival_s,input_tokens,output_tokens", 99, "fitted to trace t.csv"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens", 100, "fitted to Vidur trace t.csv"),
    ],
)
def test_a_fit_to_few_requests_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, header: str, n: int, source: str
) -> None:
    trace, out = tmp_path / "t.csv", tmp_path / "w.yaml"
    trace.write_text("\n".join([header, *(f"{i},{100 + i},{1 + i % 7}" for i in range(n))]), encoding="utf-8")
    code, _, said = ran(capsys, "fit-workload", str(trace), "-o", str(out))
    assert code == 0
    assert (f"few requests ({n})" in said) == (n < 100)
    assert f"source: {source}\n" in out.read_text(encoding="utf-8")
    assert "the extreme lengths" in " ".join(ran(capsys, "fit-workload", "--help")[1].split())
