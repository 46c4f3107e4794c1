"""The `simulate` command as a user and as other programs meet it."""

from __future__ import annotations

import csv
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from catalogs.ui import progress
from simulator.cli.main import main

METRICS = {
    *("n_arrived", "n_completed", "n_rejected", "n_unfinished", "duration_s"),
    *("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"),
    *("requests_per_s", "output_tokens_per_s", "input_tokens_per_s", "prefix_hit_fraction", "n_preemptions"),
    *("kv_peak_fraction", "power", "energy"),
    *("n_failed", "n_retries", "replicas", "accelerator_hours"),
}
CLASSES = {
    *("gemm", "attention_prefill", "attention_decode", "moe", "collective", "elementwise"),
    *("host", "idle"),
}
COLUMNS = (
    "request_id,arrival_s,input_tokens,output_tokens,cached_tokens,"
    "ttft_s,tpot_s,e2e_s,queue_s,preemptions,replica,status,"
    "part_client_network_s,part_tokenise_s,part_queue_s,part_prefill_s,part_decode_s,part_detokenise_s"
)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    deployment = {"model": "llama3.1-8b", "hardware": "h100x2", "replicas": 2, "max_model_len": 4096}
    workload = {
        "arrivals": {"poisson": {"requests_per_s": 6}},
        "requests": 120,
        "seed": 3,
        "input_tokens": {"uniform": {"low": 1, "high": 900}},
        "output_tokens": {"uniform": {"low": 1, "high": 40}},
    }
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(deployment))
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(workload))
    return {name: tmp_path / name for name in ("d.yaml", "w.yaml", "o.json", "o.csv", "t.json")}


def simulate(*words: object) -> int:
    """Exit status of the command, run in this process."""
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    return int(exit_.value.code or 0)


