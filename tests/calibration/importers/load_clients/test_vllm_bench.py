"""vllm bench serve results as measured truth: what is read, what is dropped, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.importers.load_clients.results import measured_run_file, measured_runs
from catalogs.errors import InputError

Document = dict[str, Any]


def document(n: int = 4) -> Document:
    """n requests, one every second: TTFT 100 ms, then 4 gaps of 10, 20, 30, 40 ms; one failed request at the end."""
    return {
        "backend": "openai",
        "model_id": "m",
        "request_rate": "inf",
        "duration": float(n),
        "completed": n,
        "failed": 1,
        "request_throughput": 1.0,
        "mean_ttft_ms": 100.0,
        "mean_tpot_ms": 25.0,
        "mean_itl_ms": 25.0,
        "input_lens": [64] * n + [64],
        "output_lens": [5] * n + [0],
        "ttfts": [0.1] * n + [0.0],
        "itls": [[0.01, 0.02, 0.03, 0.04]] * n + [[]],
        "latencies": [0.2] * n + [0.0],
        "start_times": [1000.0 + i for i in range(n)] + [1001.5],
        "errors": [""] * n + ["Internal Server Error"],
    }


def written(folder: Path, data: Any) -> Path:
    path = folder / "result.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_lists_become_a_run_in_seconds(tmp_path: Path) -> None:
    run = measured_run_file(written(tmp_path, document()))
    assert (run.n, run.n_failed, run.client, run.notes) == (4, 1, "vllm bench serve", ())
    assert run.arrival_s.tolist() == [0, 1, 2, 3]
    assert run.stat("ttft", "mean") == pytest.approx(0.1)
    assert run.stat("tpot", "p99") == pytest.approx(0.1 / 4)
    assert run.stat("itl", "p50") == pytest.approx(0.025)
    assert run.itl_s.shape == (16,)
    assert run.stat("e2e", "p90") == pytest.approx(0.2)
    assert run.requests_per_s == 1.0
    assert run.output_tokens_per_s == 5.0


def test_older_results_without_start_times_or_latencies(tmp_path: Path) -> None:
    data = document()
    del data["start_times"], data["latencies"]
    run = measured_run_file(written(tmp_path, data))
    assert np.isnan(run.arrival_s).all()
    assert run.stat("e2e", "mean") == pytest.approx(0.2)


def test_one_token_outputs_have_no_tpot(tmp_path: Path) -> None:
    data = document()
    data["output_lens"][0], data["itls"][0], data["latencies"][0] = 1, [], 0.1
    run = measured_run_file(written(tmp_path, data))
    assert np.isnan(run.tpot_s[0])
    assert run.stat("tpot", "mean") == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ttfts": 0.3}, "TTFT longer than E2E"),
        ({"ttfts": -0.1}, "negative time"),
        ({"input_lens": 0}, "no tokens"),
        ({"itls": [1.0, 1.0]}, "gaps between tokens longer than E2E less TTFT"),
        ({"latencies": 50.0}, "longer than the run"),
    ],
)
def test_rows_that_break_physics_are_dropped_and_named(tmp_path: Path, change: Document, reason: str) -> None:
    data = document()
    for name, value in change.items():
        data[name][1] = value
    run = measured_run_file(written(tmp_path, data))
    assert run.n == 3
    assert run.notes == (f"dropped 1 of 4 requests: {reason}",)


def test_milliseconds_in_place_of_seconds_are_caught(tmp_path: Path) -> None:
    in_ms = document()
    in_ms["ttfts"] = [1e3 * t for t in in_ms["ttfts"]]
    with pytest.raises(InputError, match="wrong unit"):
        measured_run_file(written(tmp_path, in_ms))
    slower = document()
    slower["duration"] *= 1e3
    for name in ("ttfts", "latencies"):
        slower[name] = [1e3 * t for t in slower[name]]
    slower["itls"] = [[1e3 * t for t in gaps] for gaps in slower["itls"]]
    with pytest.raises(InputError, match="mean_ttft_ms is 100 but the lists give 1e"):
        measured_run_file(written(tmp_path, slower))


def test_several_tokens_in_a_chunk_are_said(tmp_path: Path) -> None:
    data = document()
    data["itls"][0] = [0.03, 0.07]
    data["mean_itl_ms"] = None
    assert "several tokens in a chunk" in measured_run_file(written(tmp_path, data)).notes[0]


def test_appended_results_are_several_runs(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(document(4)) + "\n" + json.dumps(document(6)))
    assert [run.n for run in measured_runs(path)] == [4, 6]
    with pytest.raises(InputError, match="holds 2 runs"):
        measured_run_file(path)


def test_damaged_and_foreign_files_are_one_line(tmp_path: Path) -> None:
    text = json.dumps(document())
    short = document()
    short["itls"] = short["itls"][:-1]
    summary = {k: v for k, v in document().items() if k not in ("ttfts", "itls", "input_lens", "output_lens")}
    wrong_type = {**document(), "ttfts": ["fast"] * 5}
    failed = {**document(), "output_lens": [0] * 5, "errors": ["x"] * 5}
    cases = {
        "cut short": text[: len(text) // 2],
        "empty": "",
        "differ in length": short,
        "no per-request lists": summary,
        "ttfts": wrong_type,
        "no finished request": failed,
        "known load client": {"hello": 1},
    }
    for match, data in cases.items():
        with pytest.raises(InputError, match=match) as caught:
            measured_run_file(written(tmp_path, data))
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        measured_run_file(tmp_path / "absent.json")
