"""The keys of a request for a network: read, refused in one line, and written as the command that repeats it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command
from planner.cli.main import app
from planner.networks.reproduction import command_of
from planner.networks.request import NetworkRequest, network_request
from planner.problem.request_keys import network_keys, plan_keys, request_keys
from planner.problem.scenario import request_of_keys
from tools.write_schemas import schemas

USUAL = {"model": "sdxl", "hardware": "h100x2", "slo": "e2e.p99=20s"}


def test_the_shipped_schemas_are_those_of_the_models() -> None:
    assert {file.name for file in schemas()} >= {"network_request.schema.json", "network_answer.schema.json"}
    assert [file.name for file, text in schemas().items() if file.read_text() != text] == []


def test_plan_takes_the_keys_of_both_kinds_of_request() -> None:
    assert set(plan_keys()) == {*request_keys(), *network_keys()}
    assert {"job", "steps", "modes", "max_batch", "max_instances"} == set(network_keys()) - set(request_keys())
    assert all(key.description.endswith(".") for key in network_keys().values())


@pytest.mark.parametrize("limit", ["10min", "600s", "0.16666666666666666h", "600000ms"])
def test_limits_in_minutes_and_hours(limit: str) -> None:
    assert network_request(USUAL | {"slo": f"e2e.p95={limit}"}).slos[0].limit_s == pytest.approx(600.0)


def test_an_objective_without_a_metric_is_on_the_end_to_end_latency() -> None:
    request = network_request(USUAL | {"slo": "p95=10s,e2e.mean=4s"})
    assert [slo.text for slo in request.objectives] == ["e2e.p95=10s", "e2e.mean=4s"]
    assert request.slo_words[0] == "95 % of jobs have an end-to-end latency of at most 10 s"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"workload": "chat"}, "--workload is for language models, and sdxl is a network: got 'chat'"),
        ({"users": 4, "rate": 2}, "users replace the rate of jobs"),
        ({"think_s": 3}, "a think time needs users"),
        ({"max_instances": 0}, "max_instances must be a whole number of at least 1"),
        ({"fixed.kv_dtype": "fp8"}, "kv_dtype is for language models, and sdxl is a network"),
        ({"slo": "ttft.p99=2s"}, "so its objectives are on e2e: got 'ttft.p99=2s'; nearest valid choice: e2e.p99=2s"),
        ({"slo": None}, "an SLO is needed, written e2e.STAT=LIMIT"),
        ({"hardware": None}, "--hw is needed; hint: plan --model sam2.1-large"),
        ({"rate": 0}, "a rate is a number of jobs per second above zero: got 0.0"),
        ({"rate": float("nan")}, "rate must be a number"),
        ({"steps": 0}, "steps must be a whole number of at least 1: got 0; nearest valid choice: 1"),
        ({"precisions": "fp4"}, "a precision of networks is one of"),
        ({"modes": "fast"}, "an execution is one of eager, compiled, tensorrt"),
        ({"objective": "goodput"}, "an objective of networks is one of cost, energy, carbon, throughput, latency"),
        ({"confidence": 1.0}, "a confidence is a probability from 0.5 to 0.98: got 1.0; nearest valid choice: 0.98"),
        ({"confidence": 90}, "a confidence is a probability from 0.5 to 0.98: got 90.0; nearest valid choice: 0.9"),
        ({"max_usd_per_hour": 0}, "a budget is a number of US dollars per hour above zero"),
        ({"search.distributed": "auto"}, "jobs of networks are simulated on this machine"),
    ],
)
def test_a_wrong_request_is_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        network_request(USUAL | keys)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("keys", [{"job": "1024x1024"}, {"steps": 4}, {"modes": ["eager"]}])
def test_a_language_model_has_no_job(keys: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"is for networks \(catalog list networks\), and llama3.1-8b is a language"):
        request_of_keys(USUAL | {"model": "llama3.1-8b", "slo": "p99=2s"} | keys)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"job": "1024x768", "steps": 20, "rate": 0.25, "seed": 3},
        {"objective": "energy", "modes": ["tensorrt"], "precisions": ["fp16", "fp8"], "max_batch": 4},
        {"tariff.cloud": "aws", "max_usd_per_hour": 50.5, "search.trials": 7, "confidence": 0.95},
    ],
)
def test_the_command_of_a_request_makes_it_again(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request, again = network_request(USUAL | keys), list[NetworkRequest]()
    monkeypatch.setattr("planner.networks.plan.plan_network", lambda found, _: again.append(found) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        app(shlex.split(command_of(request))[1:], standalone_mode=False)
    assert again == [request]
    assert capsys.readouterr().out == ""


def test_the_request_block_of_an_answer_is_a_scenario(tmp_path: Path) -> None:
    request = network_request(USUAL | {"job": "1024x768", "rate": 0.25, "tariff.cloud": "aws"})
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request.as_dict()))
    assert NetworkRequest(**json.loads(file.read_text())) == request


def test_a_wrong_option_ends_the_command_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", "sdxl", "--hw", "h100x2", "--slo", "e2e.p99=20s", "--job", "1000x1024"]
    assert run_command("plan", app, given) == 2
    assert capsys.readouterr().err == (
        "plan: width is 256 or more in steps of 32: got 1000; nearest valid choice: --job 992x1024\n"
    )


def test_a_misspelled_network_is_not_taken_for_a_language_model(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, meant in (("sam2.1-larg", "sam2.1-large"), ("wan2.1-t2v-14", "wan2.1-t2v-14b")):
        assert run_command("plan", app, ["--model", typed, "--slo", "e2e.p99=1s", "--hw", "l4"]) == 2
        assert meant in capsys.readouterr().err
    assert run_command("plan", app, ["--model", "llama3.1-8", "--slo", "e2e.p99=1s", "--hw", "l4"]) == 2
    assert "llama3.1-8b" in capsys.readouterr().err
