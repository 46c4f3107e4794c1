"""Reality against the plan: files of real clients, refused when they are of something else; a server's metrics."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from calibration.accuracy.measured_run import UNSTATED
from calibration.accuracy.regime import UNKNOWN, Regime
from calibration.importers.load_clients import vllm_bench
from calibration.importers.load_clients.model_name import measured_model
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.models.catalog import load_model
from catalogs.ui.entry_point import run_command
from catalogs.ui.terminal import PIPED
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import load_workload
from planner.answer.answer_schema import Answer, same_model
from planner.cli.main import app
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.metric_definition import LatencyMetric
from planner.problem.slo import Slo
from planner.sections.full_answer import parse_answer
from planner.verify.drift import drift
from planner.verify.measured_load import LoadSimulator, load_of
from planner.verify.prediction import Expected, Prediction
from planner.verify.prometheus import Histogram, Interval, observe_server, parse
from planner.verify.verification import bootstrap, finding
from simulator.cluster.simulate import simulate
from tests.calibration.importers.load_clients.test_load_clients import aiperf, guidellm, inference_perf
from tests.planner.report.test_plan_report import planned
from tests.planner.short_runs import usual

MODEL = "meta-llama/Llama-3.1-8B"
N = 400


@cache
def told() -> str:
    """An answer from runs of the usual length, with whose latencies requests are compared."""
    with usual():
        return planned()


def data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told())
    return found


@cache
def answer() -> Answer:
    return parse_answer(data())


def prediction() -> Prediction:
    found = Prediction.of(answer(), answer().plans[0])
    assert found is not None
    return found


def test_a_prediction_has_the_error_of_the_regime_of_its_answer() -> None:
    found = prediction()
    regime = Regime.of(load_model(MODEL), parse_hardware(found.plan.hardware).accelerator)
    assert found.error.regime == regime != UNKNOWN
    older = data()
    for key in ("generation", "layers"):
        del older["best"]["calibration"]["stated_error"][key]
    read = parse_answer(older)
    assert Prediction.of(read, read.plans[0]).error.regime == UNKNOWN


Times = list[tuple[float, list[float]]]


def drawn(rate: float = 1.0) -> RequestSet:
    """Other requests of the planned workload."""
    return load_workload(answer().request.workload).materialise(6, N, prediction().requests_per_s * rate)


def sent(n: int = N, slower: float = 1.0, rate: float = 1.0, longer: float = 1.0) -> Times:
    """(when it was sent, when its tokens came) of requests as planned: the plan's rate, lengths and expected latencies.

    The expected latencies are the simulated ones times the middle of the stated error.
    """
    rng, requests, cdf = np.random.default_rng(7), drawn(rate), answer().plans[0].latency_cdf
    first, gap = (
        slower
        * prediction().error.factors(metric, np.array([0.5]))
        * np.interp(rng.random(N), np.array(cdf["quantiles"], float), np.array(cdf[f"{metric}_s"], float))
        for metric in ("ttft", "tpot")
    )
    counts = np.maximum(np.rint(requests.output_tokens * longer), 1).astype(int)
    rows = zip(requests.arrival_s.tolist(), first.tolist(), gap.tolist(), counts.tolist(), strict=True)
    return [(at, [at + f + g * i for i in range(k)]) for at, f, g, k in rows][:n]


def bench(times: Times, model: str = MODEL, longer_prompts: float = 1.0) -> dict[str, Any]:
    """As `vllm bench serve --save-result --save-detailed` writes it."""
    gaps = [np.diff(tokens).tolist() for _, tokens in times]
    latencies = [tokens[-1] - at for at, tokens in times]
    return {
        "model_id": model,
        "duration": max(tokens[-1] for _, tokens in times),
        "completed": len(times),
        "request_throughput": 1.0,
        "input_lens": [max(round(n * longer_prompts), 1) for n in drawn().input_tokens.tolist()][: len(times)],
        "output_lens": [len(tokens) for _, tokens in times],
        "ttfts": [tokens[0] - at for at, tokens in times],
        "itls": gaps,
        "latencies": latencies,
        "start_times": [50.0 + at for at, _ in times],
        "errors": [""] * len(times),
    }


def run(folder: Path, result: Any, *options: str) -> int:
    plan, results = folder / "plan.json", folder / "result.json"
    plan.write_text(json.dumps(data()))
    results.write_text(result if isinstance(result, str) else json.dumps(result))
    return run_command("plan", app, ["verify", str(plan), "--results", str(results), *options])


def test_what_is_as_planned_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, bench(sent()), "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is True
    rows = {(r["metric"], r["stat"]): r for r in found["latencies"]}
    assert rows["tpot", "mean"]["finding"] == "inside"
    assert rows["tpot", "mean"]["objective_met"] is True
    assert rows["ttft", "p99"]["finding"] == "too few"  # 4 of 400 lie beyond
    assert rows["itl", "p99"]["finding"] == "not judged"


def test_what_is_slower_or_faster_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, bench(sent(slower=0.05)), "--json", "-") == 1
    found = json.loads(capsys.readouterr().out)
    assert {r["finding"] for r in found["latencies"] if r["metric"] == "tpot"} <= {"faster", "too few"}
    assert run(tmp_path, bench(sent(slower=20.0)), "--json", "-") == 1
    found = json.loads(capsys.readouterr().out)
    for row in found["latencies"]:
        if row["metric"] == "tpot" and row["high_s"] is not None and row["finding"] != "too few":
            assert row["finding"] == "slower"
        if (row["metric"], row["stat"]) == ("tpot", "mean"):
            assert row["objective_met"] is False  # whatever the interval: this near capacity it has no end
    assert run(tmp_path, bench(sent(slower=20.0))) == 1
    screen = capsys.readouterr().out
    assert "tpot.mean misses its objective" in screen
    assert max(map(len, screen.splitlines())) <= PIPED


def test_a_metric_that_clients_do_not_report_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`norm` needs nothing but its entry in the table."""
    reported = LATENCY_METRICS["e2e"]
    given = {f.name: getattr(reported, f.name) for f in fields(LatencyMetric) if f.name not in ("name", "measured")}
    monkeypatch.setitem(LATENCY_METRICS._metrics, "norm", LatencyMetric(name="norm", **given))
    assert run(tmp_path, bench(sent()), "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert "no norm in this result" in found["notes"]
    assert {row["metric"] for row in found["latencies"]} == {"ttft", "tpot", "itl", "e2e"}


def test_an_objective_on_some_lengths_is_compared_with_those_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client's requests that fulfil the condition are compared; a normalised latency is computed from its lists."""
    document, result = data(), bench(sent())
    lengths = sorted(result["input_lens"])
    name = f"e2e[in>={lengths[len(lengths) // 2]}]"
    row = document["best"]["slo"][0]
    for metric in (name, "normalized"):
        document["best"]["slo"].append(row | {"metric": metric, "stat": "mean", "limit_s": 100.0})
        document["request"]["slo"].append(f"{metric}.mean=100s")
    del document["request"]["slo_words"]
    (tmp_path / "plan.json").write_text(json.dumps(document))
    (tmp_path / "result.json").write_text(json.dumps(result))
    words = ["verify", str(tmp_path / "plan.json"), "--results", str(tmp_path / "result.json"), "--json", "-"]
    run_command("plan", app, words)
    rows = {(r["metric"], r["stat"]): r for r in json.loads(capsys.readouterr().out)["latencies"]}
    long = [
        t for t, n in zip(result["latencies"], result["input_lens"], strict=True) if n >= lengths[len(lengths) // 2]
    ]
    each = [t / n for t, n in zip(result["latencies"], result["output_lens"], strict=True)]
    assert rows[name, "mean"]["measured_s"] == pytest.approx(np.mean(long))
    assert rows["normalized", "mean"]["measured_s"] == pytest.approx(np.mean(each))


def test_a_finite_interval_is_left_at_either_end() -> None:
    expected = Expected("tpot", "mean", 0.02, 0.01, 0.04)
    assert [finding(expected, v, v, 100) for v in (0.009, 0.011, 0.039, 0.041)] == [
        "faster",
        "inside",
        "inside",
        "slower",
    ]


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (lambda: bench(sent(), model="meta-llama/Llama-3.1-70B"), "another model"),
        (lambda: bench(sent(), longer_prompts=3.0), "mean input tokens"),
        (lambda: bench(sent(longer=2.0)), "mean output tokens"),
        (lambda: {k: v for k, v in bench(sent()).items() if k != "ttfts"}, "--save-detailed"),
        (lambda: {"hello": 1}, "not a result of a known load client"),
        (lambda: "{", "cut short"),
    ],
)
def test_results_of_something_else_are_refused(
    result: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, result()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err


def summary_of(result: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """As `vllm bench serve --save-result` writes a result without --save-detailed."""
    lists = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "errors")
    found = {key: value for key, value in result.items() if key not in lists}
    found |= {"total_input_tokens": sum(result["input_lens"]), "total_output_tokens": sum(result["output_lens"])}
    gaps = [gap for request in result["itls"] for gap in request]
    per_token = [np.mean(request) for request in result["itls"] if request]
    samples = {"ttft": result["ttfts"], "tpot": per_token, "itl": gaps, "e2el": result["latencies"]}
    for metric, values_s in samples.items():
        ms = np.array(values_s) * 1e3
        found |= {f"mean_{metric}_ms": ms.mean(), f"median_{metric}_ms": np.median(ms), f"std_{metric}_ms": ms.std()}
        found |= {f"p{q}_{metric}_ms": np.percentile(ms, q) for q in (50, 90, 95, 99)}
    return found | {"request_rate": "inf", "max_concurrency": None, "max_concurrent_requests": 40} | settings


def latencies(document: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(row["metric"], row["stat"]): row["measured_s"] for row in document["latencies"]}


def test_a_summary_is_compared_as_its_requests_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rate of a result without start times is that of its settings: its duration contains the drain."""
    whole, rate = bench(sent()), prediction().requests_per_s
    assert run(tmp_path, whole, "--json", "-") == 0
    detailed = json.loads(capsys.readouterr().out)
    late = {**whole, "duration": 3 * whole["duration"]}
    assert run(tmp_path, summary_of(late, request_rate=rate), "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert latencies(found) == pytest.approx(latencies(detailed), rel=1e-6)
    assert found["predicted_for"] == {"requests_per_s": rate, "concurrency": None, "as_planned": True}
    without_times = {**{k: v for k, v in late.items() if k != "start_times"}, "request_rate": rate}
    assert run(tmp_path, without_times, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["predicted_for"]["requests_per_s"] == rate
    assert run(tmp_path, summary_of(whole)) == 2
    assert "--save-detailed" in capsys.readouterr().err  # a replayed trace: its rate is in no setting


def closed(clients: int, n: int = 500) -> dict[str, Any]:
    """The plan's deployment itself under a fixed concurrency, as the client writes it."""
    found = prediction()
    simulator = LoadSimulator.of(found, 0)
    evaluator, candidate = simulator.rerun.evaluator_of(0), simulator.rerun.candidates[0]
    drawn = simulator.rerun.workload.materialise(77, n)
    requests = replace(drawn, arrival_s=np.zeros(n), concurrency=clients)
    done = simulate(evaluator.deployments.part(candidate, 1), requests)
    gaps = [[tpot] * (k - 1) for tpot, k in zip(done.tpot_s.tolist(), requests.output_tokens.tolist(), strict=True)]
    return {
        "model_id": MODEL,
        "request_rate": "inf",
        "max_concurrency": clients,
        "duration": float(done.last_token_s.max()),
        "completed": n,
        "request_throughput": 1.0,
        "max_concurrent_requests": clients,
        "input_lens": requests.input_tokens.tolist(),
        "output_lens": requests.output_tokens.tolist(),
        # Published first tokens of this engine took longer than simulated ones, and the interval is around those.
        "ttfts": (1.1 * done.ttft_s).tolist(),
        "itls": gaps,
        "latencies": done.e2e_s.tolist(),
        "start_times": done.arrival_s.tolist(),
        "errors": [""] * n,
    }


def test_a_sweep_of_concurrency_is_predicted_for_each_of_its_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The simulated deployment in place of the server: every mean lies inside its interval, at every concurrency."""
    plan, files = tmp_path / "plan.json", []
    plan.write_text(json.dumps(data()))
    for clients in (2, 12):
        for kind, result in (("all", closed(clients)), ("sum", summary_of(closed(clients), max_concurrency=clients))):
            files.append(tmp_path / f"{kind}-{clients}.json")
            summary = {"max_concurrent_requests": clients} if kind == "sum" else {}
            files[-1].write_text(json.dumps(result | summary))
    options = [option for file in files for option in ("--results", str(file))]
    assert run_command("plan", app, ["verify", str(plan), *options, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["predicted_for"]["concurrency"] for each in document["runs"]] == [2, 2, 12, 12]
    assert document["holds"] is True
    for each in document["runs"]:
        means = {row["metric"]: row for row in each["latencies"] if row["stat"] == "mean"}
        assert {"ttft", "tpot", "e2e"} <= set(means)
        assert means["e2e"]["measured_s"] == pytest.approx(means["e2e"]["value_s"], rel=0.25)
    assert run_command("plan", app, ["verify", str(plan), *options[4:]]) == 0
    assert capsys.readouterr().out.count("12 requests in flight: As predicted") == 2


def test_another_rate_is_predicted_for_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, bench(sent(rate=0.5)), "--json", "-") in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert found["predicted_for"]["as_planned"] is False
    assert found["predicted_for"]["requests_per_s"] == pytest.approx(0.5 * prediction().requests_per_s, rel=0.2)
    assert any("predictions are simulated for" in note for note in found["notes"])


def test_loads_are_read_from_arrivals_alone() -> None:
    """Closed loops show themselves by requests that follow the end of another one; single open-loop requests do not."""
    loop = replace(vllm_bench.read_vllm_bench(closed(6), "r"), offered=UNSTATED)
    assert load_of(loop).concurrency == 6
    alone = replace(vllm_bench.read_vllm_bench(closed(1, 40), "r"), offered=UNSTATED)
    assert load_of(alone).concurrency == 1
    spaced = replace(alone, arrival_s=np.cumsum(np.full(alone.n, 3 * alone.e2e_s.max())))
    assert load_of(spaced).concurrency is None
    at_once = replace(loop, arrival_s=np.zeros(loop.n))
    assert load_of(at_once).concurrency == loop.n
    for rate in (0.3, 1.0):
        opened = load_of(vllm_bench.read_vllm_bench(bench(sent(rate=rate)), "r"))
        assert opened.concurrency is None
        assert opened.requests_per_s == pytest.approx(rate * prediction().requests_per_s, rel=0.2)


def test_a_local_model_is_the_same_model_under_any_path(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "num_hidden_layers": 8,
        "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 8192,
    }  # fmt: skip
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, layers in ((one, 8), (other, 9)):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    assert same_model(str(one), str(one / "config.json")) is True
    assert same_model(str(other), str(one / "config.json")) is False
    assert same_model(str(one), "llama3.1-8b") is False
    assert same_model("served-name", str(one)) is None


def test_the_user_may_name_the_model_in_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = "meta-llama/Llama-3.1-70B"
    assert run(tmp_path, bench(sent(), model=other)) == 2
    assert f"--served {other}" in capsys.readouterr().err
    assert run(tmp_path, bench(sent(), model=other), "--served", other) == 0
    assert run(tmp_path, bench(sent(), model=other), "--served", "x") == 2


def test_a_served_name_is_taken_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, bench(sent(), model="production-chat")) == 0
    assert "production-chat" in capsys.readouterr().out
    assert same_model("llama3.1-8b", MODEL) is True
    assert same_model("production-chat", MODEL) is None


def test_failed_requests_are_a_miss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(sent())
    for i in range(0, N, 20):  # one in twenty
        result["errors"][i], result["output_lens"][i], result["ttfts"][i] = "Internal Server Error", 0, 0.0
    assert run(tmp_path, result) == 1
    assert "5.0 % of requests failed" in capsys.readouterr().out


@pytest.mark.parametrize("client", ["guidellm", "aiperf", "inference-perf"])
def test_every_client_is_read_to_the_end(client: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The writers of the importers' own tests, their prompts of 64 tokens: another workload than the plan's, or not."""
    made: Any = {"guidellm": guidellm, "aiperf": aiperf, "inference-perf": inference_perf}[client](sent())
    if client == "guidellm":
        made["benchmarks"][0]["duration"] = 1e4
    text = made if isinstance(made, str) else json.dumps(made)
    mean = round(prediction().input_mean_tokens)
    own = _lengths(text, client, mean)
    assert run(tmp_path, own, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["client"] == client
    assert run(tmp_path, _lengths(text, client, 5 * mean)) == 2
    assert "mean input tokens" in capsys.readouterr().err


def _lengths(text: str, client: str, tokens: int) -> str:
    key = {
        "guidellm": '"prompt_tokens": ',
        "aiperf": '"input_sequence_length": {"value": ',
        "inference-perf": '"prompt_tokens": ',
    }
    assert f"{key[client]}64" in text
    return text.replace(f"{key[client]}64", f"{key[client]}{tokens}")


def test_the_model_is_read_from_what_clients_keep(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for document, name in (
        ({"model_id": "a"}, "a"),
        ([{"request": json.dumps({"model": "b", "prompt": "x"})}], "b"),
        ({"benchmarks": [{"requests": {"successful": [{"request_args": json.dumps({"body": {"model": "c"}})}]}}]}, "c"),
        ({"benchmarks": [{"requests": {}}]}, None),
        ([{"request": "no json"}], None),
        ("text", None),
    ):
        path.write_text(json.dumps(document))
        assert measured_model(path) == name
    path.write_text("not json\n")
    assert measured_model(path) is None


def test_bootstrap_intervals_hold_what_they_promise() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        low, high = bootstrap(rng.exponential(1.0, 300), Slo("ttft", "p50", 1.0), 0.9)
        hits += low <= math.log(2) <= high
    assert 0.82 <= hits / 200 <= 0.97


# ---- a running server


BOUNDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    math.inf,
)


def metrics(times: Times, model: str = MODEL, before: int = 0) -> str:
    """A page of vLLM 0.32 (buckets of its TTFT used throughout), after `before` earlier requests of a second each."""
    p = prediction()
    names = {
        "vllm:time_to_first_token_seconds": [tokens[0] - at for at, tokens in times],
        "vllm:inter_token_latency_seconds": [g for _, tokens in times for g in np.diff(tokens).tolist()],
        "vllm:request_time_per_output_token_seconds": [
            float(np.diff(tokens).mean()) for _, tokens in times if len(tokens) > 1
        ],
        "vllm:e2e_request_latency_seconds": [tokens[-1] - at for at, tokens in times],
    }
    lines = ["# HELP vllm:num_requests_running Number of requests.", "# TYPE vllm:num_requests_running gauge"]
    label = f'engine="0",model_name="{model}"'
    lines.append(f"vllm:num_requests_running{{{label}}} 3.0")
    for name, values in names.items():
        everything = np.array(values + [1.0] * before)
        lines.append(f"# TYPE {name} histogram")
        for bound in BOUNDS:
            le = "+Inf" if math.isinf(bound) else f"{bound}"
            lines.append(
                f'{name}_bucket{{engine="0",le="{le}",model_name="{model}"}} {float((everything <= bound).sum())}'
            )
        lines += [f"{name}_count{{{label}}} {float(len(everything))}", f"{name}_sum{{{label}}} {everything.sum()}"]
    n = len(times) + before
    for reason, count in (("stop", 0.0), ("length", float(n))):
        lines.append(
            f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{model}"}} {count}'
        )
    lines.append(f"vllm:prompt_tokens_total{{{label}}} {n * p.input_mean_tokens}")
    tokens_out = sum(len(tokens) for _, tokens in times) + before * p.output_mean_tokens
    lines.append(f"vllm:generation_tokens_total{{{label}}} {float(tokens_out)}")
    return "\n".join(lines) + "\n"


class Server:
    """A page that changes with every look; or a Prometheus server that was asked."""

    def __init__(self, pages: list[str], api: dict[str, list[dict[str, Any]]] | None = None) -> None:
        self.pages, self.api = pages, api

    def answer(self, path: str) -> tuple[int, str]:
        parts = urlsplit(path)
        if parts.path == "/metrics":
            return 200, self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        if parts.path == "/api/v1/query" and self.api is not None:
            query = parse_qs(parts.query)["query"][0]
            rows = self.api["names"] if query.startswith("count by") else self.api.get(query.split("[")[0][9:], [])
            return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}})
        return 404, "no"


