"""The autoscaler by hand, metric by metric; cold starts; a day of load; what deployments may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from catalogs.deployments.autoscaling import Autoscaling, ColdStart, parse_autoscaling
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.arrivals import parse_arrivals
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.metrics import fleet_metrics, summarise
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import Pool, compile_fleet
from simulator.cluster.controllers.autoscaler import Autoscaler, LoadMeter
from simulator.cluster.run import Run
from simulator.cluster.serving_options import cold_start_s, serving_options
from simulator.cluster.simulate import run_pools
from simulator.cluster.simulate import simulate as run_fleet
from tests.simulator.worlds import Linear, requests, rules


def options(**changes: Any) -> Autoscaling:
    keys: dict[str, Any] = {"metric": "queue", "target": 1.0, "max_replicas": 8, "interval_s": 2.0}
    return Autoscaling(**keys | changes)


def scaled(work: RequestSet, asked: Autoscaling, cold_s: float = 3.0, n: int = 1, **more: Any) -> Run:
    pools = [Pool(rules(max_num_seqs=more.pop("seats", 1)), Linear(), n)]
    acts = (Autoscaler(0, asked, cold_s), *more.pop("beside", ()))
    return run_pools(pools, work, RunOptions(check_invariants=True, controllers=acts, **more))


def lives(run: Run) -> list[tuple[float, float]]:
    return [(r.created_s, r.removed_s) for r in run.replicas]


# ---- by hand


def test_a_queue_makes_replicas_that_come_after_their_cold_start() -> None:
    """Five wait at 2 (of six, one runs): one replica is there, five are wanted, 4 may be added in 15 s."""
    work = requests([0.0] * 6 + [20.0], [4] * 7, [9] * 6 + [1])
    run = scaled(work, options(), router="least_outstanding")
    assert run.orders[:, 1].tolist() == [2.0] * 4
    assert [born for born, _ in lives(run)] == [0.0] + [5.0] * 4
    assert run.completed.all()


def test_what_is_on_its_way_counts_as_there() -> None:
    """With a cold start of 7 s, looks at 4, 6 and 8 find four replicas coming and order no more."""
    work = requests([0.0] * 5, [4] * 5, [30] * 5)
    run = scaled(work, options(target=1.0), cold_s=7.0)
    assert len(run.orders) == 3  # 4 wait: 4 wanted, one is there


def test_within_the_tolerance_nothing_happens() -> None:
    work = requests([0.0] * 3 + [12.0], [4] * 4, [9] * 4)
    assert len(scaled(work, options(target=2.0)).orders) == 0  # two wait, two are wanted for each
    assert len(scaled(work, options(target=1.85)).orders) == 0  # 8 % above
    assert len(scaled(work, options(target=1.7)).orders) == 1  # 18 % above


def test_down_after_the_window_by_draining_the_youngest() -> None:
    """All is quiet from 3 on; the highest wish of the last 10 s is 2 until the start's own has left it."""
    work = requests([0.0, 0.0, 30.0], [4] * 3, [3, 3, 1])
    run = scaled(work, options(scale_down_stabilization_s=10.0), n=2)
    assert lives(run) == [(0.0, np.inf), (0.0, 12.0)]
    kept = scaled(work, options(scale_down_stabilization_s=10.0, min_replicas=2), n=2)
    assert lives(kept) == [(0.0, np.inf), (0.0, np.inf)]


def test_a_draining_replica_finishes_what_it_has() -> None:
    work = requests([0.0, 1.0, 30.0], [4] * 3, [2, 20, 1])
    run = scaled(work, options(scale_down_stabilization_s=0.0), n=2)
    assert lives(run)[1] == (0.0, 21.0)  # told to go at 2, done at 21
    assert run.replica.tolist() == [0, 1, 0]


def test_orders_are_cancelled_before_replicas_drain() -> None:
    """Wanted at 2, no longer wanted at 4: what comes at 52 never does."""
    work = requests([0.0, 0.0, 80.0], [4] * 3, [3, 1, 1])
    run = scaled(work, options(scale_down_stabilization_s=0.0, target=0.4), cold_s=50.0)
    assert run.orders.tolist() == [[0.0, 2.0, 4.0]] * 2
    assert len(run.replicas) == 1
    assert run.starting_s(0) == 4.0


def test_up_at_most_by_policy() -> None:
    """2 replicas, 100 requests: 4 more at 2 (larger than 100 %), then none until 17, then doubled."""
    work = requests([0.0] * 100, [4] * 100, [60] * 100)
    run = scaled(work, options(max_replicas=64), cold_s=1.0, n=2)
    ordered = run.orders[:, 1].tolist()
    assert [ordered.count(t) for t in (2.0, 4.0, 16.0, 18.0)] == [4, 0, 0, 6]


def test_stabilisation_upwards_waits_for_the_lowest_wish() -> None:
    work = requests([0.0] * 6, [4] * 6, [9] * 6)
    run = scaled(work, options(scale_up_stabilization_s=5.0))
    assert run.orders[0, 1] == 6.0  # the wish of the start, for one, has left the window then


