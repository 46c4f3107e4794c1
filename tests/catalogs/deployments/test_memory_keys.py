"""deployment.yaml keys of memory beside the device: resolved values and refusals."""

from __future__ import annotations

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment, KvOffload
from catalogs.errors import InputError
from catalogs.units import GIB


def deployment(**keys: object) -> Deployment:
    return Deployment.model_validate({"model": "llama-3.1-8b", "hardware": "h100x8", **keys})


def test_rates_not_given_are_the_node_s() -> None:
    found = resolve(deployment(kv_offload={"host_gib": 200.0}))
    assert found.offload is not None
    assert found.offload.host_bytes_per_s == 64e9  # PCIe 5 x16
    assert found.offload.host_bytes == 200 * GIB
    requested = deployment(kv_offload={"host_gib": 200.0, "host_gib_per_s": 20.0})
    filled = resolve(requested).filled_in(requested)["kv_offload"]
    assert (filled["host_gib"], filled["host_gib_per_s"]) == (200.0, 20.0)
    assert resolve(deployment()).filled_in(deployment())["kv_offload"] is None


@pytest.mark.parametrize("name", ["rtx4090", "gb200x4", "a100-80gb:2g.20gbx3"])
def test_every_gpu_reaches_its_host(name: str) -> None:
    assert 1e9 < resolve(deployment(hardware=name)).hardware.node.host_bytes_per_s < 300e9


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"kv_offload": {"host_gib": 3000.0}}, r"exceeds the 2048 GiB of host memory.*got 3000.0.*choice: 2048"),
        ({"kv_offload": {"host_gib": 300.0}, "replicas": 8}, r"of 8 replica.*got 300.0.*choice: 256"),
        ({"kv_offload": {"host_gib": 20.0}, "engine": "sglang"}, "KV offload is not simulated for sglang"),
        ({"kv_offload": {"host_gib": 20.0}, "engine": "vllm-v0"}, "KV offload is not simulated for vllm-v0"),
        ({"kv_offload": {"host_gib": 20.0}, "pipeline_parallel": 2}, "together with pipeline_parallel"),
        ({"kv_offload": {"host_gib": 20.0}, "prefix_caching": False}, "prefix_caching"),
        ({"kv_offload": {"host_gib": 20.0}, "queue": {"timeout_s": 5.0}}, "got 'queue'.*choice: queue: null"),
        ({"preemption": "swap"}, "preemption by swap is not simulated for vllm.*engine: vllm-v0"),
        ({"swap_space_gib": 4.0}, "swap_space_gib needs preemption: swap"),
        ({"swap_space_gib": 0.0, "preemption": "swap", "engine": "vllm-v0"}, "needs swap space"),
        ({"swap_space_gib": 9000.0, "preemption": "swap", "engine": "vllm-v0"}, "exceeds the 2048 GiB"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, object], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        resolve(deployment(**keys))


def test_swap_space_of_v0_is_four_gib_unless_said() -> None:
    found = resolve(deployment(engine="vllm-v0", preemption="swap"))
    assert found.swap_bytes == 4 * GIB


def test_sizes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        KvOffload(host_gib=0.0)