@contextmanager
def serving(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = server.answer(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()


def test_a_server_that_does_as_planned_has_not_drifted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(data()))
    n = max(round(prediction().requests_per_s), 20)
    with serving(Server([metrics([], before=50), metrics(sent(n), before=50)])) as url:
        status = run_command("plan", app, ["drift", str(plan), "--prometheus", url, "--seconds", "1"])
    screen = capsys.readouterr().out
    assert status == 0, screen
    assert "No drift" in screen
    assert max(map(len, screen.splitlines())) <= PIPED


def seen(times: Times, seconds: float, **keys: Any) -> Interval:
    return Interval(parse(metrics([], before=9, **keys), "x"), parse(metrics(times, before=9, **keys), "x"), seconds)


def test_slower_tokens_and_longer_answers_are_drift() -> None:
    p = prediction()
    slower = drift(p, seen(sent(slower=20.0), N / p.requests_per_s))
    assert not slower.holds
    rows = {row.expected.name: row for row in slower.rows}
    assert rows["tpot.mean"].missed  # it exceeds the limit of the objective too
    faster = drift(p, seen(sent(slower=0.05), N / p.requests_per_s))
    assert {r.finding for r in faster.rows if r.expected.stat == "mean"} == {"faster"}
    longer = drift(p, seen(sent(longer=2.0), N / p.requests_per_s))
    assert longer.shifted == ("mean output tokens",)
    assert drift(p, seen(sent(), N / p.requests_per_s)).holds


def test_latencies_are_judged_at_the_rate_of_now() -> None:
    p = prediction()
    light = drift(p, seen(sent(), 2 * N / p.requests_per_s))
    now, planned = p.at("tpot", "mean", p.requests_per_s / 2), p.at("tpot", "mean", p.requests_per_s)
    assert now is not None
    assert planned is not None
    assert next(r for r in light.rows if r.expected.name == "tpot.mean").expected == now
    assert now.value_s < planned.value_s
    with pytest.raises(InputError, match="latencies only up to"):
        drift(p, seen(sent(), 0.2 * N / p.requests_per_s))
    with pytest.raises(InputError, match="at least 20"):
        drift(p, seen(sent(10), 10 / p.requests_per_s))


def test_a_prometheus_server_is_asked_once_for_each_name() -> None:
    p = prediction()
    page = parse(metrics(sent()), "x")
    api: dict[str, list[dict[str, Any]]] = {"names": [{"metric": {"__name__": name}} for name in page.by_name]}
    for name, samples in page.by_name.items():
        api[name] = [{"metric": dict(s.labels), "value": [0, str(s.value)]} for s in samples]
    with serving(Server(["prometheus_build_info 1\n"], api)) as url:
        found = drift(p, observe_server(f"{url}/", N / p.requests_per_s, MODEL))
    assert found.holds
    assert found.n_requests == N


@pytest.mark.parametrize(
    ("pages", "says"),
    [
        (["<html>"], "no Prometheus metrics"),
        (["up 1\n"], "neither a vLLM server nor"),
        (["vllm:request_success_total 0\n"] * 2, "at least 20"),
    ],
)
def test_servers_that_tell_nothing_are_one_line(
    pages: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(data()))
    with serving(Server(pages)) as url:
        args = ["drift", str(plan), "--prometheus", url, "--seconds", "1"]
        assert run_command("plan", app, args) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


def test_nobody_there_and_wrong_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(data()))
    for url, says in (("http://127.0.0.1:9", "no server answers"), ("ftp://x", "http or https"), ("", "http or https")):
        assert run_command("plan", app, ["drift", str(plan), "--prometheus", url, "--seconds", "1"]) == 2
        assert says in capsys.readouterr().err


