"""A request survives: as a command line, as a scenario file, and as the request block of an answer."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalogs.economics.instances import COMMITMENTS, ON_DEMAND
from catalogs.errors import InputError
from catalogs.io.yaml_loader import dump_yaml
from catalogs.ui.entry_point import run_command
from planner.answer.answer_schema import Answer
from planner.cli.main import app
from planner.economics.ownership import OwnedHardware
from planner.problem.accounting import SPOT, Accounting
from planner.problem.demand import NOTHING, FailureTolerance
from planner.problem.key_definition import RequestModel
from planner.problem.overrides import Overrides
from planner.problem.reproduction import reproduce_block
from planner.problem.request import DISAGGREGATED, EXTENSIONS, OBJECTIVES, PlanRequest, SearchOptions
from planner.problem.request_keys import request_keys
from planner.problem.scenario import command_of, keys_of, parse_plan_settings, read_scenario, request_of_keys
from planner.problem.slo import parse_slos
from planner.problem.tariff import Tariff
from planner.sections.full_answer import request_block

PLAIN = PlanRequest(model="llama3.2-1b", hardware="h100x2", slos=parse_slos(["ttft.p99=2s", "tpot.mean=30ms"]))
#: Names as YAML reads them as something else, or a shell splits them.
NAMES = st.sampled_from(
    ["aws", "us-east-1", "no", "null", "1e3", "12", "a b", "x: y", "'q'", "#1", "{a}", "2026-01-01"]
)
#: A workload by its keys, as JSON and as YAML.
CONVERSATIONS = st.sampled_from(
    ['{"arrivals":{"poisson":{}},"input_tokens":90,"output_tokens":9,"turns":4}', "{turns: 2, input_tokens: 'a, b'}"]
)
ABOVE_ZERO = st.floats(1e-5, 1e6)
SLOS = st.sampled_from(
    [
        "ttft.p99=2s",
        "p90=150ms",
        "tpot.mean=30ms,e2e.p99.9=12.5s",
        "itl.p95=1us",
        "e2e[in<1k,out>=256].p99=5s,normalized.p99=60ms",
    ]
)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@st.composite
def tariffs(draw: st.DrawFn) -> Tariff:
    own = draw(maybe(ABOVE_ZERO))
    if own is not None:
        return Tariff(usd_per_hour=own, grid=draw(maybe(NAMES)))
    commitment = draw(st.sampled_from(COMMITMENTS))
    discount = None if commitment == ON_DEMAND else draw(maybe(st.floats(0.01, 0.99)))
    reading = draw(st.sampled_from(["cheapest", "median", "list"]))
    cloud, region, grid = draw(maybe(NAMES)), draw(maybe(NAMES)), draw(maybe(NAMES))
    return Tariff(reading=reading, cloud=cloud, region=region, commitment=commitment, discount=discount, grid=grid)


@st.composite
def accountings(draw: st.DrawFn, spot: bool, users: bool) -> Accounting:
    owned = st.builds(OwnedHardware, capex=ABOVE_ZERO, years=st.floats(1, 9), pue=maybe(st.floats(1, 2)))
    return Accounting(
        spot_interruptions=draw(maybe(ABOVE_ZERO)) if spot else None,
        spot_recovery_s=draw(maybe(ABOVE_ZERO | st.sampled_from([60.0, 90.0, 7200.0]))),
        owned=draw(maybe(owned)),
        requests_per_user_day=None if users else draw(maybe(ABOVE_ZERO)),
        nodes_per_rack=draw(maybe(st.integers(1, 20))),
        power_caps_w=draw(st.lists(ABOVE_ZERO, max_size=2).map(tuple)),
    )


FIXED = st.fixed_dictionaries(
    {},
    optional={
        "tensor_parallel": st.integers(1, 8),
        "kv_dtype": st.just("fp8"),
        "prefix_caching": st.booleans(),
        "gpu_memory_utilization": st.floats(1e-5, 1),
        "speculative": st.just({"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.6}),
    },
).map(Overrides)


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    users = draw(maybe(st.integers(1, 1000)))
    rate = draw(maybe(ABOVE_ZERO)) if users is None else None
    loaded = users is not None or rate is not None
    spares = st.builds(FailureTolerance, replicas=st.integers(1, 9)) | st.builds(
        FailureTolerance, nodes=st.integers(1, 9)
    )
    tariff, spare = draw(tariffs()), draw(st.just(NOTHING) | spares) if loaded else NOTHING
    kinds = draw(st.lists(st.sampled_from(EXTENSIONS), unique=True))
    return PlanRequest(
        model=draw(st.sampled_from(["llama3.1-8b", "./my model"])),
        hardware="2*h100x8",
        slos=parse_slos([draw(SLOS)]),
        workload=draw(NAMES | CONVERSATIONS),
        input_tokens=draw(maybe(st.integers(1, 10**6))),
        output_tokens=draw(maybe(st.integers(1, 10**6))),
        requests_per_s=rate,
        users=users,
        think_s=0.0 if users is None else draw(st.just(0.0) | st.floats(1e-5, 1e5)),  # longer ones need more users
        spare=spare,
        max_usd_per_hour=draw(maybe(ABOVE_ZERO)),
        objective=draw(st.sampled_from(OBJECTIVES)),
        precisions=tuple(draw(st.lists(st.sampled_from(["native", "fp8", "int4"]), unique=True))),
        also=tuple(kind for kind in kinds if not (spare and kind == DISAGGREGATED)),
        speculative=draw(maybe(st.just("method=ngram,k=3,acceptance=0.6"))),
        engine=draw(st.sampled_from(["vllm", "sglang"])),
        fixed=draw(FIXED),
        tariff=tariff,
        accounting=draw(accountings(tariff.committed == SPOT, users is not None)),
        search=SearchOptions(trials=draw(st.integers(1, 99))),
        seed=draw(st.integers(0, 99)),
    )


class Heard(BaseException):
    """The request that the command would have planned."""


def heard(args: list[str], patch: pytest.MonkeyPatch) -> PlanRequest:
    def ask(request: PlanRequest) -> Any:
        raise Heard(request)

    patch.setattr("planner.pipeline.plan", ask)
    with pytest.raises(Heard) as caught:
        run_command("plan", app, args)
    request: PlanRequest = caught.value.args[0]
    return request


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=requests())
def test_the_command_asks_the_same(request: PlanRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    command = command_of(request)
    again = heard(shlex.split(command)[1:], monkeypatch)
    assert again == request
    assert command_of(again) == command


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=requests(), as_yaml=st.booleans())
def test_the_scenario_file_asks_the_same(
    request: PlanRequest, as_yaml: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"scenario.{'yaml' if as_yaml else 'json'}"
    for written in (request.scenario(), request.as_dict()):
        file.write_text(dump_yaml(written) if as_yaml else json.dumps(written))
        assert request_of_keys(read_scenario(file)) == request
    assert heard([str(file), "--seed", "123"], monkeypatch) == request.replace(seed=123)


@settings(max_examples=60, deadline=None)
@given(request=requests())
def test_the_answer_asks_the_same(request: PlanRequest) -> None:
    answer = {"request": request.as_dict() | {"later": 1}, "reproduce": reproduce_block(request, "")}
    assert PlanRequest(**request_block(json.loads(json.dumps(answer)))) == request  # type: ignore[arg-type]
    earlier = {
        k: v for k, v in request.replace(accounting=Accounting()).as_dict().items() if k not in ("tariff", "search")
    }
    assert PlanRequest(**request_block(answer | {"request": earlier})) == request.replace(accounting=Accounting())  # type: ignore[arg-type]


def test_an_assumed_metric_is_still_said_of_an_answer() -> None:
    block = PLAIN.replace(slos=parse_slos(["p99=2s"])).as_dict()
    assert block["slo"] == ["ttft.p99=2s"]
    assert PlanRequest(**block).slo_words == block["slo_words"]
    assert "assumed" in block["slo_words"][0]


def test_an_answer_reads_its_request() -> None:
    assert Answer.model_fields["request"].annotation is PlanRequest


def test_where_a_search_is_kept_is_of_the_run() -> None:
    kept = PLAIN.replace(search=SearchOptions(study="postgresql://me:secret@host/db", distributed="auto"))
    assert "secret" not in json.dumps(kept.as_dict()) + command_of(kept)
    assert (kept.search.storage, kept.search.journal) == ("postgresql://me:secret@host/db", None)
    assert PLAIN.replace(search=SearchOptions(study="s.log")).search.journal == Path("s.log")
    assert kept.search_identity() == PLAIN.search_identity()


# ---- one description of each field


def fields_of(model: type[RequestModel], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        whole = prefix + (field.alias or name)
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, RequestModel):
            found |= fields_of(inner, f"{whole}.")
        else:
            found[whole] = field
    return found


def test_every_field_is_a_key_with_help() -> None:
    assert request_keys().keys() == fields_of(PlanRequest).keys()
    assert all(key.description.endswith(".") for key in request_keys().values())


def test_help_shows_at_most_27_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("plan", app, ["--help"]) == 0
    shown = capsys.readouterr().out
    options = [line for line in shown.splitlines() if line.startswith("│ --")]
    assert 15 <= len(options) <= 27  # two of them are of networks only
    assert "plan keys" in " ".join(shown.replace("│", " ").split())
    assert run_command("plan", app, ["keys"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in request_keys())
    assert run_command("plan", app, ["keys", "--json", "-"]) == 0
    assert [key["name"] for key in json.loads(capsys.readouterr().out)["keys"]] == list(request_keys())


# ---- files, --set, and options that have become keys

ASKED = ["--model", "llama3.2-1b", "--hw", "h100x2", "--slo", "ttft.p99=2s,tpot.mean=30ms"]


@pytest.mark.parametrize(
    ("former", "key"),
    [
        (["--spot-recovery", "120"], "accounting.spot_recovery"),
        (["--trials", "7"], "search.trials"),
        (["--also", "pipelines"], "also"),
        (["--grid", "fr"], "tariff.grid"),
        (["--power-cap-w", "400", "--power-cap-w", "300"], "accounting.power_caps_w"),
    ],
)
def test_former_options_set_their_key_and_say_so(
    former: list[str], key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = heard([*ASKED, *former], monkeypatch)
    assert list(keys_of(found)) == ["model", "hardware", "slo", key]
    (notice,) = capsys.readouterr().err.splitlines()
    assert f"{former[0]} is now the key {key}: --set {key}=" in notice


def test_a_storage_is_a_study_now(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = heard([*ASKED, "--storage", "sqlite:///s.db"], monkeypatch)
    assert found == heard([*ASKED, "--study", "sqlite:///s.db"], monkeypatch)
    assert found.search.storage == "sqlite:///s.db"
    assert "--storage is now --study" in capsys.readouterr().err


def test_settings_reach_the_request_and_the_deployment() -> None:
    found = parse_plan_settings(
        ["accounting.spot_recovery=2m", "kv_dtype=fp8", "speculative=method=ngram,k=3,acceptance=0.6", "survive=node"]
    )
    assert found == {
        "accounting.spot_recovery": "2m",
        "fixed.kv_dtype": "fp8",
        "speculative": "method=ngram,k=3,acceptance=0.6",
        "survive": "node",
    }
    fixed = parse_plan_settings(["speculative={method: ngram, num_speculative_tokens: 3, acceptance: 0.6}"])
    assert list(fixed) == ["fixed.speculative"]
    request = request_of_keys(keys_of(PLAIN) | {"accounting.spot_recovery": "2m"})
    assert request.accounting.spot_recovery_s == 120.0


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("max_usd_per_hour=inf", "max_usd_per_hour must be at most 1,000,000,000,000: got 'inf'"),
        ("tariff.usd_per_hour=nan", "tariff.usd_per_hour (--price) must be a number: got 'nan'"),
        ("confidence=.nan", "confidence must be a number: got nan; nearest valid choice: 0.9"),
        (
            "fixed=3",
            "fixed holds keys of deployment.yaml with their values: got 3; nearest valid choice: {kv_dtype: fp8}",
        ),
        ("accounting.spot_recovery=9e99h", "accounting.spot_recovery must be at most"),
    ],
)
def test_text_for_a_number_out_of_range_is_refused_with_its_whole_key(setting: str, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        request_of_keys(keys_of(PLAIN) | parse_plan_settings([setting]))


@pytest.mark.parametrize(
    ("settings_", "says"),
    [
        (["accounting.spot_recoveri=2m"], "accounting.spot_recovery"),
        (["kv_dtyp=fp8"], "kv_dtype"),
        (["price=3"], "tariff.usd_per_hour"),
        (["replicas=2"], "--rate"),
        (["rate=1", "rate=2"], "set twice"),
        (["tariff=3"], "must hold keys"),
        (["rate"], "KEY=VALUE"),
    ],
)
def test_a_bad_setting_names_the_nearest(settings_: list[str], says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_plan_settings(settings_)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"worklod": "chat"}, "workload"),
        ({"hw": "h100x8"}, "hardware"),
        ({"kv_dtype": "fp8"}, "fixed.kv_dtype"),
        ({"fixed": {"kv_dtyp": "fp8"}}, "kv_dtype"),
        ({"search": {"trial": 3}}, "search.trials"),
        ({"search": {"trials": "many"}}, "search.trials: input should be a valid integer"),
        ({"users": 2.5}, "users"),
        ({"rate": "many"}, "rate"),
        ({"seed": True}, "seed"),
        ({"rate": 1, "users": 3}, "not both"),
        ({"tariff": {"discount": 0.5}}, "tariff.commitment"),
        ({"model": None}, "--model"),
        ({"over_time": True, "workload": "lmsys-turns"}, "with its own rate"),
    ],
)
def test_a_bad_scenario_is_one_line(
    change: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(dump_yaml(PLAIN.scenario() | change))
    assert run_command("plan", app, [str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_options_come_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(dump_yaml(PLAIN.scenario() | {"rate": 3, "tariff": {"cloud": "aws"}, "fixed": {"block_size": 32}}))
    args = ["--set", "rate=null", str(file), "--users", "4", "--set", "tariff.region=x", "--set", "kv_dtype=fp8"]
    found = heard(args, monkeypatch)
    assert (found.requests_per_s, found.users, found.tariff) == (None, 4, Tariff(cloud="aws", region="x"))
    assert found.fixed == Overrides({"block_size": 32, "kv_dtype": "fp8"})


@pytest.mark.parametrize(
    "args",
    [
        ["missing.yaml"],
        ["missing.json"],
        ["a.yaml", "b.yaml"],
        ["a.yaml", "--rate", "3", "report", "answer.json"],
        [*ASKED, "--rate", "1", "--set", "rate=2"],
        [*ASKED, "--study", "s.log", "--storage", "sqlite:///s.db"],
        ["front", *ASKED, "--set", "users=3"],
        ["front", *ASKED, "--users", "3"],
    ],
)
def test_what_is_no_scenario_is_refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("plan", app, args) == 2
    assert [line for line in capsys.readouterr().err.splitlines() if " is now " not in line][1:] == []


def test_a_front_takes_a_scenario_and_its_own_number_of_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def world(request: PlanRequest) -> Any:
        raise Heard(request)

    monkeypatch.setattr("planner.evaluation.multi_hardware.open_evaluator", world)
    file = tmp_path / "scenario.yaml"
    file.write_text(dump_yaml({"model": "llama3.2-1b", "hardware": "h100x2", "tariff": {"cloud": "aws"}}))
    for more, trials in ([], 40), (["--set", "search.trials=9"], 9):
        with pytest.raises(Heard) as caught:
            run_command("plan", app, ["front", str(file), "--axes", "energy,tpot.mean", "--slo", "e2e.p90=9s", *more])
        (request,) = caught.value.args
        assert (request.search.trials, request.objective, request.tariff.cloud) == (trials, "energy", "aws")
        assert [slo.name for slo in request.slos] == ["e2e.p90", "tpot.mean"]