def test_from_none_to_one_and_back() -> None:
    work = requests([0.0, 40.0], [4, 4], [2, 2])
    run = scaled(work, options(min_replicas=0, scale_down_stabilization_s=4.0))
    assert lives(run)[0] == (0.0, 6.0)
    assert run.orders.tolist() == [[0.0, 42.0, 45.0]]
    assert run.first_token_s.tolist() == [1.0, 46.0]


def test_a_crash_is_made_good_and_a_restart_counts() -> None:
    @dataclass
    class Crash:
        restart_s: float | None

        def start(self, cluster: Cluster) -> None:
            def crash() -> None:
                cluster.fail(cluster.replicas[0])
                if self.restart_s is not None:
                    cluster.orders.place(0, self.restart_s)

            cluster.timetable.at(0.5, crash)

    work = requests([0.0, 20.0], [4, 4], [2, 2])
    lost = scaled(work, options(min_replicas=2), n=2, beside=(Crash(None),))
    assert [born for born, _ in lives(lost)] == [0.0, 0.0, 5.0]
    back = scaled(work, options(min_replicas=2), n=2, beside=(Crash(8.0),))
    assert [born for born, _ in lives(back)] == [0.0, 0.0, 8.5]


def test_a_run_leaves_nothing_behind_for_the_next() -> None:
    scaler = Autoscaler(0, options(), 3.0)
    work = requests([0.0] * 6 + [20.0], [4] * 7, [9] * 6 + [1])
    pools = [Pool(rules(max_num_seqs=1), Linear())]
    one, two = (run_pools(pools, work, RunOptions(controllers=(scaler,))) for _ in range(2))
    assert lives(one) == lives(two)
    assert one.orders.tolist() == two.orders.tolist()


# ---- metrics


def readings(asked: Autoscaling, work: RequestSet, times: Sequence[float], **engine: Any) -> list[float]:
    """What the meter reads then."""
    found: list[float] = []

    class Look:
        def start(self, cluster: Cluster) -> None:
            meter = LoadMeter(cluster, 0, asked)
            for t in times:
                cluster.timetable.at(t, lambda: found.append(meter.total(cluster.live_replicas(0))))

    run_pools([Pool(rules(**engine), Linear(), 2)], work, RunOptions(controllers=(Look(),)))
    return found


def test_what_each_metric_reads() -> None:
    work = requests([0.0, 0.0, 0.0, 20.0], [8, 8, 8, 8], [4, 9, 4, 1])
    times = [1.5, 3.5, 5.5]
    # round robin: replica 0 has requests 0 and 2, replica 1 request 1; one seat each
    assert readings(options(metric="queue"), work, times, max_num_seqs=1) == [1.0, 1.0, 0.0]
    assert readings(options(metric="outstanding"), work, times, max_num_seqs=1) == [3.0, 3.0, 2.0]
    # blocks of 4: the prompt's two and one for tokens so far, of 12
    kv = readings(options(metric="kv"), work, times, max_num_seqs=1, kv_blocks=12)
    assert kv == pytest.approx([6 / 12, 6 / 12, (3 + 4) / 12])


@pytest.mark.parametrize("fast", [True, False])
def test_busy_is_the_share_of_time_in_steps(fast: bool) -> None:
    found: list[float] = []
    work = requests([0.5, 20.0], [4, 4], [6, 1])

    class Look:
        def start(self, cluster: Cluster) -> None:
            meter = LoadMeter(cluster, 0, options(metric="busy", target=0.5, interval_s=2.0))
            cluster.timetable.every(2.0, lambda: found.append(meter.total(cluster.live_replicas(0))))

    run_pools([Pool(rules(), Linear())], work, RunOptions(controllers=(Look(),), fast_forward=fast))
    assert found[:5] == [0.75, 1.0, 1.0, 0.25, 0.0]  # from 0.5 to 6.5


def test_time_to_first_token_counts_those_who_still_wait() -> None:
    work = requests([0.0, 0.0, 0.0, 0.0, 40.0], [4] * 5, [9, 9, 9, 9, 1])
    asked = options(metric="ttft", target=2.0, quantile=0.9)
    # replicas serve one at a time: at 2 two have had theirs after 1 s and two wait since 0; at 12 they had it at 10
    assert readings(asked, work, [2.0, 6.0, 12.0, 30.0], max_num_seqs=1) == [2 * 2.0, 2 * 6.0, 2 * 10.0, 0.0]


