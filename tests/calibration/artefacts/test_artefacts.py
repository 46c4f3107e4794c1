"""Artefacts: every changed byte is found, statistics are right by hand, and differences are those that were made."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.artefacts.checking import artefact_faults, artefact_id, read_manifest
from calibration.artefacts.comparison import difference, fact_differences, ratio_interval
from calibration.artefacts.contents import (
    REQUEST_COLUMNS,
    REQUESTS,
    Column,
    read_rows,
    request_rows,
    row_fault,
    schema_of,
)
from calibration.artefacts.environment import environment, packages, program
from calibration.artefacts.recording import recording
from calibration.artefacts.replay import replay
from calibration.artefacts.request_summary import statistics_of, summary_text
from calibration.cli.main import app
from calibration.complexity.records import PARTS
from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command

TIMES = (0.1, 0.2, 0.4)


def made(folder: Path, e2e_s: tuple[float, ...] = TIMES, trial: str = "run") -> Path:
    """Write an artefact with an input, three requests, a result and a log."""
    source = folder.parent / "deployment.yaml"
    source.write_text("model: llama3.1-8b\n")
    with recording(folder, "simulated", ["simulate", "inputs/deployment.yaml"]) as artefact:
        artefact.add_input(source)
        columns = {
            "arrival_s": [0.0, 1.0, 2.0],
            "input_tokens": [10, 20, 30],
            "output_tokens": [1, 2, 4],
            "ttft_s": [0.1, 0.1, 0.1],
            "tpot_s": [float("nan"), 0.1, 0.1],
            "e2e_s": list(e2e_s),
        }
        artefact.add_requests(request_rows(columns, "simulated", trial))
        artefact.add_result("result.json", "{}\n")
        artefact.add_log("simulate.txt", "a notice\n")
        artefact.seeds = {"seed": 3}
    return folder


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("artefacts") / "one")


def files_of(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.is_file())


def test_an_unchanged_artefact_is_whole(artefact: Path) -> None:
    assert artefact_faults(artefact) == []
    manifest = read_manifest(artefact)
    assert manifest.command == ["simulate", "inputs/deployment.yaml"]
    assert [file.path for file in manifest.inputs] == ["inputs/deployment.yaml"]
    assert manifest.tables[0].n_rows == 3
    assert manifest.seeds == {"seed": 3}
    assert {str(f.relative_to(artefact)) for f in files_of(artefact)} == {
        "checksums.sha256",
        "inputs/deployment.yaml",
        "logs/simulate.txt",
        "manifest.json",
        "results/result.json",
        "rows/requests.jsonl",
        "rows/requests.schema.json",
        "summary.txt",
    }


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_changed_byte_anywhere_is_found(artefact: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files_of(artefact)))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != whole[at]))
    try:
        path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
        assert artefact_faults(artefact) != []
        path.write_bytes(whole[:at] + whole[at + 1 :])
        assert artefact_faults(artefact) != []
        path.write_bytes(whole[:at] + bytes([byte]) + whole[at:])
        assert artefact_faults(artefact) != []
    finally:
        path.write_bytes(whole)
    assert artefact_faults(artefact) == []


@pytest.mark.parametrize("position", range(8))
def test_a_missing_file_is_found(artefact: Path, position: int, tmp_path: Path) -> None:
    copy = shutil.copytree(artefact, tmp_path / "copy")
    path = files_of(copy)[position]
    path.unlink()
    if path.name == "checksums.sha256":
        with pytest.raises(InputError, match="artefact is a folder with checksums"):
            artefact_faults(copy)
        return
    assert any("missing" in fault for fault in artefact_faults(copy))


def test_what_was_added_is_found(artefact: Path, tmp_path: Path) -> None:
    for name, add in (
        ("more.txt", lambda p: p.write_text("")),
        ("logs/.hidden", lambda p: p.write_text("x")),
        ("empty", lambda p: p.mkdir()),
        ("link", lambda p: p.symlink_to("summary.txt")),
    ):
        copy = shutil.copytree(artefact, tmp_path / name.replace("/", "-"))
        add(copy / name)
        assert any(name in fault for fault in artefact_faults(copy)), name
    copy = shutil.copytree(artefact, tmp_path / "replaced")
    outside = tmp_path / "summary.txt"
    shutil.move(copy / "summary.txt", outside)
    (copy / "summary.txt").symlink_to(outside)
    assert any("summary.txt is not a plain file" in fault for fault in artefact_faults(copy))


def sealed_again(folder: Path) -> None:
    """Write the checksums of a folder whose contents were changed."""
    from calibration.artefacts.recording import checksums_text

    (folder / "checksums.sha256").write_text(checksums_text(folder))


def test_rows_that_the_manifest_or_the_schema_does_not_allow_are_found(artefact: Path, tmp_path: Path) -> None:
    rows = (artefact / "rows/requests.jsonl").read_text().splitlines(keepends=True)
    cases = {
        "has 2 rows": "".join(rows[:2]),
        "e2e_s is missing": rows[0].replace('"e2e_s"', '"e2e"') + "".join(rows[1:]),
        "e2e_s is not number or null": rows[0].replace('"e2e_s": 0.1', '"e2e_s": "0.1"') + "".join(rows[1:]),
        "it is not JSON": rows[0][:-2] + "\n" + "".join(rows[1:]),
        "source is not one of": rows[0].replace('"simulated"', '"guessed"') + "".join(rows[1:]),
    }
    for i, (says, text) in enumerate(cases.items()):
        copy = shutil.copytree(artefact, tmp_path / str(i))
        (copy / "rows/requests.jsonl").write_text(text)
        sealed_again(copy)
        assert any(says in fault for fault in artefact_faults(copy)), says
    copy = shutil.copytree(artefact, tmp_path / "input")
    (copy / "inputs/deployment.yaml").write_text("model: qwen3-8b\n")
    sealed_again(copy)
    assert artefact_faults(copy) == ["the input inputs/deployment.yaml is not the one of the manifest"]
    copy = shutil.copytree(artefact, tmp_path / "manifest")
    (copy / "manifest.json").write_text("{}")
    sealed_again(copy)
    assert "manifest is not valid" in artefact_faults(copy)[0]


values = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=3))


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), values))
def test_rows_are_judged_as_by_a_validator_of_json_schema(row: dict[str, Any]) -> None:
    columns = {
        "a": Column(("integer", "null"), "a count"),
        "b": Column(("number",), "a time"),
        "c": Column(("string",), "a word", ("x", "")),
    }
    schema = schema_of("A row", columns)
    judged = jsonschema.Draft202012Validator(schema).is_valid(row)
    integral = isinstance(row.get("a"), float) and row["a"].is_integer()  # 1.0 is an integer in JSON Schema
    assert integral or (row_fault(row, schema) is None) == judged


def test_the_schema_of_requests_is_a_schema_and_fits_the_rows(artefact: Path) -> None:
    schema = json.loads((artefact / "rows/requests.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    rows = read_rows(artefact, REQUESTS)
    assert all(jsonschema.Draft202012Validator(schema).is_valid(row) for row in rows)
    assert list(rows[0]) == list(REQUEST_COLUMNS)
    assert [name for name in REQUEST_COLUMNS if name.startswith("part_")] == [f"part_{name}_s" for name in PARTS]
    assert [row["tpot_s"] for row in rows] == [None, 0.1, 0.1]


def test_a_row_without_its_form_is_not_written(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="arrival_s is missing"),
        recording(tmp_path / "new", "measured", ["x"]) as artefact,
    ):
        artefact.add_requests([{"source": "measured", "trial": "", "request_id": 0, "status": "completed"}])
    assert os.listdir(tmp_path) == []


def test_an_artefact_needs_a_new_folder(artefact: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    made(tmp_path / "empty")
    assert artefact_faults(tmp_path / "empty") == []
    before = artefact_id(artefact)
    with pytest.raises(InputError, match="new folder"):
        made(artefact)
    assert artefact_id(artefact) == before


def test_statistics_by_hand(artefact: Path) -> None:
    found = statistics_of(read_rows(artefact, REQUESTS))
    assert found["duration_s"] == pytest.approx(2.4)
    assert found["completed_per_s"] == pytest.approx(3 / 2.4)
    assert found["output_tokens_per_s"] == pytest.approx(7 / 2.4)
    assert found["e2e_mean_s"] == pytest.approx(0.7 / 3)
    assert found["e2e_p50_s"] == pytest.approx(0.2)
    assert found["e2e_p90_s"] == pytest.approx(0.36)
    assert found["tpot_mean_s"] == pytest.approx(0.1)
    text = summary_text(read_rows(artefact, REQUESTS), ["simulate", "d.yaml"])
    assert "Result is : VALID" in text
    assert "E2E 50.00 percentile : 200000000" in text
    failed = read_rows(artefact, REQUESTS)
    failed[0]["status"] = "failed"
    assert "Result is : INVALID" in summary_text(failed, ["simulate"])


def test_differences_are_those_that_were_made(artefact: Path, tmp_path: Path) -> None:
    same = difference(artefact, made(tmp_path / "same"))
    assert same.same_bytes
    assert same.facts == {}
    assert [(c.metric, c.ratio, c.low, c.high) for c in same.changes][-1] == ("e2e", 1.0, 1.0, 1.0)
    slower = difference(artefact, made(tmp_path / "slower", tuple(1.5 * t for t in TIMES)))
    e2e = next(c for c in slower.changes if c.metric == "e2e")
    assert (e2e.ratio, e2e.low, e2e.high) == pytest.approx((1.5, 1.5, 1.5))
    assert e2e.differs
    assert not next(c for c in slower.changes if c.metric == "ttft").differs
    assert slower.files == ["rows/requests.jsonl"]
    other = difference(artefact, made(tmp_path / "other", trial="another"))
    assert (other.only_first, other.only_second, other.changes) == (["simulated run"], ["simulated another"], [])


def test_facts_of_another_kernel_are_named(artefact: Path) -> None:
    one = read_manifest(artefact).model_dump()
    two = json.loads(json.dumps(one))
    two["environment"]["kernel"] = "6.99.0"
    two["environment"]["packages"]["numpy"] = "9.9"
    two["created_at"] = "later"
    for manifest, mhz in ((one, "1980 MHz"), (two, "345 MHz")):
        clocks = {"current_mhz": float(mhz.split()[0])}
        gpu = {"name": "H200", "clocks.max.sm": mhz, "clocks.current.sm": mhz, "clocks.current.memory": mhz}
        manifest["environment"] |= {"clocks": clocks, "gpus": [gpu]}
    found = fact_differences(one, two)
    assert set(found) == {
        "environment.kernel",
        "environment.packages.numpy",
        "environment.gpus.0.clocks.max.sm",  # a limit; the clocks at the moment of recording differ in every run
    }
    assert found["environment.kernel"][1] == "6.99.0"


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 2.0), st.integers(0, 100))
def test_the_interval_of_a_ratio_holds_the_ratio(factor: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = rng.lognormal(sigma=0.4, size=40)
    low, high = ratio_interval(first, factor * first, rng)
    assert low <= factor <= high
    assert ratio_interval(first, factor * first, rng, paired=True) == pytest.approx((factor, factor))


def test_the_environment_says_what_it_does_not_know() -> None:
    found = environment()
    assert found["kernel"]
    assert found["packages"]["numpy"] == np.__version__
    assert found["gpus"] or found["not_measured"]["gpus"]
    assert found["firmware"] or found["not_measured"]["firmware"]
    assert len(program()["code_sha256"]) == 64


def test_of_two_installed_versions_the_imported_one_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("first", "2"), ("second", "1")):
        stated = tmp_path / folder / f"twice-{version}.dist-info"
        stated.mkdir(parents=True)
        (stated / "METADATA").write_text(f"Metadata-Version: 2.1\nName: Twice\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    assert packages()["twice"] == "2"


def test_a_damaged_or_foreign_artefact_is_not_replayed(artefact: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(artefact, tmp_path / "copy")
    (copy / "summary.txt").write_text("faster")
    with pytest.raises(InputError, match=r"damaged.*summary\.txt was changed"):
        replay(copy)
    with recording(tmp_path / "foreign", "simulated", ["rm", "-rf", "inputs"]):
        pass
    with pytest.raises(InputError, match="cannot be replayed"):
        replay(tmp_path / "foreign")


def test_the_commands(artefact: Path, tmp_path: Path, capsys: Any) -> None:
    assert run_command("calibrate", app, ["artefact", "verify", str(artefact)]) == 0
    assert artefact_id(artefact) in capsys.readouterr().out
    other = made(tmp_path / "other", (0.2, 0.4, 0.8))
    assert run_command("calibrate", app, ["artefact", "diff", str(artefact), str(other)]) == 0
    assert "e2e mean: 233.3 -> 466.7 ms, ratio 2.000" in capsys.readouterr().out
    (other / "logs/simulate.txt").write_text("another notice\n")
    assert run_command("calibrate", app, ["artefact", "verify", str(other), "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"][0] == "logs/simulate.txt was changed"
    assert run_command("calibrate", app, ["artefact", "verify", str(tmp_path)]) == 2
