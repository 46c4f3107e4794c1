"""Measured rows compared with predictions: planted tables whose errors are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from catalogs.errors import InputError
from catalogs.workloads.workload import load_workload
from planner.matrix.cell_workers import LocalPool
from planner.matrix.client_results import read_points
from planner.matrix.comparison import compare, predict
from planner.matrix.matrix_run import MatrixRun, run_matrix
from planner.matrix.published_rows import MeasuredPoint, read_measured
from planner.matrix.request_lengths import length_points, ratio, ratios
from planner.matrix.row import MatrixRow

HEAD = "gpu,n_gpus,engine,model,input_tokens,output_tokens,batch,latency_s,weight_dtype,kv_dtype,source\n"


def table(tmp_path: Path, *lines: str) -> list[MeasuredPoint]:
    path = tmp_path / "static.csv"
    path.write_text(HEAD + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return read_measured(path)


def test_errors_are_those_of_the_planted_table(tmp_path: Path) -> None:
    line = "h100,1,vLLM V1,llama-2-7b,128,32,{batch},{latency},,,planted"
    points = table(tmp_path, *(line.format(batch=b, latency=1.0) for b in (1, 4)))
    exact = [predict(point).metrics["duration_s"] for point in points]  # type: ignore[index]
    points = table(
        tmp_path,
        line.format(batch=1, latency=exact[0]),
        line.format(batch=4, latency=exact[1] / 3.0),
        "h100,1,Unheard-of,llama-2-7b,128,32,1,1.0,,,planted",
        "mi250,1,vLLM,llama-2-7b,128,32,1,1.0,,,planted",
    )
    result = run_matrix(None, [], points, MatrixRun(LocalPool(1)))
    found = result.comparison
    assert found is not None
    errors = {value.cell: value.error for value in found.values}
    assert list(errors.values()) == pytest.approx([0.0, 2.0])
    assert [value.cell for value in found.outside] == [points[1].name]
    assert [(group.n, group.covered) for group in found.groups] == [(2, 0.5)]
    assert sum(n for _, n in found.unpredicted) == 2
    assert [row.origin for row in result.rows] == ["simulated", "measured"] * 4
    assert [row.verdict for row in result.rows][4::2] == ["unsupported", "unsupported"]
    assert len({row.key for row in result.rows}) == 8


@pytest.mark.parametrize(("published", "engine"), [("vLLM", "vllm-v0"), ("TensorRT-LLM", "trtllm-tensorrt")])
def test_static_batches_have_the_interval_of_the_engine_of_their_day(
    tmp_path: Path, published: str, engine: str
) -> None:
    (point,) = table(tmp_path, f"h100,1,{published},llama-2-7b,128,32,4,1.0,,,planted")
    assert point.deployment["engine"] == engine
    (value,) = compare([point], [predict(point)]).values
    assert value.low_s is not None
    assert value.high_s is not None
    assert value.low_s < value.predicted_s < value.high_s


def test_closed_loops_are_read_with_their_layout(tmp_path: Path) -> None:
    path = tmp_path / "loop.csv"
    path.write_text(
        "system,backend,backend_version,model,precision,gpus,tensor_parallel,pipeline_parallel,"
        "attention_data_parallel,expert_parallel,concurrency,input_tokens_max,output_tokens_max,ttft_mean_ms,"
        "tpot_mean_ms,source,same_run_as\n"
        "h200_sxm,vllm,0.15.1,Qwen/Qwen3-32B,fp8,2,2,1,1,false,4,64,16,50,10,x,\n"
        "h200_sxm,vllm,0.15.1,Qwen/Qwen3-32B,fp8,2,2,1,1,false,4,64,16,50,10,x,other\n",
        encoding="utf-8",
    )
    (point,) = read_measured(path)
    assert point.deployment["engine"] == "vllm-0.15"
    assert point.deployment["hardware"] == "h200x2"
    assert point.values == {"ttft_s.mean": 0.05, "tpot_s.mean": 0.01}
    found = compare([point], [predict(point)])
    assert {value.metric for value in found.values} == {"ttft_s.mean", "tpot_s.mean"}


def test_static_batches_of_2024_run_on_the_engines_of_2024(tmp_path: Path) -> None:
    points = table(tmp_path, *(f"h100,1,{e},llama-2-7b,128,32,1,1.0,,,x" for e in ("vLLM", "TensorRT-LLM", "HF")))
    assert [point.deployment["engine"] for point in points] == ["vllm-v0", "trtllm-tensorrt", "transformers-static"]


def test_every_step_of_the_tensorrt_backend_waits_for_the_host(tmp_path: Path) -> None:
    """32 more tokens of 4 sequences cost 32 x (1.2 ms + 4 x 0.01 ms) more than with the overlap scheduler of today."""
    lines = (f"h100,1,TensorRT-LLM,llama-2-7b,128,{tokens},4,1.0,,,x" for tokens in (32, 64))
    old = table(tmp_path, *lines)
    new = [replace(point, deployment={**point.deployment, "engine": "trtllm"}) for point in old]
    grown = []
    for short, long in (old, new):
        grown.append(predict(long).metrics["duration_s"] - predict(short).metrics["duration_s"])  # type: ignore[index]
    assert grown[0] - grown[1] == pytest.approx(32 * 1.24e-3, rel=0.02)


def test_other_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match="no known table"):
        read_measured(path)
    with pytest.raises(InputError, match="line 2 is not a measurement"):
        table(tmp_path, "h100,1,vLLM,llama-2-7b,128,32,1,-1,,,planted")


def client_result(path: Path, n: int = 120, concurrency: int | None = 4) -> Path:
    """Write what `vllm bench serve --save-result --save-detailed` writes, of requests of two lengths."""
    outputs = [8 if i % 2 else 16 for i in range(n)]
    gaps = [[0.01] * (o - 1) for o in outputs]
    document = {
        "duration": 30.0,
        "completed": n,
        "request_throughput": n / 30.0,
        "max_concurrency": concurrency,
        "request_rate": "inf",
        "input_lens": [100 if i % 2 else 300 for i in range(n)],
        "output_lens": outputs,
        "ttfts": [0.05] * n,
        "itls": gaps,
        "errors": [""] * n,
        "start_times": [0.2 * i for i in range(n)],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_results_of_a_load_client_are_joined_with_their_deployment(tmp_path: Path) -> None:
    result, served = client_result(tmp_path / "run.json"), tmp_path / "deployment.yaml"
    served.write_text("model: llama3.1-8b\nengine: vllm\nhardware: h100x1\nmax_num_seqs: 64\n", encoding="utf-8")
    (point,) = read_points(Path(f"{result}={served}"))
    assert (point.model, point.engine, point.hardware, point.batch) == ("llama3.1-8b", "vllm", "h100x1", 4)
    assert point.values["ttft_s.mean"] == pytest.approx(0.05)
    assert point.values["tpot_s.mean"] == pytest.approx(0.01)
    drawn = load_workload(point.workload_text).materialise(0, 2000)
    assert drawn.concurrency == 4
    assert drawn.input_tokens.mean() == pytest.approx(200, rel=0.1)
    assert drawn.output_tokens.mean() == pytest.approx(12, rel=0.1)
    found = compare([point], [predict(point)])
    assert {value.metric for value in found.values} == {"ttft_s.mean", "tpot_s.mean", "e2e_s.mean"}
    assert all(value.low_s is not None for value in found.values)
    with pytest.raises(InputError, match="give their deployment"):
        read_points(result)
    (tmp_path / "a.csv").write_text(HEAD)
    with pytest.raises(InputError, match="states its deployments itself"):
        read_points(Path(f"{tmp_path / 'a.csv'}={served}"))
    with pytest.raises(InputError, match="cannot be read"):
        read_points(tmp_path / "nothing.json")


def test_rows_of_inferencex_state_their_deployment(tmp_path: Path) -> None:
    row = {
        "hw": "h200",
        "tp": 8,
        "ep": 1,
        "dp_attention": "false",
        "conc": 64,
        "model": "openai/gpt-oss-120b",
        "framework": "vllm",
        "precision": "fp4",
        "isl": 1024,
        "osl": 1024,
        "mean_ttft": 0.2,
        "mean_tpot": 0.01,
    }
    path = tmp_path / "agg.json"
    path.write_text(json.dumps([row, {**row, "is_multinode": True, "disagg": True, "framework": "dynamo-trt"}]))
    one, several = read_points(path)
    assert (one.hardware, one.batch, one.deployment["tensor_parallel"]) == ("h200x8", 64, 8)
    assert one.values == {"ttft_s.mean": 0.2, "tpot_s.mean": 0.01}
    assert "no such engine" in predict(several).rule
    path.write_text(json.dumps([{**row, "mean_tpot": -1.0}]))
    with pytest.raises(InputError, match="not a measurement"):
        read_points(path)


def part(least: int, n: int, mean_s: float) -> dict[str, object]:
    stats = {"mean": mean_s, "p50": mean_s, "p95": 2 * mean_s}
    ends = {"least": least, "below": 2 * least}
    return {
        "input_tokens": ends,
        "output_tokens": ends,
        "requests": n,
        "mean_input_tokens": 1.5 * least,
        "mean_output_tokens": 1.5 * least,
        "e2e_s": stats,
    }


def row(engine: str, *parts: dict[str, object]) -> MatrixRow:
    axes = {"model": "m", "hardware": "h", "workload": "w", "precision": "p", "layout": "l", "load": "closed"}
    return MatrixRow(
        cell=engine,
        origin="simulated",
        engine=engine,
        batch=1,
        requests=1,
        seed=0,
        verdict="ok",
        complexity={"by_bin": list(parts)},
        **axes,  # type: ignore[arg-type]
    )


def test_an_engine_compared_with_itself_has_the_ratio_one() -> None:
    first, second = row("a", part(1, 3, 1.0), part(2, 1, 5.0)), row("b", part(1, 3, 2.0), part(2, 1, 10.0))
    assert ratio(first, first) == 1.0
    assert ratio(first, second) == 2.0
    assert ratio(first, row("c", part(64, 1, 1.0))) is None
    assert [(a.engine, b.engine, r) for a, b, r in ratios([first, second])] == [("a", "b", 2.0)]


def test_lengths_do_not_count_in_a_ratio() -> None:
    """The second engine has more long requests and the same times: its mean is larger, and the ratio is 1."""
    first, second = row("a", part(1, 9, 1.0), part(2, 1, 5.0)), row("b", part(1, 1, 1.0), part(2, 9, 5.0))
    assert ratio(first, second) == 1.0


def test_points_of_a_ribbon_are_bins_of_output_length() -> None:
    points = length_points(row("a", part(2, 1, 5.0), part(1, 3, 1.0)))
    assert [(p["tokens"], p["mean"], p["p95"]) for p in points] == [(1.5, 1.0, 2.0), (3.0, 5.0, 10.0)]