@pytest.mark.parametrize(
    ("metric", "target"), [("queue", 1.0), ("outstanding", 3.0), ("kv", 0.5), ("busy", 0.6), ("ttft", 2.0)]
)
def test_every_metric_follows_a_wave(metric: str, target: float) -> None:
    """Load rises to eight times its trough and falls: more replicas at the peak than at the end."""
    wave = parse_arrivals({"diurnal": {"requests_per_s": 1.0, "swing": 0.8, "period_s": 2000, "peak_at_s": 1000}})
    rng = np.random.default_rng(0)
    arrivals = wave.starts_s(rng, 2000, 1.0)
    work = RequestSet(arrivals, np.full(2000, 8), rng.integers(1, 9, 2000))
    asked = options(metric=metric, target=target, interval_s=15.0, max_replicas=30)
    pools = [Pool(rules(max_num_seqs=2, kv_blocks=12), Linear())]
    run = run_pools(pools, work, RunOptions(router="least_outstanding", controllers=(Autoscaler(0, asked, 20.0),)))
    assert run.completed.all()
    born, died = (np.array(x) for x in zip(*lives(run), strict=True))
    peak, end = (int(((born <= t) & (died > t)).sum()) for t in (1100.0, 1990.0))
    assert peak >= 2 * max(1, end)


# ---- cold starts and deployments


def test_a_cold_start_is_the_sum_of_its_parts() -> None:
    start = ColdStart(node_s=90, image_gb=8, image_gb_per_s=0.1, weights_gb_per_s=2.0, engine_s=30, graph_capture_s=5)
    assert start.seconds(16e9) == 90 + 80 + 8 + 30 + 5
    keys = {"metric": "queue", "target": 1, "max_replicas": 2, "cold_start": {"image_gb": 0, "weights_gb_per_s": 1.0}}
    fleet = compile_fleet(Deployment(model="llama3.1-8b", hardware="h100x2", autoscaling=keys))
    assert cold_start_s(fleet.deployments[0]) == pytest.approx(57 + 7 + 16.06, abs=0.1)  # 8.03 G weights of 2 bytes


def test_a_deployment_scales_and_pays_for_what_it_uses() -> None:
    keys = {
        "metric": "outstanding",
        "target": 4,
        "max_replicas": 4,
        "interval_s": 2.0,
        "scale_down_stabilization_s": 6.0,
        "cold_start": {"image_gb": 0, "engine_s": 2, "graph_capture_s": 0, "weights_gb_per_s": 100},
    }
    small = {"max_model_len": 4096, "max_num_seqs": 32, "max_num_batched_tokens": 512}
    written = Deployment(model="llama3.1-8b", hardware="h100x4", router="least_outstanding", autoscaling=keys, **small)  # type: ignore[arg-type]
    fixed = Deployment(model="llama3.1-8b", hardware="h100x4", replicas=4, router="least_outstanding", **small)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    times = np.sort(np.concatenate([rng.uniform(0, 90, 60), rng.uniform(30, 40, 300)]))
    work = RequestSet(times, np.full(360, 200), np.full(360, 100))
    runs, shown = [], []
    for deployment in (written, fixed):
        fleet = compile_fleet(deployment)
        run = run_fleet(fleet, work, serving_options(deployment, fleet))
        runs.append(run)
        shown.append(summarise(run)["metrics"] | fleet_metrics(run))
    counts = shown[0]["replicas"]
    assert (counts["min"], counts["max"]) == (1, 4)
    assert 1.0 < counts["mean"] < 3.0
    assert shown[1]["replicas"] == {"mean": 4.0, "min": 4, "max": 4, "end": 4}
    assert shown[1]["accelerator_hours"] == pytest.approx(4 * shown[1]["duration_s"] / 3600)
    alive_h = counts["mean"] * shown[0]["duration_s"] / 3600
    assert alive_h < shown[0]["accelerator_hours"] < 1.3 * alive_h  # replicas on their way are paid for
    assert shown[0]["energy"]["gpu_j"] < shown[1]["energy"]["gpu_j"]
    assert shown[0]["energy"]["total_j_per_output_token"] < shown[1]["energy"]["total_j_per_output_token"]


@pytest.mark.parametrize(
    ("changes", "replicas", "said"),
    [
        ({"metric": "quue"}, 1, "metric"),
        ({"targt": 1}, 1, "nearest valid choice: target"),
        ({"min_replicas": 9}, 9, "min_replicas exceeds max_replicas"),
        ({"min_replicas": 2}, 1, "nearest valid choice: 2"),
        ({}, 9, "nearest valid choice: 8"),
        ({"metric": "kv", "target": 80}, 1, "fraction between 0 and 1"),
        ({"target": 0}, 1, "greater than 0"),
        ({"cold_start": {"imag_gb": 1}}, 1, "nearest valid choice: image_gb"),
        ({"interval_s": 0}, 1, "greater than or equal to 0.01"),
    ],
)
def test_scaling_that_makes_no_sense_is_refused(changes: dict[str, object], replicas: int, said: str) -> None:
    keys: dict[str, object] = {"metric": "queue", "target": 1.0, "max_replicas": 8}
    with pytest.raises(InputError, match=said):
        parse_autoscaling(keys | changes, replicas)


def test_all_replicas_there_may_ever_be_must_fit() -> None:
    keys: dict[str, object] = {"metric": "queue", "target": 1, "max_replicas": 5}
    with pytest.raises(InputError, match="must fit in the 8"):
        compile_fleet(Deployment(model="llama3.1-8b", hardware="h100x8", tensor_parallel=2, autoscaling=keys))
