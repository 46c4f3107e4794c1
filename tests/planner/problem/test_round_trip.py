"""A question survives: from its command line, into the answer, and back from either. What is forgotten on one of the
ways (an option added in one place only) is found here."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields, replace
from typing import Any

import pytest

from catalogs.ui.entry_point import run_command
from planner.answer.question import Asked, Reproduce
from planner.answer.schema import Answer
from planner.cli.main import app
from planner.problem.accounting import Accounting
from planner.problem.demand import FailureTolerance
from planner.problem.overrides import Overrides
from planner.problem.reproduction import reproduce_block
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.problem.tariff import Tariff
from planner.studies.rerun import request_of

PLAIN = PlanRequest("llama3.2-1b", "h100x2", parse_slos(["ttft.p99=2s", "tpot.mean=30ms"]))
RENTED = Tariff(None, "median", "aws", "us-east-1", "fr", "reserved-1y", 0.35)
RESERVED = replace(
    PLAIN, requests_per_s=3.5, spare=FailureTolerance(nodes=1), tariff=RENTED, precisions=("native", "fp8")
)
ASKED = {
    "plain": PLAIN,
    "reserved": RESERVED,
    "users": replace(PLAIN, users=20, think_s=5.0, workload="azure-conv", seed=7, trials=12, max_usd_per_hour=90.0),
    "own price": replace(PLAIN, tariff=Tariff(24.5), objective="energy", engine="sglang"),
    "wider": replace(
        PLAIN,
        also=("disaggregated", "pipelines"),
        fixed=Overrides.parse(["tensor_parallel=1", "block_size=32"]),
        speculative="method=ngram,k=3,acceptance=0.6",
        requests_per_s=2.0,
    ),
}
#: What an answer does not ask for: where a search is kept, and what changes no plan.
NOT_OF_THE_ANSWER = {"study", "storage", "accounts"}


def test_every_field_is_asked_otherwise_somewhere() -> None:
    """Else the round trip proves nothing of it. A load over time needs a trace: see test_over_time."""
    varied = {
        f.name for f in fields(PlanRequest) for r in ASKED.values() if getattr(r, f.name) != getattr(PLAIN, f.name)
    }
    same = {f.name for f in fields(PlanRequest)} - varied - NOT_OF_THE_ANSWER
    assert same == {"model", "hardware", "slos", "over_time"}
    told = {
        f.name for f in fields(Tariff) for r in ASKED.values() if getattr(r.tariff, f.name) != getattr(Tariff(), f.name)
    }
    assert told == {f.name for f in fields(Tariff)}


@pytest.mark.parametrize("name", ASKED)
def test_the_command_asks_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[PlanRequest] = []

    def ask(request: PlanRequest, _: str | None) -> Any:
        heard.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.plan.ask", ask)
    accounts = Accounting(requests_per_user_day=3.0, nodes_per_rack=2, power_caps_w=(400.0, 300.0))
    request = ASKED[name] if ASKED[name].users else replace(ASKED[name], accounts=accounts)
    command = shlex.split(str(reproduce_block(request, "")["command"]))
    assert run_command("plan", app, command[1:]) == 130
    assert heard == [request]


@pytest.mark.parametrize("name", ASKED)
def test_the_answer_asks_the_same(name: str) -> None:
    request = ASKED[name]
    asked = Asked.model_validate_json(json.dumps(request.as_dict()))
    again = Reproduce.model_validate_json(json.dumps(reproduce_block(request, "")))
    assert request_of(Answer.model_construct(request=asked, reproduce=again)) == request
