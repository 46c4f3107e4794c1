"""A stage with a faster resource: laws of the counterfactual."""

from __future__ import annotations

from typing import get_args

import pytest

from calibration.bundles.bundle import load_bundle
from catalogs.hardware.catalog import parse_hardware
from catalogs.networks.files import load_network
from simulator.networks.execution import Execution
from simulator.networks.job import JobPrice, Resource, StagePrice, price_job
from simulator.networks.kernels import job_kernels


def stage(**given: float) -> StagePrice:
    device, host, talk = given.get("device", 4.0), given.get("host", 1.0), given.get("talk", 1.0)
    seconds = max(device, host) + talk
    return StagePrice("s", 2, seconds, device, host, 0.0, talk, 0.0, 0.0, 0.0, 0, 0.0, 2.0, 1.5)


def test_each_resource_shortens_its_own_part() -> None:
    plain = stage()
    assert plain.fixed_s == pytest.approx(0.5)
    expected = {"compute": 4.0, "memory": 4.25, "fixed": 4.75, "host": 5.0, "link": 4.5}
    for resource, seconds in expected.items():
        assert plain.improved(resource, 2.0).seconds == pytest.approx(seconds)  # type: ignore[arg-type]


def test_a_stage_that_waits_for_the_host_gains_from_the_host_alone() -> None:
    plain = stage(host=8.0)
    assert plain.improved("compute", 2.0).seconds == plain.seconds
    assert plain.improved("host", 2.0).seconds == pytest.approx(5.0)
    assert plain.improved("host", 4.0).seconds == pytest.approx(5.0)  # the kernels limit now


def priced(model: str) -> JobPrice:
    hardware = parse_hardware("h100")
    return price_job(load_network(model), load_bundle(hardware.accelerator), hardware, Execution("compiled", "bf16"))


@pytest.mark.parametrize("model", ["resnet50", "bert-base", "sam2.1-large"])
def test_the_parts_of_a_real_job_add_up_and_improvements_only_help(model: str) -> None:
    price = priced(model)
    for each in price.stages:
        assert each.compute_s + each.memory_s + each.fixed_s == pytest.approx(each.device_s)
    for resource in get_args(Resource):
        assert price.improved(resource, 1.0).seconds == pytest.approx(price.seconds)
        assert price.improved(resource, 1.1).seconds <= price.seconds * (1 + 1e-12)
    bundle = load_bundle(parse_hardware("h100").accelerator)
    kernels = list(job_kernels(load_network(model), bundle, Execution("compiled", "bf16")))
    total_s = sum(each.runs * each.device_s for each in price.stages)
    assert sum(kernel.seconds for kernel in kernels) == pytest.approx(total_s)
