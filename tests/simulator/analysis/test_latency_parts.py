"""The parts of end-to-end times add up for every request, and agree with the phases that an event log gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.complexity.records import PARTS
from catalogs.engines.profile import FirstToken
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.complexity import latency_parts, latency_records
from simulator.analysis.request_phases import PHASES, phases
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import Pool
from simulator.cluster.disaggregation import DisaggregationPolicy
from simulator.cluster.kv_transfer import TransferLinks
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_pools, run_rules
from simulator.engine.event_log import EventLog
from simulator.schedulers.registry import POLICIES
from tests.simulator.cluster.test_pools import Script, Wire, apart, crash_and_replacement, workloads
from tests.simulator.engine.test_fast_forward import World, worlds
from tests.simulator.worlds import Linear, host_times, requests, rules

#: The phases of an event log that a part consists of, for a request that was never preempted.
PHASES_OF = {
    "client_network": ("client_path",),
    "queue": ("lost", "no_replica", "wait_seat", "wait_blocks", "wait_turn", "wait_step"),
    "prefill": ("prefill",),
    "transfer": ("transfer",),
    "decode": ("decode", "stalled_by_prefill"),
}


def life(run: Run, request: int = 0) -> dict[str, float]:
    """The parts of one request that took time."""
    return {name: float(s[request]) for name, s in latency_parts(run).items() if s[request]}


def check(run: Run) -> None:
    """Parts add up to the end-to-end time, none is negative, and each is what the event log gives."""
    found, done = latency_records(run), run.completed
    assert list(found.parts) == [name for name in PARTS if name in found.parts]
    np.testing.assert_allclose(sum(found.parts.values()), run.e2e_s[done], rtol=0, atol=1e-9)
    for name, seconds in found.parts.items():
        assert seconds.min(initial=0.0) > -1e-9, name
    logged, calm = phases(run).e2e_s, run.preemptions[done] == 0
    outside = found.parts["tokenise"] + found.parts["detokenise"]
    np.testing.assert_allclose(outside, logged[:, PHASES.index("api_server")], rtol=0, atol=1e-9)
    for name, seconds in found.parts.items():
        if name in PHASES_OF:
            same = logged[:, [PHASES.index(phase) for phase in PHASES_OF[name]]].sum(axis=1)
            np.testing.assert_allclose(seconds[calm], same[calm], rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=12, deadline=None)
@given(worlds())
def test_parts_add_up_in_any_world(policy: str, world: World) -> None:
    engine = replace(world.rules, policy=policy)
    options = RunOptions(router=world.router, event_log=EventLog())
    check(run_rules(engine, world.timer, world.requests, world.n_replicas, options))


@pytest.mark.parametrize("processes", [1, 3])
def test_the_api_server_tokenises_and_streams(processes: int) -> None:
    """Closed loop of 8 clients whose API server is the bottleneck of both ways."""
    host = host_times(
        request_s=0.01, request_s_per_input_token=2e-3, output_s=0.02, api_request_s=0.004, api_step_s=0.001,
        api_token_s=0.05,
    )  # fmt: skip
    pool = Pool(rules(max_num_seqs=8, kv_blocks=400, host=host, api_servers=processes), Linear(base_s=0.1))
    work = replace(requests([0.0] * 40, [50] * 40, list(range(1, 41))), concurrency=8)
    run = run_pools([pool], work, RunOptions(check_invariants=True, event_log=EventLog()))
    check(run)
    found = latency_records(run).parts
    assert found["tokenise"].min() >= 50 * 2e-3 - 1e-9
    assert found["detokenise"].mean() > (0.05 if processes == 1 else 0.0)
    assert np.all(found["client_network"] == 0.01 + 0.02)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    ("shown", "before", "after"), [("prefill", 1.0, 2.0), ("admission", 1.0, 2.0), ("decode", 2.0, 2.0)]
)
def test_a_transfer_is_a_part_of_its_own(fast: bool, shown: str, before: float, after: float) -> None:
    """The prompt takes 1 s, its blocks 1.5 s on the wire; two more tokens follow, three if the first is shown there."""
    options = RunOptions(
        transfer=TransferLinks({(0, 1): Wire()}),
        hand_over=DisaggregationPolicy(shown),  # type: ignore[arg-type]
        fast_forward=fast,
        check_invariants=True,
        event_log=EventLog(),
    )
    run = run_pools(apart(), requests([0.0], [4], [3]), options)
    assert life(run) == {"prefill": before, "transfer": 1.5, "decode": after}
    assert sum(life(run).values()) == run.e2e_s[0]


@settings(max_examples=20, deadline=None)
@given(workloads(), st.sampled_from(["prefill", "admission", "decode"]), st.integers(1, 2), st.integers(1, 2))
def test_parts_add_up_where_prefill_and_decode_are_separate(
    work: RequestSet, shown: FirstToken, n_prefill: int, n_decode: int
) -> None:
    options = RunOptions(
        transfer=TransferLinks({(0, 1): Wire()}),
        hand_over=DisaggregationPolicy(shown),
        check_invariants=True,
        event_log=EventLog(),
    )
    run = run_pools(apart(n_prefill, n_decode), work, options)
    found, logged = latency_records(run).parts, phases(run).e2e_s
    np.testing.assert_allclose(sum(found.values()), run.e2e_s[run.completed], rtol=0, atol=1e-9)
    for name, seconds in found.items():
        assert seconds.min(initial=0.0) > -1e-9, name
    if "transfer" in found:
        np.testing.assert_allclose(found["transfer"], logged[:, PHASES.index("transfer")], rtol=0, atol=1e-9)


def test_time_on_a_replica_that_failed_is_waiting() -> None:
    script = Script(crash_and_replacement)
    options = RunOptions(controllers=(script,), event_log=EventLog(), check_invariants=True)
    run = run_pools([Pool(rules(), Linear())], requests([0.0], [4], [5]), options)
    assert life(run) == {"queue": 4.0, "prefill": 1.0, "decode": 4.0}
    check(run)


def test_each_model_has_its_own_way_in() -> None:
    pools = [
        Pool(rules(host=host_times(request_s=0.25, output_s=0.125)), Linear(), 1),
        Pool(rules(host=host_times(request_s=0.5, output_s=1.0)), Linear(), 1, model=1),
    ]
    work = replace(requests([0.0, 0.0], [4, 4], [2, 2]), requested_models=np.array([0, 1]))
    run = run_pools(pools, work, RunOptions(check_invariants=True))
    assert life(run, 0) == {"client_network": 0.375, "prefill": 1.0, "decode": 1.0}
    assert life(run, 1) == {"client_network": 1.5, "prefill": 1.0, "decode": 1.0}


def test_only_chosen_and_completed_requests_have_records() -> None:
    run = run_rules(rules(max_model_len=8), Linear(), requests([0.0, 0.0, 0.0], [4, 9, 4], [2, 2, 3]), 1, RunOptions())
    assert run.rejected.tolist() == [False, True, False]
    assert latency_records(run).output_tokens.tolist() == [2, 3]
    assert latency_records(run, np.array([False, True, True])).output_tokens.tolist() == [3]
    assert np.isnan(latency_parts(run)["queue"][1])
