"""Which candidates are legal, and which a bound discards with its reason."""

from __future__ import annotations

import pytest

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.networks.files import load_network
from planner.networks.candidate import Setup
from planner.networks.job import PlannedJob
from planner.networks.job_service import JobService
from planner.networks.mix import JobMix, read_jobs
from planner.networks.request import network_request
from planner.networks.space import Space, is_too_slow, make_space, splits
from simulator.networks.job import JobPrice
from tests.planner.networks.known_jobs import KnownService, ask


class Heavy(KnownService):
    """A network of 100 GB, of which 10 GB for each job stay if its weights are sharded or offloaded."""

    def memory_bytes(self, setup: Setup, jobs: int = 1, instances: int = 1) -> float:
        less = setup.offload or setup.parallelism.shard_weights
        return instances * (10e9 * jobs if less else 100e9)


class Light(KnownService):
    """A network that always fits."""

    def memory_bytes(self, setup: Setup, jobs: int = 1, instances: int = 1) -> float:  # noqa: ARG002
        return 1e9 * jobs * instances


class Refused(Light):
    """A network that the simulator cannot execute in some number formats."""

    wrong: tuple[str, ...] = ("fp8",)

    def seconds(self, setup: Setup, jobs: int = 1) -> float:
        if setup.precision in self.wrong:
            raise InputError("no such kernels", setup.precision)
        return super().seconds(setup, jobs)


def space(service: type[KnownService], model: str = "sdxl", seconds: float = 1.0, **keys: object) -> Space:
    found = service(JobMix.one(PlannedJob(load_network(model), {})), seconds_of=lambda n: seconds * n)
    return make_space(ask(**({"model": model, "hardware": "h100x2"} | keys)), found, [parse_hardware("h100x2")])


def test_weights_that_do_not_fit_are_sharded_or_offloaded() -> None:
    found = space(Heavy)
    assert found.left
    assert all(c.setup.offload or c.setup.parallelism.shard_weights for c in found.left)
    assert max(c.max_batch for c in found.left) <= 8
    assert {c.setup.parallelism.shard_weights for c in found.left if c.setup.ranks > 1} == {True}


def test_a_single_job_above_the_limit_rules_a_setup_out() -> None:
    found = space(Light, seconds=5.0, slo="e2e.p90=4s")
    assert found.left == []
    assert "one job alone takes 5 s" in next(iter(found.reasons))
    assert found.n == found.discarded.total()


def test_larger_batches_that_gain_nothing_are_left_out() -> None:
    assert {c.max_batch for c in space(Light).left} == {1}


def test_a_setup_that_the_simulator_refuses_is_one_reason() -> None:
    found = space(Refused)
    assert {c.setup.precision for c in found.left} == {"bf16"}
    assert any("no such kernels" in reason for reason in found.reasons)
    with pytest.raises(InputError, match="no setup of sdxl can be executed"):
        space(type("AllRefused", (Refused,), {"wrong": ("bf16", "fp8")}))


@pytest.mark.parametrize(("model", "most"), [("resnet50", 1), ("open-sora-2.0", 8), ("flux.1-dev", 8)])
def test_only_jobs_that_repeat_a_stage_are_split(model: str, most: int) -> None:
    service = Light(JobMix.one(PlannedJob(load_network(model), {})))
    found = splits(service, parse_hardware("h100x8"))
    assert max(split.ranks for split in found) == most
    assert len(set(found)) == len(found)
    assert {split.guidance for split in found} == ({1, 2} if model == "open-sora-2.0" else {1})


def test_an_unknown_precision_of_the_hardware_is_refused() -> None:
    found = Light(JobMix.one(PlannedJob(load_network("resnet50"), {})))
    with pytest.raises(InputError, match="h100x8 has no such precision"):
        make_space(ask(precisions="fp8"), found, [parse_hardware("a100-80gbx2")])


def test_a_job_beyond_the_memory_is_refused_without_pricing_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.networks.job_service.price_job", lambda *_: pytest.fail("a job was priced"))
    job = PlannedJob(load_network("wan2.1-t2v-14b"), {"height": 20_000, "width": 20_000, "frames": 2001})
    hardware = [parse_hardware("h100x8")]
    found = make_space(ask(model="wan2.1-t2v-14b", hardware="h100x8"), JobService(JobMix.one(job)), hardware)
    assert (found.left, list(found.discarded)) == ([], ["memory"])


@pytest.mark.parametrize("hardware", ["h100x2", "l40sx2", "b200x2"])
def test_a_job_takes_longer_than_its_arithmetic(hardware: str) -> None:
    service = JobService(JobMix.one(PlannedJob(load_network("sdxl"), {})))
    two = parse_hardware(hardware)
    for split in splits(service, two):
        for precision in ("bf16", "fp8"):
            setup = Setup(two, precision, "compiled", split)
            assert 0.02 < service.lower_bound_s(setup) / service.seconds(setup) < 1.0


def test_a_network_in_one_pass_has_no_bound() -> None:
    service = JobService(JobMix.one(PlannedJob(load_network("resnet50"), {})))
    assert service.lower_bound_s(Setup(parse_hardware("h100x1"), "bf16", "compiled")) == 0.0


def test_a_job_that_the_arithmetic_rules_out_is_hardly_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the setups with the fastest arithmetic are priced, so that the answer states how long a job takes."""
    priced: list[Setup] = []
    price = JobService.price

    def count(service: JobService, setup: Setup, jobs: int = 1, kind: int = 0) -> JobPrice:
        priced.append(setup)
        return price(service, setup, jobs, kind)

    monkeypatch.setattr(JobService, "price", count)
    request = network_request({"model": "sdxl", "hardware": "h100x8", "slo": "e2e.p95=100ms", "steps": 900})
    service = JobService(read_jobs(load_network("sdxl"), None, 900))
    found = make_space(request, service, [parse_hardware("h100x8")])
    assert found.left == []
    assert found.n > 20
    (words,) = found.reasons
    assert words.startswith("one job alone takes ")
    assert "at least" not in words
    assert {(setup.precision, setup.ranks) for setup in priced} == {("fp8", 8)}
    assert all(is_too_slow(request, service, parse_hardware(name)) for name in ("h100x8", "b200x8"))
    assert not is_too_slow(
        request.replace(steps=1), JobService(read_jobs(load_network("sdxl"), None, 1)), parse_hardware("h100x2")
    )


def test_nodes_share_the_prices_of_a_replica() -> None:
    service = JobService(JobMix.one(PlannedJob(load_network("sdxl"), {})))
    one, two = (Setup(parse_hardware(name), "bf16", "compiled") for name in ("h100x2", "2*h100x2"))
    assert service.price(one) is service.price(two)
