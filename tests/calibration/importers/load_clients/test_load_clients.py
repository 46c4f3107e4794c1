"""GuideLLM, AIPerf and inference-perf results: the same requests in three formats give the same run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.accuracy.measured_run import MeasuredRun, OfferedLoad
from calibration.accuracy.measured_summary import MeasuredSummary
from calibration.importers.load_clients.results import measured_results, measured_run_file, measured_runs
from catalogs.errors import InputError

Times = list[tuple[float, list[float]]]

#: Requests of a run: when sent, and when each token came. The second has one token; the run lasts 2.5 s.
TIMES: Times = [(0.0, [0.2, 0.25, 0.35]), (0.5, [0.8]), (1.5, [1.6, 1.7, 1.9, 2.5])]
EPOCH_S = 1_795_177_785.0
INPUT_TOKENS = 64


def guidellm(times: Times) -> dict[str, Any]:
    """As guidellm 0.8.1 writes it, with the keys that mislead: E2E / n, and a latency that runs until the close."""
    return {
        "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "config": {},
        "benchmarks": [
            {
                "type_": "generative_benchmark",
                "duration": 2.5,
                "metrics": {"request_totals": {"successful": len(times), "errored": 1, "incomplete": 0, "total": 4}},
                "requests": {
                    "successful": [_guidellm_request(sent, tokens) for sent, tokens in times],
                    "errored": [{"request_id": "x", "request_latency": None}],
                    "incomplete": [],
                    "total": None,
                },
            }
        ],
    }


def _guidellm_request(sent: float, tokens: list[float]) -> dict[str, Any]:
    n = len(tokens)
    start, first, last = EPOCH_S + sent, EPOCH_S + tokens[0], EPOCH_S + tokens[-1]
    timings = {"request_start": start, "first_token_iteration": first, "last_token_iteration": last}
    return {
        "info": {"status": "completed", "timings": timings},
        "request_start_time": start,
        "request_latency": last - start + 0.004,
        "prompt_tokens": INPUT_TOKENS,
        "output_tokens": n,
        "time_to_first_token_ms": (first - start) * 1e3,
        "time_per_output_token_ms": (last - start) / n * 1e3,
        "inter_token_latency_ms": (last - first) / (n - 1) * 1e3 if n > 1 else None,
    }


def aiperf(times: Times, ms: float = 1e3) -> str:
    """As aiperf 0.13 writes it: a warm-up record, the requests, and one that failed."""
    records = [_aiperf_record(-1.0, [-0.9], ms) | {}]
    records[0]["metadata"]["benchmark_phase"] = "warmup"
    records += [_aiperf_record(sent, tokens, ms) for sent, tokens in times]
    failed = _aiperf_record(0.6, [0.7], ms)
    failed["metrics"] = {}
    failed["error"] = {"code": 500, "type": "HTTPError", "message": "no"}
    return "\n".join(json.dumps(r) for r in [*records, failed]) + "\n"


def _aiperf_record(sent: float, tokens: list[float], ms: float) -> dict[str, Any]:
    start_ns = round((EPOCH_S + sent) * 1e9)
    times = {"time_to_first_token": tokens[0] - sent, "request_latency": tokens[-1] - sent}
    metrics: dict[str, Any] = {name: {"value": s * ms, "unit": "ms"} for name, s in times.items()}
    metrics["input_sequence_length"] = {"value": INPUT_TOKENS, "unit": "tokens"}
    metrics["output_sequence_length"] = {"value": len(tokens), "unit": "tokens"}
    if len(tokens) > 1:
        metrics["inter_chunk_latency"] = {"value": (np.diff(tokens) * ms).tolist(), "unit": "ms"}
    end_ns = start_ns + round((tokens[-1] - sent) * 1e9)
    metadata = {"request_start_ns": start_ns, "request_end_ns": end_ns, "benchmark_phase": "profiling"}
    return {"metadata": metadata, "metrics": metrics, "error": None}


def inference_perf(times: Times) -> list[dict[str, Any]]:
    """As inference-perf 0.7 writes it; its client counts every token twice."""
    entries = [_entry(sent, tokens) for sent, tokens in times]
    failed = {"start_time": 9000.6, "end_time": 9000.7, "info": None, "error": {"error_type": "X", "error_msg": ""}}
    return [*entries, failed]


def _entry(sent: float, tokens: list[float]) -> dict[str, Any]:
    usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": len(tokens)}
    at = [9000.0 + t for t in tokens]
    twice = [t for t in at for _ in range(2)]  # chunks whose text becomes two tokens when tokenised again
    response = {"output_tokens": len(twice), "server_usage": usage, "output_token_times": twice, "chunk_times": at}
    info = {"request_metrics": {"text": {"input_tokens": 99}}, "response_metrics": response, "input_tokens": 99}
    return {"start_time": 9000.0 + sent, "end_time": at[-1] + 1e-4, "request": "{}", "info": info, "error": None}


FORMATS: dict[str, Callable[[Times], Any]] = {
    "guidellm": guidellm,
    "aiperf": aiperf,
    "inference-perf": inference_perf,
}


def written(folder: Path, data: Any) -> Path:
    path = folder / "result.json"
    path.write_text(json.dumps(data))
    return path


def read(folder: Path, data: Any) -> MeasuredRun:
    path = folder / "result.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return measured_run_file(path)


@pytest.mark.parametrize("client", FORMATS)
def test_every_format_gives_the_requests_that_were_sent(client: str, tmp_path: Path) -> None:
    run = read(tmp_path, FORMATS[client](TIMES))
    assert (run.client, run.n, run.n_failed) == (client, 3, 1)
    assert run.arrival_s == pytest.approx([0, 0.5, 1.5], abs=1e-6)
    assert run.input_tokens.tolist() == [64, 64, 64]
    assert run.output_tokens.tolist() == [3, 1, 4]
    assert run.ttft_s == pytest.approx([0.2, 0.3, 0.1], abs=1e-6)
    assert run.e2e_s == pytest.approx([0.35, 0.3, 1.0], abs=1e-6)
    assert run.tpot_s == pytest.approx([0.075, np.nan, 0.3], abs=1e-6, nan_ok=True)
    assert run.duration_s == pytest.approx(2.5, abs=1e-3)
    if client == "guidellm":
        assert "no ITL" in run.notes[0]
        assert np.isnan(run.stat("itl", "mean"))
    else:
        assert run.itl_s == pytest.approx([0.05, 0.1, 0.1, 0.2, 0.6], abs=1e-6)


@pytest.mark.parametrize("client", FORMATS)
def test_a_first_token_after_the_last_is_dropped_and_said(client: str, tmp_path: Path) -> None:
    backwards = [*TIMES, (1.0, [1.4, 1.3])]
    run = read(tmp_path, FORMATS[client](backwards))
    assert run.n == 3
    assert any(note.startswith("dropped 1 of 4 requests") for note in run.notes)


@pytest.mark.parametrize("client", FORMATS)
def test_damaged_files_are_one_line(client: str, tmp_path: Path) -> None:
    data = FORMATS[client](TIMES)
    text = data if isinstance(data, str) else json.dumps(data)
    for cut in (len(text) // 2, len(text) - 5):
        with pytest.raises(InputError, match="cut short") as caught:
            read(tmp_path, text[:cut])
        assert "\n" not in str(caught.value)


def test_guidellm_times_in_the_wrong_unit_are_caught(tmp_path: Path) -> None:
    report = guidellm(TIMES)
    for request in report["benchmarks"][0]["requests"]["successful"]:
        request["time_to_first_token_ms"] *= 1e3
    with pytest.raises(InputError, match="wrong unit"):
        read(tmp_path, report)
    report = guidellm(TIMES)
    for request in report["benchmarks"][0]["requests"]["successful"]:
        request["inter_token_latency_ms"] = (request["inter_token_latency_ms"] or 0) * 1e3
    assert read(tmp_path, report).n == 1  # the one without a second token


@pytest.mark.parametrize("factor", [1.0, 1e6])
def test_aiperf_times_in_the_wrong_unit_are_caught(factor: float, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="wrong unit"):
        read(tmp_path, aiperf(TIMES, ms=factor))


def test_aiperf_units_are_read_from_the_file(tmp_path: Path) -> None:
    in_us = aiperf(TIMES, ms=1e6).replace('"ms"', '"us"')
    assert read(tmp_path, in_us).stat("ttft", "mean") == pytest.approx(0.2)
    with pytest.raises(InputError, match="unknown unit"):
        read(tmp_path, aiperf(TIMES).replace('"ms"', '"fortnight"'))


def test_aiperf_warm_up_and_summary(tmp_path: Path) -> None:
    assert "left out 1 warm-up requests" in read(tmp_path, aiperf(TIMES)).notes
    summary = {
        "schema_version": "1.4",
        "aiperf_version": "0.13.0",
        "request_count": {"unit": "requests", "avg": 300},
        "error_request_count": {"unit": "requests", "avg": 3},
        "request_latency": {"unit": "ms", "avg": 900, "p50": 880, "p99": 1500, "std": 100, "min": 1},
        "time_to_first_token": {"unit": "ms", "avg": 80},
        "input_sequence_length": {"unit": "tokens", "avg": 64.5},
        "benchmark_duration": {"unit": "sec", "avg": 60},
        "input_config": {"phases": [{"name": "warmup", "rate": 1}, {"name": "profiling", "concurrency": 8}]},
    }
    with pytest.raises(InputError, match=r"no per-request lists.*profile_export\.jsonl"):
        read(tmp_path, summary)
    (found,) = measured_results(tmp_path / "result.json")
    assert isinstance(found, MeasuredSummary)
    assert (found.client, found.n, found.n_failed, found.duration_s) == ("aiperf", 300, 3, 60.0)
    assert found.statistics_s == {"ttft": {"mean": 0.08}, "e2e": {"mean": 0.9, "std": 0.1, "p50": 0.88, "p99": 1.5}}
    assert (found.input_mean_tokens, found.offered) == (64.5, OfferedLoad(None, 8))
    assert np.isnan(found.output_mean_tokens)
    with pytest.raises(InputError, match="request_count"):
        measured_results(written(tmp_path, {"aiperf_version": "0.13.0", "request_latency": {"avg": 1}}))


def test_a_guidellm_sweep_is_several_runs_and_sampled_reports_say_so(tmp_path: Path) -> None:
    report = guidellm(TIMES)
    report["benchmarks"] *= 2
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(report))
    assert [run.source for run in measured_runs(path)] == ["sweep.json benchmark 1", "sweep.json benchmark 2"]
    with pytest.raises(InputError, match="holds 2 runs"):
        measured_run_file(path)
    sampled = guidellm(TIMES)
    sampled["benchmarks"][0]["metrics"]["request_totals"]["successful"] = 300
    assert "the report holds 3 of 300 finished requests" in read(tmp_path, sampled).notes


def test_inference_perf_without_token_times_names_the_option(tmp_path: Path) -> None:
    entries = [{**entry, "info": None} for entry in inference_perf(TIMES)]
    with pytest.raises(InputError, match="per_request_fields"):
        read(tmp_path, entries)
