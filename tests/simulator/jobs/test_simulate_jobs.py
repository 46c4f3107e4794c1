"""Real networks served: prices, memory, energy, one job over several accelerators against several replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from catalogs.deployments.network_deployment import NetworkDeployment, as_network_deployment
from catalogs.errors import InputError
from catalogs.workloads.arrivals import AllAtOnce, ConstantRate, Poisson
from catalogs.workloads.jobs import JobWorkload, NetworkJob
from simulator.jobs.compiled import compile_jobs, with_replicas
from simulator.jobs.metrics import caveats, covered_s, executed, job_metrics, summarise_jobs
from simulator.jobs.simulate import simulate_jobs
from simulator.networks.job import price_job
from tests.simulator.jobs.worlds import constant, job_set, run


def deployment(**keys: Any) -> NetworkDeployment:
    return as_network_deployment({"model": "bert-base", "hardware": "l40sx4", **keys}, "test")


def test_a_single_job_takes_what_its_network_costs() -> None:
    compiled = compile_jobs(deployment(model="sam2.1-tiny"))
    expected = price_job(compiled.network, compiled.bundle, compiled.hardware, compiled.execution)
    found = simulate_jobs(compiled, JobWorkload(n_jobs=1))
    assert found.e2e_s[0] == pytest.approx(expected.seconds)
    assert found.queue_s[0] == 0.0


def test_sizes_come_from_the_kind_then_from_the_deployment_then_from_the_network() -> None:
    compiled = compile_jobs(deployment(job={"tokens": 64}))
    assert compiled.sizes_of(NetworkJob()) == {"batch": 1, "tokens": 64}
    assert compiled.sizes_of(NetworkJob(sizes={"tokens": 512})) == {"batch": 1, "tokens": 512}
    assert compile_jobs(deployment()).sizes_of(NetworkJob())["tokens"] == 128


def test_energy_is_that_of_the_kernels_and_of_idle_accelerators() -> None:
    """Ten jobs one second apart on one of four accelerators: kernels as priced, and idle power in all other time."""
    compiled = compile_jobs(deployment(hardware="h100x4"))
    found = simulate_jobs(compiled, JobWorkload(arrivals=ConstantRate(requests_per_s=1.0), n_jobs=10))
    price, unit = compiled.price(NetworkJob(), 1), compiled.hardware.accelerator
    detail = price_job(compiled.network, compiled.bundle, compiled.hardware, compiled.execution)
    duration = 9.0 + price.seconds
    metrics = summarise_jobs(found)["metrics"]
    assert metrics["duration_s"] == pytest.approx(duration)
    joules = sum(stage.runs * stage.joules for stage in detail.stages)  # with idle power while the host launches
    expected = 10 * joules + unit.idle_w * (4 * duration - 10 * price.seconds)
    assert metrics["energy"]["gpu_j"] == pytest.approx(expected)
    assert metrics["energy"]["gpu_j_per_job"] == pytest.approx(expected / 10)
    node = compiled.hardware.node
    hosts = node.host_idle_w * 4 / node.max_accelerators * duration + node.host_w_per_accelerator * 10 * price.seconds
    assert metrics["energy"]["total_j_per_job"] == pytest.approx((expected + hosts) / 10)
    assert metrics["serving_fraction"] == pytest.approx(10 * price.seconds / duration)
    assert metrics["busy_fraction"] <= metrics["serving_fraction"]


def test_one_job_over_four_accelerators_is_faster_and_four_replicas_serve_more() -> None:
    """At light load the split wins, and for a burst the replicas do, since collectives cost time."""
    split = deployment(model="flux.1-dev", hardware="h100x4", ulysses=4)
    replicas = deployment(model="flux.1-dev", hardware="h100x4", replicas=4)
    light = JobWorkload(arrivals=ConstantRate(requests_per_s=0.05), n_jobs=4)
    burst = JobWorkload(arrivals=AllAtOnce(), n_jobs=16)
    assert simulate_jobs(split, light).e2e_s.mean() < 0.5 * simulate_jobs(replicas, light).e2e_s.mean()
    ends = [simulate_jobs(each, burst).ended_s.max() for each in (split, replicas)]
    assert ends[0] > ends[1]


def test_batches_raise_the_throughput_of_a_small_network() -> None:
    burst = JobWorkload(arrivals=AllAtOnce(), n_jobs=256)
    one = simulate_jobs(deployment(model="resnet50", hardware="l40s"), burst)
    many = simulate_jobs(deployment(model="resnet50", hardware="l40s", engine="triton", max_batch=32), burst)
    assert many.ended_s.max() < 0.6 * one.ended_s.max()
    assert set(many.batches.items.tolist()) == {32}


def test_a_batch_that_does_not_fit_names_the_largest_that_does() -> None:
    with pytest.raises(InputError, match=r"max_batch: \d+") as error:
        simulate_jobs(deployment(model="flux.1-dev", max_batch=64), JobWorkload(n_jobs=1))
    largest = int(str(error.value.nearest).split()[1])
    simulate_jobs(deployment(model="flux.1-dev", max_batch=largest), JobWorkload(n_jobs=1))
    with pytest.raises(InputError):
        simulate_jobs(deployment(model="flux.1-dev", max_batch=largest + 1), JobWorkload(n_jobs=1))


def test_each_instance_holds_the_weights() -> None:
    rules = {"model": "flux.1-dev", "engine": "triton"}
    simulate_jobs(deployment(**rules), JobWorkload(n_jobs=1))
    with pytest.raises(InputError, match="needs"):
        simulate_jobs(deployment(**rules, instances=2), JobWorkload(n_jobs=1))


def test_networks_that_share_accelerators_are_loaded_when_they_are_needed() -> None:
    written = deployment(model="flux.1-dev", further_models=["sd3.5-large"], hardware="l40s")
    kinds = (NetworkJob(), NetworkJob(model="SD3.5-large"))
    load = JobWorkload(arrivals=ConstantRate(requests_per_s=0.01), kinds=kinds, n_jobs=20)
    found = simulate_jobs(written, load)
    compiled = compile_jobs(written)
    changes = int((np.diff(found.jobs.kind) != 0).sum()) + int(found.jobs.kind[0] == 1)
    assert found.n_networks_loaded == changes > 0
    second = int(np.flatnonzero(found.jobs.kind == 1)[0])
    load_s = compiled.weights_bytes("sd3.5-large") / compiled.hardware.node.host_bytes_per_s
    assert found.service_s[second] == pytest.approx(compiled.price(kinds[1], 1).seconds + load_s)
    large = written.model_copy(update={"hardware": "h200"})
    assert simulate_jobs(large, load).n_networks_loaded == 0


def test_more_replicas_share_the_prices_and_shorten_the_wait() -> None:
    compiled = compile_jobs(deployment(model="resnet50"))
    load = JobWorkload(arrivals=Poisson(requests_per_s=1000.0), n_jobs=500)
    waits = [simulate_jobs(with_replicas(compiled, n), load).queue_s.mean() for n in (1, 2, 4)]
    assert waits[0] > waits[1] > waits[2]
    assert with_replicas(compiled, 2).price(NetworkJob(), 1) is compiled.price(NetworkJob(), 1)


def test_statistics_count_every_job() -> None:
    found = run(job_set([0.0, 1.0, 1.5, 2.0]), constant(4.0), "triton", timeout_s=5.0, max_waiting=2)
    metrics = job_metrics(found)
    counts = [metrics[f"n_{name}"] for name in ("arrived", "completed", "rejected", "timed_out", "unfinished")]
    assert counts == [4, 2, 1, 1, 0]
    assert metrics["e2e_s"]["mean"] == pytest.approx((4.0 + 7.0) / 2)
    assert len(caveats(found)) == 3
    with pytest.raises(ValueError, match="bare prices"):
        summarise_jobs(found)


def test_a_run_without_a_batch_has_statistics() -> None:
    """The only job waits for others longer than its timeout."""
    written = deployment(engine="triton", max_batch=8, queue_delay_s=5.0, timeout_s=1.0)
    found = summarise_jobs(simulate_jobs(written, JobWorkload(n_jobs=1)))
    assert found["metrics"]["n_timed_out"] == 1
    assert found["metrics"]["energy"]["gpu_j_per_job"] is None
    assert found["calibration"]["measured_fraction"] == 0.0


def test_a_batch_that_is_cut_off_counts_in_part() -> None:
    found = run(job_set([0.0, 1.0]), constant(4.0), horizon_s=6.0)
    assert executed(found.batches, 6.0).tolist() == [1.0, 0.5]
    assert covered_s(found.batches, 0, 6.0) == 6.0


def test_overlapping_batches_cover_their_time_once() -> None:
    found = run(job_set([0.0, 1.0, 20.0]), lambda *_: constant(4.0, 0.0)(0, 0), instances=2)
    assert covered_s(found.batches, 0, 100.0) == pytest.approx(5.0 + 4.0)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"mode": "fast"}, "eager, compiled, tensorrt"),
        ({"precision": "bf17"}, "bf16"),
        ({"attention_backend": "fa9"}, "fa"),
        ({"replicas": 5}, "replicas: 4"),
        ({"job": {"token": 3}}, "tokens"),
        ({"job": {"tokens": 1024}}, "512"),
        ({"job": {"batch": 8}, "max_batch": 4}, "max_batch"),
        ({"router": "kv_aware"}, "least_outstanding"),
        ({"router": "fastest"}, "unknown kind"),
        ({"session_state": {"mib": 1e6}}, "GiB"),
    ],
)
def test_bad_values_are_refused_in_one_line(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        simulate_jobs(deployment(**keys), JobWorkload(n_jobs=1))
    assert words in str(error.value)
    assert "\n" not in str(error.value)
