"""Where requests spent their time, and what bound a run: by hand, as in docs/explain.md, and for any world."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings

from catalogs.deployments.queueing import Queueing
from catalogs.deployments.schema import Deployment
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.service_classes import ServiceLevels
from catalogs.workloads.workload import load_workload
from simulator.analysis.bottleneck import BOUNDS, STEP_BOUNDS, bottleneck
from simulator.analysis.explain import band, explain, latency_block
from simulator.analysis.metrics import latency_metrics
from simulator.analysis.request_phases import PHASES, phases
from simulator.cache.offload import SwapRules
from simulator.cli import main as cli
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment, Pool, compile_deployment
from simulator.cluster.disaggregation import DisaggregationPolicy
from simulator.cluster.kv_transfer import TransferLinks
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_pools, run_rules, simulate
from simulator.engine.event_log import EventLog
from simulator.schedulers.registry import POLICIES
from tests.simulator.cluster.test_pools import Script, Wire, apart, crash_and_replacement
from tests.simulator.engine.test_fast_forward import World, assert_same, worlds
from tests.simulator.worlds import Linear, host_times, requests, rules

BOTH = pytest.mark.parametrize("fast", [True, False])


def seen(pools: list[Pool], work: RequestSet, **options: object) -> Run:
    return run_pools(pools, work, RunOptions(check_invariants=True, event_log=EventLog(), **options))  # type: ignore[arg-type]


def life(done: Run, request: int, metric: str = "e2e_s") -> dict[str, float]:
    """Phases of one request that took time."""
    found = dict(zip(PHASES, getattr(phases(done), metric)[request].tolist(), strict=True))
    return {name: seconds for name, seconds in found.items() if seconds}


PAGE = Path(__file__).parents[3] / "docs" / "explain.md"
IN_PAGE = ("client_path", "wait_step", "wait_seat", "prefill", "decode", "stalled_by_prefill")


def told(page: str) -> list[list[float]]:
    """The table of the worked example: a row each for A, B and C."""
    rows = [line.strip("| ").split(" | ") for line in page.splitlines()]
    return [[float(cell) for cell in row[1:]] for row in rows if row[0] in ("A", "B", "C") and len(row) > 2]


@BOTH
def test_the_worked_example_of_the_docs(fast: bool) -> None:
    """Steps take 1 s, and 0.25 s more for each prompt token; two seats; host 0.5 s in, 0.125 s out."""
    pool = Pool(rules(max_num_seqs=2, host=host_times(request_s=0.5, output_s=0.125)), Linear(prompt_token_s=0.25))
    done = seen([pool], requests([0.0, 1.0, 1.5], [4, 8, 4], [5, 2, 2]), fast_forward=fast)
    # A 0.5..2.5 prompt, B's prompt beside its first decode 2.5..5.5, two decodes 5.5..6.5: B is done.
    # C's prompt beside A's third 6.5..8.5; A's last and C's last 8.5..9.5.
    assert life(done, 0) == {"client_path": 0.625, "prefill": 2.0, "decode": 4.0, "stalled_by_prefill": 3.0}
    assert life(done, 1) == {"client_path": 0.625, "wait_step": 1.0, "prefill": 3.0, "decode": 1.0}
    assert life(done, 2) == {
        "client_path": 0.625, "wait_seat": 4.0, "wait_step": 0.5, "prefill": 2.0, "decode": 1.0,
    }  # fmt: skip
    assert life(done, 2, "ttft_s") == {"client_path": 0.625, "wait_seat": 4.0, "wait_step": 0.5, "prefill": 2.0}
    assert told(PAGE.read_text()) == [
        [*(round(seconds[PHASES.index(name)], 9) for name in IN_PAGE), e2e]
        for seconds, e2e in zip(phases(done).e2e_s.tolist(), done.e2e_s.tolist(), strict=True)
    ]
    worst = latency_block(phases(done))["ttft"]["p99"]
    assert worst["seconds"] == pytest.approx(latency_metrics(done)["ttft_s"]["p99"])  # between B and C
    assert worst["requests"] == 1
    assert worst["shares"]["wait_seat"] == 4.0 / 7.125
    assert sum(worst["phases_s"].values()) == pytest.approx(worst["seconds"])


@BOTH
def test_waits_for_blocks_and_for_budget(fast: bool) -> None:
    tight = Pool(rules(kv_blocks=3), Linear())
    done = seen([tight], requests([0.0, 0.5], [8, 8], [4, 2]), fast_forward=fast)  # 3 of 3 blocks until 4.0
    assert life(done, 1) == {"wait_step": 0.5, "wait_blocks": 3.0, "prefill": 1.0, "decode": 1.0}
    narrow = Pool(rules(max_num_batched_tokens=8), Linear())
    done = seen([narrow], requests([0.0, 0.0], [8, 8], [1, 1]), fast_forward=fast)
    assert life(done, 1) == {"wait_turn": 1.0, "prefill": 1.0}


@BOTH
def test_the_engine_looks_at_who_comes_to_an_empty_queue(fast: bool) -> None:
    """One of 10 blocks is free while A decodes, less than is kept free: B waits for a step, then for blocks."""
    pool = Pool(rules(policy="transformers-cb", kv_blocks=10), Linear())
    done = seen([pool], requests([0.0, 2.5], [33, 4], [4, 1]), fast_forward=fast)
    assert life(done, 1) == {"wait_step": 0.5, "wait_blocks": 1.0, "prefill": 1.0}


@BOTH
def test_preemption_lasts_until_the_next_token(fast: bool) -> None:
    pool = Pool(rules(kv_blocks=4, prefix_caching=False), Linear())
    done = seen([pool], requests([0.0, 0.0], [7, 7], [6, 3]), fast_forward=fast)
    # both prompts 0..1; at 9 tokens each needs a third block, at 2.0: the second gives up its two
    assert done.preemptions.tolist() == [0, 1]
    found = life(done, 1)
    assert found["preemption"] == done.last_token_s[1] - 2.0
    assert found | {"preemption": 0.0} == {"prefill": 1.0, "decode": 1.0, "preemption": 0.0}


@BOTH
def test_swapped_out_twice(fast: bool) -> None:
    """The example of test_swap: B is out in 2..3.75 and in 5.5..11.25."""
    pool = Pool(rules(policy="vllm-v0", kv_blocks=6, swap=SwapRules(1000, 0.25)), Linear())
    done = seen([pool], requests([0.0, 0.0], [8, 8], [9, 6]), fast_forward=fast)
    assert life(done, 1) == {"prefill": 1.0, "decode": 1.0 + 1.75 + 3.75, "preemption": 1.75 + 5.75}


@BOTH
def test_those_who_gave_up_are_no_part_of_it(fast: bool) -> None:
    engine = rules(max_num_seqs=1, queueing=Queueing(timeout_s=2.5))
    work = requests([0.0, 0.0, 0.0], [4, 4, 4], [2, 9, 1])
    done = run_rules(engine, Linear(), work, 1, RunOptions(fast_forward=fast, event_log=EventLog()))
    found = phases(done)
    assert found.requests.tolist() == np.flatnonzero(done.completed).tolist() == [0]
    assert found.e2e_s.sum() == 2.0


@BOTH
def test_a_static_batch_that_ends_because_a_client_gave_up(fast: bool) -> None:
    """A has the longest answer and gives up at 4.5: B, done since 2.0, leaves with the step that ends at 5.0."""
    work = requests([0.0, 0.0], [4, 4], [9, 2])
    terms = ServiceLevels(np.zeros(2, dtype=np.int64), np.full(2, np.inf), np.array([4.5, np.inf]))
    host = host_times(request_s=0.5, output_s=0.125)
    pool = Pool(rules(policy="static", max_num_seqs=2, host=host), Linear())
    done = seen([pool], replace(work, terms=terms), fast_forward=fast)
    assert done.last_token_s[1] == 5.5 + 0.125  # seen like any other answer: after its way out
    assert life(done, 0) == {"client_path": 0.625, "prefill": 1.0, "decode": 4.0}  # the one that completed


@BOTH
@pytest.mark.parametrize(("shown", "first"), [("prefill", 1.0), ("admission", 2.5), ("decode", 3.5)])
def test_hand_overs(fast: bool, shown: str, first: float) -> None:
    ports = TransferLinks({(0, 1): Wire()})
    options = {"transfer": ports, "hand_over": DisaggregationPolicy(shown), "fast_forward": fast}  # type: ignore[arg-type]
    done = seen(apart(), requests([0.0], [4], [3]), **options)
    assert done.first_token_s.tolist() == [first]
    before = {"prefill": 1.0, "transfer": min(first, 2.5) - 1.0, "decode": max(0.0, first - 2.5)}
    assert life(done, 0, "ttft_s") == {name: s for name, s in before.items() if s}
    assert life(done, 0) == {"prefill": 1.0, "transfer": 1.5, "decode": done.last_token_s[0] - 2.5}


@BOTH
def test_what_a_dead_replica_computed_is_lost(fast: bool) -> None:
    done = seen(
        [Pool(rules(), Linear())],
        requests([0.0], [4], [5]),
        controllers=(Script(crash_and_replacement),),
        fast_forward=fast,
    )
    assert life(done, 0) == {"lost": 2.5, "no_replica": 1.5, "prefill": 1.0, "decode": 4.0}


def check(done: Run) -> None:
    found = phases(done)
    finished = done.completed
    np.testing.assert_allclose(found.e2e_s.sum(axis=1), done.e2e_s[finished], atol=1e-9)
    np.testing.assert_allclose(found.ttft_s.sum(axis=1), done.ttft_s[finished], atol=1e-9)
    assert found.e2e_s.min(initial=0.0) > -1e-9
    assert found.ttft_s.min(initial=0.0) > -1e-9
    assert (found.ttft_s <= found.e2e_s + 1e-9)[:, PHASES.index("lost") : PHASES.index("transfer")].all()
    queued = [PHASES.index(name) for name in PHASES if name.startswith("wait_")]
    calm = done.preemptions[finished] == 0
    waited = (done.started_s - done.arrival_s)[finished][calm]
    outside = found.ttft_s[calm][:, PHASES.index("api_server")]
    assert (found.e2e_s[calm][:, queued].sum(axis=1) <= waited + 1e-9).all()
    assert (outside >= -1e-9).all()


def noted(world: World, policy: str, fast: bool) -> Run:
    chosen = RunOptions(router=world.router, fast_forward=fast, event_log=EventLog())
    return run_rules(replace(world.rules, policy=policy), world.timer, world.requests, world.n_replicas, chosen)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=15, deadline=None)
@given(worlds())
def test_phases_add_up_in_any_world(policy: str, world: World) -> None:
    stepped, fast = (noted(world, policy, fast) for fast in (False, True))
    check(stepped)
    check(fast)
    later_s = np.sort(stepped.arrival_s[stepped.arrival_s > 0])
    assume(world.requests.concurrency is None or np.diff(later_s).min(initial=1) > 1e-9)  # else rounding orders clients
    for metric in ("ttft_s", "e2e_s"):
        np.testing.assert_allclose(getattr(phases(stepped), metric), getattr(phases(fast), metric), atol=1e-9)
    bare = run_rules(replace(world.rules, policy=policy), world.timer, world.requests, world.n_replicas,
                     RunOptions(router=world.router))  # fmt: skip
    assert_same(bare, fast, 0.0)  # nothing changes because somebody looks


@pytest.mark.parametrize(("n", "percent", "found"), [(1, 99, 0), (100, 50, 50), (100, 99, 98), (4, 99, 3)])
def test_the_band_of_a_percentile(n: int, percent: float, found: int) -> None:
    assert list(range(n))[band(n, percent)] == [found]
    wide = band(1000, percent)
    assert wide.stop - wide.start == 10
    assert wide.stop <= 1000


@pytest.fixture(scope="module")
def plant() -> CompiledDeployment:
    return compile_deployment(Deployment(model="llama3.1-8b", hardware="h100", max_model_len=4096, max_num_seqs=64))


def served(plant: CompiledDeployment, rate: float, **limits: int) -> Run:
    tight = replace(plant, resolved=replace(plant.resolved, limits=replace(plant.resolved.limits, **limits)))
    if "kv_blocks" in limits:
        tight = replace(tight, memory=replace(plant.memory, kv_blocks=limits["kv_blocks"]))
    work = load_workload("azure-conv").materialise(0, 150, rate)
    return simulate(tight, work, RunOptions(event_log=EventLog()))


def test_every_second_of_a_replica_is_bound_by_something(plant: CompiledDeployment) -> None:
    for done in (served(plant, 1.0), served(plant, 40.0), served(plant, 20.0, kv_blocks=400)):
        found = bottleneck(done)
        assert set(found.bounds) == set(BOUNDS)
        assert set(found.steps) == set(STEP_BOUNDS)
        assert sum(found.bounds.values()) == pytest.approx(1.0, abs=1e-12)
        assert sum(found.steps.values()) == pytest.approx(1.0, abs=1e-12)
        assert min(found.bounds.values()) >= 0.0
        assert found.replica_s == pytest.approx(done.span_s[1] - done.span_s[0])
        busy = sum(float(log.total_s.sum()) for log in done.logs)
        assert 1.0 - found.steps["idle"] == pytest.approx(busy / found.replica_s, rel=1e-9)
        for name in STEP_BOUNDS:
            assert found.bounds[name] <= found.steps[name] + 1e-9


def test_what_binds_is_what_is_short(plant: CompiledDeployment) -> None:
    idle = bottleneck(served(plant, 0.2)).bounds
    assert idle["idle"] > 0.3
    assert idle["kv_capacity"] == idle["queue"] == 0.0
    assert explain(served(plant, 20.0, kv_blocks=400))["bound_by"] == "kv_capacity"
    assert explain(served(plant, 20.0, max_num_seqs=2))["bound_by"] == "queue"
    prompts = bottleneck(simulate(plant, requests([0.0] * 60, [2000] * 60, [1] * 60), RunOptions(event_log=EventLog())))
    assert prompts.steps["compute"] > 0.6
    single = bottleneck(simulate(plant, requests([0.0], [200], [400]), RunOptions(event_log=EventLog())))
    assert single.steps["memory_bandwidth"] > 0.6


def test_a_busy_api_server_is_what_limits_a_run(plant: CompiledDeployment) -> None:
    """Its utilisation is the work over the time, and more processes share it."""
    work = requests([0.01 * i for i in range(200)], [8] * 200, [200] * 200)

    def explained(servers: int) -> dict[str, Any]:
        host = replace(plant.resolved.engine.host, api_token_s=2e-4)
        engine = replace(plant.resolved.engine, host=host)
        resolved = replace(plant.resolved, engine=engine, api_server_count=servers)
        resolved = replace(resolved, limits=replace(resolved.limits, max_num_seqs=256))
        return explain(simulate(replace(plant, resolved=resolved), work, RunOptions(event_log=EventLog())))

    one, four = explained(1), explained(4)
    assert one["bound_by"] == "api_server"
    assert 0.8 < one["api_server_busy_fraction"] <= 1.0
    assert four["bound_by"] == "memory_bandwidth"
    assert four["api_server_busy_fraction"] < 0.6
    light = explain(served(plant, 1.0))
    assert light["api_server_busy_fraction"] < 0.2


def test_a_run_nobody_watched_is_not_explained(plant: CompiledDeployment) -> None:
    done = simulate(plant, requests([0.0], [10], [2]))
    with pytest.raises(ValueError, match="event log"):
        explain(done)


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_command_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    deployment = {"model": "llama3.1-8b", "hardware": "h100x2", "replicas": 2, "kv_blocks": 500, "max_model_len": 4096}
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(deployment))
    words = [str(tmp_path / "d.yaml"), "--workload", "azure-conv", "--requests", "120", "--rate", "12"]
    words += ["--explain", "--json", str(tmp_path / "o.json")]
    with pytest.raises(SystemExit) as exit_:
        cli.main([*words, "--time-series", str(tmp_path / "s.csv"), "--chrome-trace", str(tmp_path / "t.json")])
    assert not exit_.value.code
    document = json.loads((tmp_path / "o.json").read_text())
    block = document["explain"]
    for metric in ("ttft", "e2e"):
        for statistic in ("mean", "p50", "p99"):
            part = block["latency"][metric][statistic]
            assert sum(part["shares"].values()) == pytest.approx(1.0)
            assert sum(part["phases_s"].values()) == pytest.approx(part["seconds"])
            assert part["seconds"] == pytest.approx(document["metrics"][f"{metric}_s"][statistic])
        mean = block["latency"][metric]["mean"]
        assert mean["requests"] == document["metrics"]["n_completed"] > 100
        assert mean["seconds"] == pytest.approx(document["metrics"][f"{metric}_s"]["mean"])
    assert sum(block["bounds"].values()) == pytest.approx(1.0)
    assert block["bounds"]["kv_capacity"] > 0.0
    shown = capsys.readouterr().out
    table = shown[shown.index("milliseconds of") :].splitlines()
    assert max(len(line.rstrip()) for line in table[:14]) <= 80
    assert "waits for blocks" in shown
    assert "KV capacity" in shown
    assert (tmp_path / "s.csv").stat().st_size > 0
    assert (tmp_path / "t.json").stat().st_size > 0