def test_several_models_on_one_server() -> None:
    two = [metrics([], model="a") + metrics([], model="b")]
    with serving(Server([*two, *two])) as url:
        with pytest.raises(InputError, match="--served a or b"):
            observe_server(url, 0.01, MODEL)
        assert observe_server(url, 0.01, MODEL, "b").models == {"b"}
        with pytest.raises(InputError, match="no model with this name"):
            observe_server(url, 0.01, MODEL, "c")


def test_histograms_by_hand() -> None:
    h = Histogram((1.0, 2.0, math.inf), (10.0, 30.0, 40.0), 70.0)
    assert (h.n, h.mean_s) == (40.0, 1.75)
    assert h.bucket_s(0.5) == (1.0, 2.0)
    assert h.quantile_s(0.5) == pytest.approx(1.5)  # rank 20 is half of the twenty between 1 and 2
    assert h.quantile_s(0.25) == pytest.approx(1.0)
    assert h.bucket_s(0.9) == (2.0, math.inf)
    assert h.quantile_s(0.9) == 2.0  # as Prometheus: the last finite bound
    assert h.since(Histogram((1.0, 2.0, math.inf), (10.0, 10.0, 10.0), 5.0)).counts == (0.0, 20.0, 30.0)
    with pytest.raises(InputError, match="restarted"):
        h.since(Histogram((1.0, 2.0, math.inf), (11.0, 31.0, 41.0), 5.0))


def test_the_exposition_format() -> None:
    text = '# c\n\na{x="1",y="a\\"b\\\\c\\nd"} 1e3\na{x="2"} +Inf 1700000000000\nb 2\n'
    page = parse(text, "x")
    assert page.by_name["a"][0].labels == {"x": "1", "y": 'a"b\\c\nd'}
    assert page.total("b") == 2.0
    assert page.total("none") is None
    assert page.only("x", "1").total("a") == 1000.0