def test_outputs_are_the_contract(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--json", files["o.json"], "--requests-out", files["o.csv"], "--chrome-trace", files["t.json"]]
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"], *out) == 0
    document = json.loads(files["o.json"].read_text())
    assert set(document) == {
        *("schema_version", "deployment", "workload", "seed"),
        *("metrics", "time_breakdown", "calibration", "notices", "complexity"),
    }
    assert set(document["metrics"]) == METRICS
    assert set(document["time_breakdown"]) == CLASSES
    assert set(document["metrics"]["ttft_s"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert document["deployment"]["max_num_seqs"] == 1024  # what null resolved to
    assert document["seed"] == 3
    rows = list(csv.DictReader(files["o.csv"].open()))
    assert files["o.csv"].read_text().splitlines()[0] == COLUMNS
    assert [int(r["request_id"]) for r in rows] == list(range(120))
    check_consistency(document, rows)
    trace = json.loads(files["t.json"].read_text())["traceEvents"]
    assert {e["pid"] for e in trace if e["ph"] == "X"} == {0, 1}
    assert not [path for path in files["o.csv"].parent.iterdir() if path.name.endswith(".part")]
    assert "time to first token" in capsys.readouterr().out


def check_consistency(document: dict[str, dict], rows: list[dict[str, str]]) -> None:
    metrics = document["metrics"]
    for r in rows:
        parts = [float(value) for name, value in r.items() if name.startswith("part_")]
        assert sum(parts) == pytest.approx(float(r["e2e_s"]), rel=0, abs=1e-6)
        assert min(parts) > -1e-9
    by_length = document["complexity"]
    assert sum(each["requests"] for each in by_length["by_bin"]) == by_length["requests"] == metrics["n_completed"]
    assert by_length["e2e_s"]["p99"] == pytest.approx(metrics["e2e_s"]["p99"])
    assert sum(part["share"] for part in by_length["parts"].values()) == pytest.approx(1.0)
    per_token = [float(r["e2e_s"]) / int(r["output_tokens"]) for r in rows]
    assert by_length["per_output_token_s"]["mean"] == pytest.approx(sum(per_token) / len(per_token))
    ttft = [float(r["ttft_s"]) for r in rows]
    assert metrics["ttft_s"]["mean"] == pytest.approx(sum(ttft) / len(ttft), rel=1e-12)
    for r in rows:
        assert (r["tpot_s"] == "") == (r["output_tokens"] == "1")
        gaps = int(r["output_tokens"]) - 1
        last = float(r["ttft_s"]) + (float(r["tpot_s"]) * gaps if gaps else 0.0)
        assert last == pytest.approx(float(r["e2e_s"]), rel=1e-9)
    tokens = sum(int(r["output_tokens"]) for r in rows)
    assert metrics["output_tokens_per_s"] * metrics["duration_s"] == pytest.approx(tokens)
    assert metrics["energy"]["gpu_j_per_output_token"] * tokens == pytest.approx(metrics["energy"]["gpu_j"])
    # two accelerators: mean power x 2 x duration is the energy
    assert metrics["power"]["gpu_w_mean"] * 2 * metrics["duration_s"] == pytest.approx(metrics["energy"]["gpu_j"])
    assert 60.0 < metrics["power"]["gpu_w_mean"] < 700.0
    # every second of both replicas is in some class; steps may end after the last token is out, never by much
    seconds = sum(document["time_breakdown"].values())
    assert seconds == pytest.approx(2 * metrics["duration_s"], rel=0.02)
    fractions = [document["calibration"][f"{kind}_fraction"] for kind in ("measured", "interpolated", "roofline")]
    assert sum(fractions) == pytest.approx(1.0)
    # whole runs of this engine were compared, and were further off than operators alone expect
    stated = document["calibration"]["stated_error"]
    assert {"ttft", "tpot", "e2e", "coverage", "n", "source"} <= set(stated)
    assert -1.0 < stated["tpot"][0] < stated["tpot"][1]
    assert (stated["generation"], stated["layers"]) == ("hopper", "dense")
    assert document["calibration"]["expected_error"] > document["calibration"]["operator_error"] > 0.0
    assert document["calibration"]["borrowed_from"] is None


def test_a_run_is_compared_with_another_at_equal_complexity(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """With itself the ratio is 1 exactly; with twice the clients' rate the other run is slower in every sense."""
    run = [files["d.yaml"], "--workload", files["w.yaml"], "--json", files["o.json"]]
    assert simulate(*run, "--requests-out", files["o.csv"]) == 0
    capsys.readouterr()
    assert simulate(*run, "--compare", files["o.csv"], "--complexity") == 0
    same = json.loads(files["o.json"].read_text())["comparison"]
    assert (same["ratio"], same["raw_ratio"], same["covered"]) == (1.0, 1.0, 1.0)
    assert {each["ratio"] for each in same["by_bin"]} <= {1.0, None}
    shown = capsys.readouterr().out
    for words in ("detokenise", "per input and output token", "end-to-end time = ", "p50 / p99, seconds", "o.csv"):
        assert words in shown
    starts = [line.strip() for line in shown.splitlines()]
    assert sum(line.startswith("queue ") for line in starts) == 1  # from the arrival; the part counts from the router
    assert sum(line.startswith("wait for the first step ") for line in starts) == 1
    title = next(i for i, line in enumerate(starts) if line.startswith("p50 / p99, seconds"))
    assert starts[title - 1].startswith("end-to-end time")
    assert simulate(*run, "--compare", files["o.csv"], "--rate", "40") == 0
    assert json.loads(files["o.json"].read_text())["comparison"]["ratio"] > 1.02
    for bad, rule in (("arrival_s\n1\n", "no column"), (COLUMNS + "\n", "no completed request")):
        files["o.csv"].write_text(bad)
        assert simulate(*run, "--compare", files["o.csv"]) == 2
        assert rule in capsys.readouterr().err


def test_a_run_is_compared_with_the_result_of_a_load_client(files: dict[str, Path]) -> None:
    """A client that measured twice the simulated times, as `vllm bench serve --save-detailed` writes them."""
    run = [files["d.yaml"], "--workload", files["w.yaml"], "--json", files["o.json"]]
    assert simulate(*run, "--requests-out", files["o.csv"]) == 0
    rows = list(csv.DictReader(files["o.csv"].open()))
    times = {name: [2.0 * float(row[name]) for row in rows] for name in ("arrival_s", "ttft_s", "e2e_s")}
    outputs = [int(row["output_tokens"]) for row in rows]
    zipped = list(zip(times["ttft_s"], times["e2e_s"], outputs, strict=True))
    result = {
        "model_id": "llama3.1-8b",
        "duration": max(a + e for a, e in zip(times["arrival_s"], times["e2e_s"], strict=True)),
        "completed": len(rows),
        "request_throughput": 1.0,
        "input_lens": [int(row["input_tokens"]) for row in rows],
        "output_lens": outputs,
        "ttfts": times["ttft_s"],
        "itls": [[(e2e - ttft) / (n - 1)] * (n - 1) if n > 1 else [] for ttft, e2e, n in zipped],
        "latencies": times["e2e_s"],
        "start_times": times["arrival_s"],
        "errors": [""] * len(rows),
    }
    client = files["o.csv"].with_name("client.json")
    client.write_text(json.dumps(result))
    assert simulate(*run, "--compare", client) == 0
    found = json.loads(files["o.json"].read_text())["comparison"]
    assert found["ratio"] == pytest.approx(0.5, rel=1e-6)
    assert found["fit_ratio"] == pytest.approx(0.5, rel=1e-6)


def test_pools_add_up(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    split = {"prefill_replicas": 1, "decode_replicas": 1, "transfer_gb_per_s": 1.0, "decode": {"hardware": "h100"}}
    files["d.yaml"].write_text(
        yaml.safe_dump({"model": "llama3.1-8b", "hardware": "h100x2", "max_model_len": 4096, "disaggregation": split})
    )
    out = ["--json", files["o.json"], "--requests-out", files["o.csv"], "--chrome-trace", files["t.json"]]
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"], *out) == 0
    assert "decode: llama3.1-8b" in capsys.readouterr().out
    document = json.loads(files["o.json"].read_text())
    metrics, rows = document["metrics"], list(csv.DictReader(files["o.csv"].open()))
    assert set(metrics) == METRICS | {"kv_transfer_s", "pools"}
    assert document["deployment"]["disaggregation"]["decode"]["hardware"] == "h100x1"
    assert {r["replica"] for r in rows} == {"1"}  # vLLM's connector: the first token comes from the decode side
    check_consistency(document, rows)  # one accelerator of each pool is used
    longest = max(int(r["input_tokens"]) for r in rows)
    sent = [e for e in json.loads(files["t.json"].read_text())["traceEvents"] if e["ph"] == "b"]
    assert len(sent) == len(rows)
    alone_s = longest * 131072 / 1e9 + 15e-6  # bytes of a token's KV, over the network
    assert metrics["kv_transfer_s"]["mean"] < alone_s <= metrics["kv_transfer_s"]["p99"] * 1.2


def test_same_seed_same_bytes(files: dict[str, Path]) -> None:
    texts = []
    for _ in range(2):
        out = ["--json", files["o.json"], "--requests-out", files["o.csv"]]
        assert simulate(files["d.yaml"], "--workload", files["w.yaml"], "--seed", 5, *out) == 0
        texts.append((files["o.json"].read_bytes(), files["o.csv"].read_bytes()))
    assert texts[0] == texts[1]
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"], "--seed", 6, "--json", files["o.json"]) == 0
    assert files["o.json"].read_bytes() != texts[0][0]


def test_json_to_stdout_is_only_json(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"], "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["n_completed"] == 120


def test_a_long_run_shows_on_stderr_that_it_goes_on(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.001)
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"], "--json", "-") == 0
    said = capsys.readouterr()
    assert "simulate: 120 requests (0 s)" in said.err.splitlines()
    assert json.loads(said.out)["metrics"]["n_completed"] == 120


def test_rejected_requests_are_named(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files["w.yaml"].write_text(
        "{arrivals: all_at_once, requests: 3, input_tokens: {constant: 5000}, output_tokens: {constant: 2}}"
    )
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"], "--requests-out", files["o.csv"]) == 0
    said = capsys.readouterr()
    fit = "the longest has 5,002 tokens; prompts of at most 4,094 fit with outputs of 2"
    assert f"3 of 3 requests rejected: longer than max_model_len 4096 ({fit})" in said.err
    row = next(csv.DictReader(files["o.csv"].open()))
    assert row["status"] == "rejected: longer than max_model_len"
    assert row["ttft_s"] == row["e2e_s"] == row["replica"] == ""


def test_an_encoder_decoder_states_the_positions_of_each_side(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its prompts of 600 do not fit in 512 positions, even if their outputs were shorter."""
    files["d.yaml"].write_text("{model: flan-t5-base, hardware: h100}")
    files["w.yaml"].write_text(
        "{arrivals: all_at_once, requests: 3, input_tokens: {constant: 600}, output_tokens: {constant: 600}}"
    )
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"]) == 0
    said = capsys.readouterr().err
    sides = "512 positions for the prompt and as many for the output (the longest prompt or output has 600 tokens)"
    assert f"3 of 3 requests rejected: longer than max_model_len 1024, which is {sides}" in said
    assert " fit " not in said


TWO_MODELS = (
    "{pools: [{model: llama3.1-8b, hardware: h100, max_model_len: LONG}, {model: qwen2.5-0.5b, hardware: h100, "
    "max_model_len: 1000}]}"
)


@pytest.mark.parametrize(
    ("most_of_first", "expected"),
    [
        (3000, "2 of 4 requests rejected: longer than max_model_len 1000 (the longest has 1,210 tokens; "),
        (2000, "3 of 4 requests rejected: longer than max_model_len\n"),  # of both models: no single limit
    ],
)
def test_a_fleet_states_the_limit_of_the_model_that_rejects(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], most_of_first: int, expected: str
) -> None:
    """The longest request, of 2,510 tokens, is one of the model with more positions."""
    files["d.yaml"].write_text(TWO_MODELS.replace("LONG", str(most_of_first)))
    trace = files["d.yaml"].with_name("t.csv")
    rows = ["0,2500,10,llama3.1-8b", "1,100,10,llama3.1-8b", "2,1200,10,qwen2.5-0.5b", "3,1200,10,qwen2.5-0.5b"]
    trace.write_text("\n".join(["arrival_s,input_tokens,output_tokens,model", *rows]))
    assert simulate(files["d.yaml"], "--workload", trace) == 0
    assert expected in capsys.readouterr().err


def test_what_is_cut_is_counted(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """5,000 tokens of prompt do not fit in 4,096 positions; the answer of the fourth ends early."""
    files["d.yaml"].write_text("{model: llama3.1-8b, hardware: h100, max_model_len: 4096, queue: {too_long: truncate}}")
    trace = files["d.yaml"].with_name("t.csv")
    rows = ["0,5000,2", "1,5000,2", "2,100,2", "3,4090,20"]
    trace.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    assert simulate(files["d.yaml"], "--workload", trace, "--json", files["o.json"]) == 0
    said = capsys.readouterr()
    assert "3 of 4 requests truncated to max_model_len" in said.err
    assert "3 truncated" in said.out
    assert json.loads(files["o.json"].read_text())["metrics"]["n_truncated"] == 3


def test_a_run_that_is_looked_at_is_not_shared(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    shared = ("--workload", files["w.yaml"], "--processes", 2)
    assert simulate(files["d.yaml"], *shared, "--chrome-trace", files["t.json"]) == 2
    assert "need a run in one process: got '--processes 2'" in capsys.readouterr().err
    assert simulate(files["d.yaml"], *shared) == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{model: llama3.1-8b, hardware: h100x2, replica: 2}", "replicas"),
        ("{model: llama3.1-8c, hardware: h100x2}", "llama3.1-8b"),
        ("{model: llama3.1-405b, hardware: h100}", "does not fit"),
        ("[1, 2", "d.yaml"),
    ],
)
def test_bad_input_is_one_line(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    files["d.yaml"].write_text(text)
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.startswith("simulate: ")
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


def test_an_unwritable_target_is_bad_input(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    target = files["o.csv"].parent / "nowhere" / "o.csv"
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"], "--requests-out", target) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--requests", 10**12), "at most 10,000,000 requests"),
        (("--rate", 1e-300), "at least 1e-06"),
        (("--concurrency", 10**11), "clients is at most 1,000,000,000"),
        (("--workload", ""), "nearest valid choice: azure-conv"),
        (("--rate", 3, "--concurrency", 10), "nearest valid choice: --concurrency 10 or --rate 3"),
        (("--json", ""), "name"),
        (("--requests-out", ""), "name"),
        (("--requests-out", "-"), "only --json"),
        (("--requests-out", "/tmp"), "folder"),
        (("--json", "same", "--requests-out", "same"), "a different name"),
        (("--router-staleness", "inf"), "must be 0 (always current) or at least"),
        (("--time-series", "t.csv", "--time-step", "inf"), "finite step"),
    ],
)
def test_options_out_of_bounds_are_one_line(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], words: tuple[object, ...], says: str
) -> None:
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"], *words) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert (said.out, len(said.err.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    ("deployment", "workload", "says"),
    [
        ("tensor_parallel: 1000000000000000000", "", "does not divide"),
        ("speculative: {method: ngram, num_speculative_tokens: 1000000000000, acceptance: 0.5}", "", "1024"),
        ("disaggregation: {prefill_replicas: 1, decode_replicas: 1, transfer_gb_per_s: .inf}", "", "finite"),
        ("", "input_tokens: {constant: 1000000000000000000000}", "1000000000"),
        ("", "input_tokens: {quantiles: {0: 1, 1: 1.0e+30}}", "1000000000"),
        ("", "input_tokens: {constant: 9}\nshared_prefix: {tokens: 9, groups: 1000000000000000000000}", "1000000000"),
    ],
)
def test_numbers_beyond_any_use_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], deployment: str, workload: str, says: str
) -> None:
    (tmp_path / "d.yaml").write_text(f"model: llama3.1-8b\nhardware: h100x2\n{deployment}\n")
    asked = workload or "input_tokens: {constant: 9}"
    (tmp_path / "w.yaml").write_text(f"arrivals: all_at_once\nrequests: 2\noutput_tokens: {{constant: 9}}\n{asked}\n")
    assert simulate(tmp_path / "d.yaml", "--workload", tmp_path / "w.yaml", "--json", tmp_path / "o.json") == 2
    said = capsys.readouterr()
    assert says in said.err
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert not (tmp_path / "o.json").exists()


def test_what_is_no_ordinary_file_is_written_into_never_replaced(files: dict[str, Path]) -> None:
    pipe = files["o.json"].with_name("pipe")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"], "--json", pipe) == 0
    assert json.loads(os.read(reader, 1 << 16))["metrics"]["n_completed"] == 120
    os.close(reader)
    assert pipe.is_fifo()


def test_a_run_imports_nothing_heavy(files: dict[str, Path]) -> None:
    code = (
        "import sys\nfrom simulator.cli.main import main\n"
        f"try: main([{str(files['d.yaml'])!r}, '--workload', {str(files['w.yaml'])!r}])\n"
        "except SystemExit as e: assert not e.code\n"
        "heavy = {'pandas', 'sklearn', 'scipy', 'optuna', 'pyarrow', 'torch', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_help_is_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "simulator.cli.main", "--help"], capture_output=True, text=True, check=True
    )
    assert "--requests-out" in done.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_engines_without_measurements_say_so_in_every_output(
    files: dict[str, Path], engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = f"{engine}: its scheduler and defaults are modelled"
    files["d.yaml"].write_text(yaml.safe_dump({"model": "llama3.1-8b", "hardware": "h100", "engine": engine}))
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"], "--json", files["o.json"]) == 0
    assert capsys.readouterr().err.count(told) == 1
    document = json.loads(files["o.json"].read_text())
    assert sum(notice.startswith(told) for notice in document["notices"]) == 1
    assert (document["deployment"]["engine"], document["metrics"]["n_completed"]) == (engine, 120)


def test_a_text_encoder_needs_neither_engine_nor_workload(files: dict[str, Path]) -> None:
    files["d.yaml"].write_text("{model: t5-small, hardware: h100}")
    assert simulate(files["d.yaml"], "--requests", 50, "--rate", 5, "--json", files["o.json"]) == 0
    found = json.loads(files["o.json"].read_text())
    assert found["deployment"]["engine"] == "trtllm"
    assert found["metrics"]["n_completed"] == 50


def test_a_start_command_is_the_same_as_its_deployment(files: dict[str, Path]) -> None:
    command = "vllm serve llama3.1-8b --max-model-len 4096 --max-num-seqs 64 --port 80"
    files["d.yaml"].write_text("{model: llama3.1-8b, hardware: h100, max_model_len: 4096, max_num_seqs: 64}")
    out = ["--workload", files["w.yaml"], "--json", files["o.json"]]
    assert simulate(files["d.yaml"], *out) == 0
    written = json.loads(files["o.json"].read_text())
    assert simulate("--from-command", command, "--hw", "h100", *out) == 0
    assert json.loads(files["o.json"].read_text())["metrics"] == written["metrics"]
    assert simulate("--from-command", command, "--hw", "h100", "--set", "max_num_seqs=1", *out) == 0
    assert json.loads(files["o.json"].read_text())["metrics"] != written["metrics"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ([], "simulate needs a deployment"),
        (["--from-command", "ls"], "must start an engine that is known"),
        (["--from-command", "vllm serve llama3.1-8b"], "does not name one kind of accelerator"),
        (["d.yaml", "--hw", "h100"], "--hw belongs to a start command"),
        (["--from-command", "vllm serve m", "--hw", "h100", "--artefact", "a"], "an artefact keeps a deployment file"),
    ],
)
def test_bad_start_commands(words: list[str], rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(*words) == 2
    assert rule in capsys.readouterr().err


def test_the_header_names_every_part_of_the_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Redundant experts and shared KV caches decide the times as much as ranks do."""
    deployment = {"model": "deepseek-v3", "hardware": "2*h200x8", "data_parallel": 16, "expert_parallel": True}
    deployment |= {"all2all_backend": "deepep_low_latency", "redundant_experts": 32, "max_model_len": 4096}
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(deployment))
    sent = ["--requests", "4", "--rate", "1", "--input-tokens", "100", "--output-tokens", "4"]
    assert simulate(tmp_path / "d.yaml", *sent) == 0
    header = " ".join(capsys.readouterr().out.split())
    assert ", 1 replica x TP1 x DP16 + EP with 32 redundant experts, " in header
