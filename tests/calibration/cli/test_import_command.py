"""`calibrate import --results` and `--steps`: one screen, JSON of the same numbers, and damage of any kind one line."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from calibration.cli.main import app
from calibration.importers.load_clients.results import measured_runs
from catalogs.errors import InputError
from tests.calibration.importers.load_clients.test_load_clients import TIMES, aiperf, guidellm, inference_perf
from tests.calibration.importers.load_clients.test_vllm_bench import document
from tests.calibration.importers.test_importers_iteration_log import REAL

RUN = CliRunner()


def files(folder: Path) -> list[str]:
    written = {
        "vllm.json": json.dumps(document()),
        "guidellm.json": json.dumps(guidellm(TIMES)),
        "aiperf.jsonl": aiperf(TIMES),
        "inference_perf.json": json.dumps(inference_perf(TIMES)),
    }
    for name, text in written.items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in written]


def test_all_clients_in_one_table(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["import", "--results", *files(tmp_path)])
    assert result.exit_code == 0, result.output
    heads = [line for line in result.output.splitlines() if "requests, " in line and " failed, " in line]
    assert [h.split(" (")[0] for h in heads] == ["vllm.json", "guidellm.json", "aiperf.jsonl", "inference_perf.json"]
    assert "  ttft             100.00     100.00     100.00     100.00" in result.output
    assert len(result.output.splitlines()) <= 4 * 8
    assert max(len(line) for line in result.output.splitlines()) <= 120


def test_json_holds_the_same_in_seconds_and_null_for_nothing(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["import", "--results", *files(tmp_path), "--json", "-"])
    runs = {run["client"]: run for run in json.loads(result.stdout)["runs"]}
    assert runs["vllm bench serve"]["ttft_s"] == {s: pytest.approx(0.1) for s in ("mean", "p50", "p90", "p99")}
    assert runs["guidellm"]["itl_s"]["mean"] is None
    assert all(run["n_failed"] == 1 for run in runs.values())
    assert runs["aiperf"]["requests_per_s"] == pytest.approx(3 / 2.5)


def test_steps_become_rows(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(REAL + REAL.splitlines()[3][:90])
    result = RUN.invoke(app, ["import", "--steps", str(log), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "3 engine steps" in result.output
    assert "left out 1 malformed or truncated lines" in result.output
    assert pd.read_parquet(tmp_path / "out" / "steps.parquet").seconds.sum() == pytest.approx(0.17537)


def spots(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a document can be damaged."""
    yield path
    keys = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield from spots(document[key], (*path, key))


def damaged(document: Any, rng: random.Random) -> Any:
    """The document with one value gone or exchanged."""
    changed = copy.deepcopy(document)
    *parents, last = rng.choice(list(spots(changed))[1:])
    place = changed
    for key in parents:
        place = place[key]
    if isinstance(place, dict) and rng.random() < 0.3:
        del place[last]
    else:
        place[last] = rng.choice([None, "x", -1, 0, 1e308, float("nan"), float("inf"), [], {}, True, [None], 10**400])
    return changed


@pytest.mark.parametrize("client", ["vllm", "guidellm", "aiperf", "inference-perf"])
def test_any_damage_is_a_run_or_one_line(client: str, tmp_path: Path) -> None:
    whole: dict[str, Any] = {
        "vllm": document(),
        "guidellm": guidellm(TIMES),
        "aiperf": [json.loads(line) for line in aiperf(TIMES).splitlines()],
        "inference-perf": inference_perf(TIMES),
    }
    rng, path, refused = random.Random(0), tmp_path / "result.json", list[str]()
    for _ in range(150):
        data = damaged(whole[client], rng)
        path.write_text("\n".join(map(json.dumps, data)) if client == "aiperf" else json.dumps(data))
        try:
            runs = measured_runs(path)
        except InputError as error:
            refused.append(str(error))
        else:
            for run in runs:
                assert (run.samples("ttft") >= 0).all()
                assert not (run.ttft_s > run.e2e_s + 1e-6).any()
    assert 0 < len(refused) < 150
    assert not any("\n" in line for line in refused)
