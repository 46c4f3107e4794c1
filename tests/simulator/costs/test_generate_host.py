"""The host's time of a decode step of `generate`: added to the measured kernels on a CPU, and nowhere else."""

from __future__ import annotations

import pytest

from calibration.bundles.bundle import Bundle
from calibration.families.network_kernels import HostLaunchModel
from calibration.power.model import load_power
from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from simulator.costs.generate_host import with_generate_host
from simulator.layers.shard import Shard
from simulator.layers.step import step_launches

KIND = "generate T5ForConditionalGeneration"
LAUNCHES = HostLaunchModel({KIND: 3e-4, "calls": 4e-6, "modules": 9e-6}, {KIND: 1e-3})


def resolved(hardware: str = "local", engine: str = "transformers-static") -> ResolvedDeployment:
    return resolve(Deployment(model="t5-small", engine=engine, hardware=hardware))


def bundle_of(of: ResolvedDeployment, model: HostLaunchModel | None) -> Bundle:
    models = {} if model is None else {"host_launch": model}
    return Bundle("test", of.hardware.accelerator, models, load_power(), {}, [])


def test_the_host_adds_what_the_measured_kernels_do_not_include() -> None:
    t5 = resolved()
    found = with_generate_host(t5, bundle_of(t5, LAUNCHES)).engine.host
    launched_s = 4e-6 * step_launches(Shard.of(t5), encodes=False)
    assert found.step_s == pytest.approx(1e-3 + 6 * 3e-4 - launched_s)
    assert (found.step_s_per_sequence, found.step_gap_s) == (0.0, 0.0)
    assert found.measured
    assert found.request_s == t5.engine.host.request_s


@pytest.mark.parametrize(
    ("hardware", "engine", "model"),
    [
        ("h100", "transformers-static", LAUNCHES),
        ("local", "transformers-static", None),
        ("local", "transformers-static", HostLaunchModel({"calls": 4e-6})),
        ("h100", "trtllm", LAUNCHES),
    ],
    ids=["on a GPU", "no profile", "another class", "another engine"],
)
def test_other_deployments_keep_the_times_of_the_engine_file(
    hardware: str, engine: str, model: HostLaunchModel | None
) -> None:
    other = resolved(hardware, engine)
    assert with_generate_host(other, bundle_of(other, model)) == other
