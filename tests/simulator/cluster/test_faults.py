"""Faults by hand, laws over random fleets with faults and scaling, and what deployments may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.autoscaling import Autoscaling, ColdStart
from catalogs.deployments.faults import Fault, Retries, parse_faults, parse_retries
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.metrics import output_tokens
from simulator.cluster.cluster import Cluster, Controller, RunOptions
from simulator.cluster.compiled import Pool, compile_fleet
from simulator.cluster.controllers.autoscaler import Autoscaler
from simulator.cluster.controllers.faults import Faults, Placement
from simulator.cluster.kv_transfer import LinkLoad, TransferLinks
from simulator.cluster.run import Run
from simulator.cluster.serving_options import serving_options
from simulator.cluster.simulate import run_pools
from simulator.cluster.simulate import simulate as run_fleet
from simulator.core.outcomes import STATUS
from tests.simulator.worlds import Linear, requests, rules


def apart(pools: int = 1, replicas: int = 9) -> tuple[Placement, ...]:
    """Two replicas on a node, each pool at a site of its own."""
    return tuple(Placement(f"site {p}", tuple((i // 2,) for i in range(replicas))) for p in range(pools))


def struck(pools: list[Pool], work: RequestSet, faults: Sequence[dict[str, object]], **options: object) -> Run:
    acts: tuple[Controller, ...] = (Faults(parse_faults(faults), apart(len(pools))),)
    return run_pools(pools, work, RunOptions(check_invariants=True, controllers=acts, **options))  # type: ignore[arg-type]


# ---- by hand


@pytest.mark.parametrize("fast", [True, False])
def test_a_crash_sends_requests_elsewhere_and_the_replica_comes_back(fast: bool) -> None:
    work = requests([0.0, 0.0, 4.0, 4.0], [4] * 4, [4] * 4)
    crash = {"kind": "crash", "at_s": 1.5, "replica": 0, "lasts_s": 2.0}
    run = struck([Pool(rules(), Linear(), 2)], work, [crash], fast_forward=fast)
    # request 0 had its first token at 1 and loses it; at 1.5 it joins the other's queue, whose step ends at 2
    assert run.replica.tolist() == [1, 1, 2, 1]
    # request 3 comes just as a step of request 0 has begun, request 2 to an idle newborn
    assert run.first_token_s.tolist() == [3.0, 1.0, 5.0, 6.0]
    assert run.last_token_s.tolist() == [6.0, 4.0, 8.0, 9.0]
    assert [(r.created_s, r.removed_s) for r in run.replicas] == [(0.0, 1.5), (0.0, np.inf), (3.5, np.inf)]
    assert run.orders.tolist() == [[0.0, 1.5, 3.5]]
    assert (run.restarts, int(run.failed.sum())) == (1, 0)


def test_lost_requests_wait_before_they_are_sent_again_and_fail_at_last() -> None:
    """Backoff 1 s, then 2 s; the third loss is one too many."""
    faults = [{"kind": "crash", "at_s": t, "replica": 0, "lasts_s": 0.25} for t in (0.5, 2.0, 4.5)]
    retries = Retries(limit=2, backoff_s=1.0, factor=2.0, jitter=0.0)
    run = struck([Pool(rules(), Linear())], requests([0.0, 5.0], [4, 4], [4, 1]), faults, retries=retries)
    # sent at 0, lost at 0.5; sent at 1.5, lost at 2; sent at 4, lost at 4.5
    assert STATUS[run.status[0]].startswith("failed")
    assert (run.restarts, run.replica.tolist()) == (3, [2, 3])
    assert np.isnan(run.first_token_s[0])
    assert run.last_token_s[1] == 6.0
    assert output_tokens(run) == 1.0


def test_jitter_spreads_retries() -> None:
    retries = Retries(backoff_s=1.0, jitter=0.5)
    assert [retries.wait_s(1, draw) for draw in (0.0, 0.5, 1.0)] == [0.5, 1.0, 1.5]
    assert Retries(backoff_s=1.0, factor=2.0, longest_s=5.0, jitter=0.0).wait_s(9, 0.3) == 5.0
    assert Retries() == Retries(limit=5, backoff_s=0.05, factor=1.5, longest_s=30.0, jitter=0.2)


@pytest.mark.parametrize("fast", [True, False])
def test_a_slow_gpu_slows_its_own_steps_for_a_while(fast: bool) -> None:
    work = requests([0.0, 0.0], [4, 4], [8, 8])
    slow = {"kind": "slow", "at_s": 1.5, "replica": 0, "factor": 3, "lasts_s": 4.0}
    run = struck([Pool(rules(), Linear(), 2)], work, [slow], fast_forward=fast)
    # steps end at 1, 2 (begun before), 5, 8 (begun before the end at 5.5), 9, 10, 11, 12
    assert run.last_token_s.tolist() == [12.0, 8.0]


def test_two_ailments_multiply_and_end_by_themselves() -> None:
    faults = [
        {"kind": "slow", "at_s": 0.5, "replica": 0, "factor": 2, "lasts_s": 3.0},
        {"kind": "slow", "at_s": 0.5, "replica": 0, "factor": 3},
    ]
    run = struck([Pool(rules(), Linear())], requests([0.0], [4], [4]), faults)
    assert run.last_token_s.tolist() == [13.0]  # 1, then 6 (to 7, begun before 3.5), then 3 and 3


@dataclass(frozen=True)
class Wire:
    latency_s: float = 0.0

    def pieces(self, tokens: int) -> int:  # noqa: ARG002 - everything leaves at the end
        return 1

    def load(self, tokens: int) -> LinkLoad:
        wire_s = 0.25 * tokens
        return LinkLoad(wire_s, wire_s, wire_s)


def test_a_degraded_link_slows_transfers_and_collectives() -> None:
    pools = [Pool(rules(), Linear(), 1, "prefill"), Pool(rules(), Linear(), 1, "decode")]
    work = requests([0.0], [4], [3])
    for pool, factor in ((0, 2.0), (1, 4.0)):
        fault = {"kind": "link", "at_s": 0.5, "pool": pool, "replica": 0, "factor": factor}
        run = struck(pools, work, [fault], transfer=TransferLinks({(0, 1): Wire()}))
        assert run.handovers[:, 3:].tolist() == [[1.0, 1.0 + factor]]
        assert run.last_token_s.tolist() == [3.0 + factor]
    for lasts_s, end_s in ((None, 2.5), (0.5, 2.25)):  # half is sent at 1.5, a quarter more by 2
        fault = {"kind": "link", "at_s": 1.5, "pool": 0, "replica": 0, "factor": 2.0, "lasts_s": lasts_s}
        run = struck(pools, work, [fault], transfer=TransferLinks({(0, 1): Wire()}))
        assert run.handovers[:, 3:].tolist() == [[1.0, end_s]]
    asked: list[tuple[int, float]] = []

    def slow_link(pool: int, factor: float) -> Linear:
        asked.append((pool, factor))
        return Linear(base_s=1.5)

    acts = Faults(parse_faults([{"kind": "link", "at_s": 0.5, "replica": 0, "factor": 4}]), apart(), slow_link)
    run = run_pools([Pool(rules(), Linear())], work, RunOptions(controllers=(acts,)))
    assert (asked, run.last_token_s.tolist()) == ([(0, 4.0)], [4.0])


def test_a_lost_node_takes_its_replicas_and_no_other() -> None:
    work = requests([0.0, 0.0, 0.0, 6.0, 6.0, 6.0], [4] * 6, [3] * 6)
    lost = {"kind": "node", "at_s": 1.5, "node": 0, "lasts_s": 3.0}
    run = struck([Pool(rules(), Linear(), 3)], work, [lost])
    assert [(r.created_s, r.removed_s) for r in run.replicas[:3]] == [(0.0, 1.5), (0.0, 1.5), (0.0, np.inf)]
    assert [r.created_s for r in run.replicas[3:]] == [4.5, 4.5]
    assert run.replica[:3].tolist() == [2, 2, 2]
    assert set(run.replica[3:].tolist()) == {2, 3, 4}


def test_nobody_moves_in_on_a_node_that_is_down() -> None:
    slots: list[int] = []

    @dataclass
    class Grow:
        def start(self, cluster: Cluster) -> None:
            cluster.timetable.at(2.0, lambda: slots.append(cluster.add_replica(0).slot))
            cluster.timetable.at(6.0, lambda: slots.append(cluster.add_replica(0).slot))

    acts = (Faults(parse_faults([{"kind": "node", "at_s": 1.0, "node": 0, "lasts_s": 4.0}]), apart()), Grow())
    run_pools([Pool(rules(), Linear(), 3)], requests([0.0, 9.0], [4, 4], [3, 3]), RunOptions(controllers=acts))
    assert slots == [3, 4]  # 0 and 1 stood on the node: first nobody may, at 5 they are back


def test_random_faults_have_the_means_they_were_given() -> None:
    """One replica over 20,000 s: it is up mtbf / (mtbf + mttr) of the time."""
    fault = {"kind": "crash", "mtbf_s": 90, "mttr_s": 10, "seed": 4}
    run = struck([Pool(rules(), Linear())], requests([0.0, 20_000.0], [4, 4], [1, 1]), [fault])
    lives = np.array([(r.created_s, min(r.removed_s, 20_000.0)) for r in run.replicas])
    assert len(lives) == pytest.approx(200, rel=0.2)
    assert (lives[:, 1] - lives[:, 0]).sum() / 20_000 == pytest.approx(0.9, abs=0.03)
    steady = struck(
        [Pool(rules(), Linear())],
        requests([0.0, 350.0], [4, 4], [1, 1]),
        [{"kind": "crash", "mtbf_s": 90, "mttr_s": 10, "mtbf_cv": 0, "mttr_cv": 0}],
    )
    assert [r.removed_s for r in steady.replicas[:3]] == [90.0, 190.0, 290.0]


def test_random_numbers_of_a_replica_do_not_depend_on_others() -> None:
    fault = {"kind": "crash", "mtbf_s": 50, "mttr_s": 5}
    work = requests([0.0, 400.0], [4, 4], [1, 1])
    deaths = [
        {r.removed_s for r in struck([Pool(rules(), Linear(), n)], work, [fault]).replicas if r.removed_s < 400.0}
        for n in (1, 2)
    ]
    assert min(deaths[0]) in deaths[1]


def test_a_fleet_that_only_breaks_says_so() -> None:
    fault = {"kind": "crash", "mtbf_s": 0.01, "mttr_s": 0.01}
    with pytest.raises(InputError, match="no request was answered"):
        struck([Pool(rules(), Linear())], requests([0.0], [4], [9]), [fault])


def test_nothing_befalls_a_node_that_is_gone_for_good() -> None:
    """It breaks 2 s after it came back; at 2.5 s it is lost and never comes back: the run ends without an answer."""
    often = {"kind": "node", "mtbf_s": 2.0, "mttr_s": 0.25, "mtbf_cv": 0.0, "mttr_cv": 0.0}
    faults: list[dict[str, object]] = [often, {"kind": "node", "at_s": 2.5, "node": 0}]
    acts = (Faults(parse_faults(faults), apart(1, 1)),)
    run = run_pools(
        [Pool(rules(), Linear())], requests([0.0], [4], [20]), RunOptions(check_invariants=True, controllers=acts)
    )
    assert run.unfinished.all()
    assert max(r.removed_s for r in run.replicas) <= 2.5
    # nobody there, and another node that breaks in vain: the replica crashed for good
    crash = [often, {"kind": "crash", "at_s": 0.1, "replica": 0}]
    assert struck([Pool(rules(), Linear())], requests([0.0], [4], [20]), crash).unfinished.all()


def test_a_run_in_which_nobody_was_ever_there_has_a_share_of_no_time() -> None:
    """The only request comes when the only node is lost for good."""
    lost: dict[str, object] = {"kind": "node", "at_s": 1.0, "node": 0}
    run = struck([Pool(rules(), Linear())], requests([2.0], [4], [2]), [lost])
    assert [r.alive_fraction(*run.span_s) for r in run.replicas] == [0.0]
    assert run.unfinished.all()


# ---- laws over random fleets, faults and scaling


@dataclass
class Auditor:
    """Counts requests at odd times: none is lost and none is twice."""

    work: RequestSet
    seen: int = field(default=0)

    def start(self, cluster: Cluster) -> None:
        def audit() -> None:
            self.seen += 1
            now = cluster.clock.now
            arrived = int((self.work.arrival_s < now).sum())
            held = sum(r.outstanding for r in cluster.replicas if r.removed_s > now)
            assert all(r.outstanding == 0 for r in cluster.replicas if r.removed_s <= now)
            waiting = len(cluster._stranded) + cluster.retries.n_waiting
            assert arrived == cluster.n_answered + held + waiting

        for i in range(120):
            cluster.timetable.at(0.3701 + 0.7307 * i, audit)


def assert_lawful(run: Run) -> None:
    """Every request has one end, and nothing is served by the dead or the unborn."""
    assert (run.completed.astype(int) + run.rejected + run.failed == 1).all()
    for replica in run.replicas:
        for log in replica.logs:
            ends = log.start_s + log.total_s
            assert (ends <= replica.removed_s + 1e-9).all()
            assert (log.start_s >= replica.created_s).all()
    done = run.completed
    died = np.array([r.removed_s for r in run.replicas])
    assert (run.last_token_s[done] <= died[run.replica[done]] + 1e-9).all()
    assert (run.first_token_s[done] >= run.arrival_s[done]).all()


FAULTS = st.one_of(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["crash", "node", "slow"]),
            "at_s": st.sampled_from([0.5, 1.0, 2.25, 5.0]),
            "lasts_s": st.sampled_from([0.25, 3.0]),
            "where": st.integers(0, 2),
        }
    ),
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["crash", "node", "slow"]),
            "mtbf_s": st.sampled_from([6.0, 15.0]),
            "mttr_s": st.sampled_from([1.0, 4.0]),
            "seed": st.integers(0, 9),
        }
    ),
)


ROWS = st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(1, 40), st.integers(1, 12))


def fault_of(drawn: dict[str, object]) -> dict[str, object]:
    found = {k: v for k, v in drawn.items() if k != "where"}
    if "where" in drawn:
        found["node" if drawn["kind"] == "node" else "replica"] = drawn["where"]
    return found | ({"factor": 2.5} if drawn["kind"] == "slow" else {})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=16
    ),
    st.lists(FAULTS, max_size=4),
    st.sampled_from(["queue", "outstanding", "kv", "busy", "ttft"]),
    st.sampled_from(["round_robin", "least_outstanding", "prefix_aware", "session_affinity"]),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_nothing_is_lost_and_nobody_is_served_by_the_dead(
    rows: list[tuple[float, int, int]], drawn: list[dict[str, object]], metric: str, router: str, n: int, limit: int
) -> None:
    gaps, inputs, outputs = zip(*rows, strict=True)
    work = requests(np.cumsum(gaps).tolist(), list(inputs), list(outputs))
    options = Autoscaling(
        metric=metric,  # type: ignore[arg-type]
        target=0.5,
        max_replicas=4,
        interval_s=1.5,
        scale_down_stabilization_s=3.0,
        cold_start=ColdStart(),
    )
    acts = (Autoscaler(0, options, 2.0), Faults(parse_faults([fault_of(d) for d in drawn]), apart()), Auditor(work))
    runs = []
    for fast in (True, False):
        pools = [Pool(rules(kv_blocks=30, max_num_seqs=3), Linear(base_s=0.25, decode_s=0.125), n)]
        chosen = RunOptions(
            check_invariants=True,
            controllers=acts if fast else (Autoscaler(0, options, 2.0), Faults(acts[1].faults, apart())),
            router=router,
            retries=Retries(limit=limit, backoff_s=0.5, jitter=0.2),
            fast_forward=fast,
        )
        runs.append(run_pools(pools, work, chosen))
        assert_lawful(runs[-1])
    np.testing.assert_allclose(runs[0].last_token_s, runs[1].last_token_s, rtol=0, atol=1e-9)


# ---- deployments


def test_what_a_deployment_says_happens() -> None:
    written = Deployment(
        model="llama3.1-8b",
        hardware="2*h100x2",
        replicas=4,
        max_model_len=4096,
        max_num_seqs=32,
        faults=[{"kind": "node", "at_s": 1.0, "node": 1, "lasts_s": 2.0}],
        retries={"backoff_s": 0.1, "jitter": 0},
    )
    fleet = compile_fleet(written)
    work = RequestSet(np.linspace(0.0, 4.0, 80), np.full(80, 100), np.full(80, 20))
    run = run_fleet(fleet, work, serving_options(written, fleet))
    assert [r.removed_s for r in run.replicas] == [np.inf, np.inf, 1.0, 1.0, np.inf, np.inf]
    assert run.completed.all()
    assert run.restarts > 0
    assert_lawful(run)


def test_slow_links_slow_what_ranks_say_to_each_other_only() -> None:
    from simulator.cluster.serving_options import _slow_links

    two = compile_fleet(Deployment(model="llama3.1-8b", hardware="h100x2", tensor_parallel=2))
    one = compile_fleet(Deployment(model="llama3.1-8b", hardware="h100"))
    slowed = _slow_links(two)(0, 10.0).decode_segment(8, 8000, 1000)[0]
    plain = two.deployments[0].cost.decode_segment(8, 8000, 1000)[0]
    assert 1.2 * plain < slowed < 10.0 * plain
    assert _slow_links(one)(0, 10.0).decode_segment(8, 8000, 1000) == one.deployments[0].cost.decode_segment(
        8, 8000, 1000
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"kind": "crsh", "at_s": 1, "replica": 0}, "kind"),
        ({"kind": "crash", "at_s": 1, "replcia": 0}, "replica"),
        ({"kind": "crash", "at_s": 1}, "replica: 0"),
        ({"kind": "crash", "replica": 0}, "at_s: 60"),
        ({"kind": "crash", "at_s": 1, "mtbf_s": 5, "replica": 0}, "at_s: 60"),
        ({"kind": "crash", "mtbf_s": 5}, "mttr_s: 300"),
        ({"kind": "crash", "mtbf_s": 5, "mttr_s": 1, "replica": 0}, "strike every replica"),
        ({"kind": "crash", "mtbf_s": 5, "mttr_s": 1, "lasts_s": 3}, "duration of random faults is mttr_s"),
        ({"kind": "slow", "at_s": 1, "replica": 0}, "factor: 2"),
        ({"kind": "slow", "at_s": 1, "replica": 0, "factor": 0.5}, "greater than 1"),
        ({"kind": "crash", "at_s": 1, "replica": 0, "factor": 2}, "has no factor"),
        ({"kind": "node", "at_s": 1, "replica": 0}, "needs node"),
        ({"kind": "crash", "at_s": 1, "replica": 0, "mttr_s": 9}, "lasts_s"),
    ],
)
def test_faults_that_make_no_sense_are_refused(fault: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_faults([fault])


@pytest.mark.parametrize(
    ("fault", "nearest"),
    [
        ({"kind": "crash", "at_s": 1, "replica": 4}, "3"),
        ({"kind": "crash", "at_s": 1, "replica": 0, "pool": 1}, "0"),
        ({"kind": "node", "at_s": 1, "node": 2}, "1"),
    ],
)
def test_faults_of_what_is_not_there_are_refused(fault: dict[str, object], nearest: str) -> None:
    written = Deployment(model="llama3.1-8b", hardware="2*h100x2", replicas=4, faults=[fault])
    with pytest.raises(InputError, match=f"nearest valid choice: {nearest}"):
        serving_options(written, compile_fleet(written))


def test_retries_are_checked() -> None:
    with pytest.raises(InputError, match="backoff_s"):
        parse_retries({"backof_s": 1})
    with pytest.raises(InputError, match="greater than or equal to 1"):
        parse_retries({"factor": 0.5})
    assert isinstance(parse_faults([{"kind": "crash", "at_s": 0, "replica": 0}])[0], Fault)
