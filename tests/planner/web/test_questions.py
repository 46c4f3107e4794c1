"""One question in its four spellings: each leads to the same question, for any question."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.io.yaml_loader import load_yaml
from planner.main import app as plan_app
from planner.problem.request import PlanRequest
from planner.web.questions import SERVER_KEYS, from_query, read_question
from planner.web.store.database import Database
from planner.web.store.uploads import UploadStore
from planner.web.uploads import Uploads, refuse_paths, safe_name
from tests.planner.problem.test_round_trip import requests

BASE = {"model": "llama3.1-8b", "hardware": "h100x8", "slo": ["ttft.p99=2s"]}


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> Uploads:
    folder = tmp_path_factory.mktemp("uploads")
    return Uploads(UploadStore(Database(f"sqlite:///{folder / 'jobs.sqlite'}")), folder, 1 << 20, 1 << 24)


def without_paths(request: PlanRequest) -> PlanRequest:
    return request.replace(model="llama3.1-8b")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests().map(without_paths))
def test_every_spelling_of_a_question_is_the_same_question(uploads: Uploads, request: PlanRequest) -> None:
    question = read_question(request.scenario(), uploads, "")
    spelled = question.spellings()
    assert spelled["question"] == json.loads(json.dumps(request.scenario()))
    of_query = from_query(parse_qsl(spelled["query"], keep_blank_values=True))
    assert read_question(of_query, uploads, "").scenario == question.scenario
    of_file = load_yaml(spelled["scenario"])
    assert read_question(of_file, uploads, "").scenario == question.scenario
    command, *arguments = shlex.split(spelled["command"])
    assert command == "plan"
    assert read_question(keys_of_command(arguments), uploads, "").scenario == question.scenario


def keys_of_command(arguments: list[str]) -> dict[str, Any]:
    """The keys that the options of a command line set."""
    from typer.main import get_command

    context = get_command(plan_app).make_context("plan", arguments, resilient_parsing=False)
    from planner.cli.derived_options import GivenRequest
    from planner.problem.request_keys import request_keys

    options = {k.name: context.params.get(f"key_{str(k.option).removeprefix('--').replace('-', '_')}")
               for k in request_keys().values() if k.option is not None}  # fmt: skip
    given = GivenRequest("plan", None, options, [], context.params.get("settings") or [])
    keys = given.keys()
    fixed = {name.removeprefix("fixed."): keys.pop(name) for name in list(keys) if name.startswith("fixed.")}
    return keys | ({"fixed": fixed} if fixed else {})


def test_agents_and_their_objectives_are_spelled_as_they_were_written(uploads: Uploads) -> None:
    slo = ["interactivity.p90=30", "session.p90=3h"]
    question = read_question(BASE | {"slo": slo, "workload": "agentic-coding", "agents": 8}, uploads, "")
    assert question.scenario["slo"] == slo
    assert question.title.endswith("interactivity.p90=30, session.p90=3h; agents 8; workload agentic-coding")
    assert "--slo interactivity.p90=30,session.p90=3h" in question.spellings()["command"]


def test_equal_questions_have_equal_keys_and_others_do_not(uploads: Uploads) -> None:
    def key(**more: Any) -> str:
        return read_question(BASE | more, uploads, "").key

    assert key() == key(slo="p99=2s") == key(objective="cost") == key(hardware="8xh100")
    assert len({key(), key(seed=1), key(search={"trials": 3}), key(rate=1), key(tariff={"cloud": "aws"})}) == 5


@pytest.mark.parametrize("key", SERVER_KEYS)
def test_the_server_decides_where_a_search_runs(uploads: Uploads, key: str) -> None:
    value = 4 if key.endswith("workers") else "anything"
    with pytest.raises(InputError, match="the server sets"):
        read_question(BASE | {"search": {key.partition(".")[2]: value}}, uploads, "")


@pytest.mark.parametrize(
    "text",
    [
        "/etc/passwd", "../x", "a/../b", "~/x", "~root", "x.json", "config.yaml", "trace.csv.gz", "C:\\x",
        "\\\\host\\x",
        "a/b/c", "a/.ssh", "file:///etc/passwd", "..", "./model", "capex=1,years=/etc/passwd", "a b/c.csv", "https://x/y",
    ],
)  # fmt: skip
def test_a_path_is_refused_wherever_it_stands(uploads: Uploads, text: str) -> None:
    for body in ({"model": text}, {"workload": text}, {"accounting": {"owned": text}}, {"fixed": {"router": text}}):
        with pytest.raises(InputError, match="reads no files by their path"):
            read_question(BASE | body, uploads, "")


@pytest.mark.parametrize("text", ["meta-llama/Llama-3.1-8B", "h100x8", "2*h100x8", "p99=2s", "0.5", "us-east-1", "fp8"])
def test_names_are_no_paths(text: str) -> None:
    refuse_paths({"any": [text]})


@given(st.text(max_size=200), st.binary(max_size=20))
def test_a_safe_name_is_one_plain_file_name(name: str, head: bytes) -> None:
    found = safe_name(name, head)
    assert Path(found).name == found
    assert found not in ("", ".", "..")
    assert "." in found
    assert found.isascii()
    assert found.isprintable()
