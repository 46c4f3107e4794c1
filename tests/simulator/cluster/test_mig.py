"""MIG slices are small accelerators of one GPU: their shares of it, of its slot and of its network card."""

from __future__ import annotations

import pytest

from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.core.batch import BatchShape


def plant(hardware: str, **keys: object) -> CompiledDeployment:
    limits = {"max_model_len": 4096, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
    return compile_deployment(Deployment(model="llama3.2-3b", hardware=hardware, **(limits | keys)))  # type: ignore[arg-type]


PROMPT = BatchShape(2048, 2048 * 1024.0, 1, 0, 0, 0, 1)


@pytest.mark.parametrize(("gpu", "profile", "sms"), [("a100-80gb", "2g.20gb", 28 / 108), ("h100", "3g.40gb", 60 / 132)])
def test_a_slice_reads_with_its_memory_and_computes_with_its_multiprocessors(
    gpu: str, profile: str, sms: float
) -> None:
    """Decodes read weights, prompts multiply: both by the slice's own share, but for launches and small kernels."""
    whole, part = plant(gpu), plant(f"{gpu}:{profile}")
    share = part.resolved.hardware.accelerator.memory_bandwidth_bytes_per_s
    share /= whole.resolved.hardware.accelerator.memory_bandwidth_bytes_per_s
    decode = [p.cost.decode_segment(16, 16 * 1000, 1000)[0] for p in (whole, part)]
    assert decode[1] / decode[0] == pytest.approx(1 / share, rel=0.1)
    prompt = [p.cost.cycle_s(PROMPT) for p in (whole, part)]
    assert prompt[1] / prompt[0] == pytest.approx(1 / sms, rel=0.12)
    assert part.memory.budget_bytes < share * 1.01 * whole.memory.budget_bytes


@pytest.mark.parametrize(("profile", "most"), [("1g.10gb", 7), ("2g.20gb", 3), ("3g.40gb", 2), ("7g.80gb", 1)])
def test_slices_together_are_never_quicker_than_the_gpu(profile: str, most: int) -> None:
    """As many requests on the whole GPU, in one batch, take no longer than each slice takes for its own."""
    whole, part = plant("a100-80gb"), plant(f"a100-80gb:{profile}x{most}")
    for each in (1, 8):
        n = each * most
        together = whole.cost.decode_segment(n, n * 1000, 1000)[0]
        assert part.cost.decode_segment(each, each * 1000, 1000)[0] >= 0.999 * together


def test_slices_share_slot_and_card() -> None:
    whole, part = parse_hardware("a100-80gb"), parse_hardware("a100-80gb:2g.20gbx3")
    assert 3 * part.node.host_bytes_per_s == whole.node.host_bytes_per_s
    assert part.node.link_bytes_per_s == part.node.host_bytes_per_s  # peers meet in host memory
    assert 3 * part.node.network_bytes_per_s == whole.node.network_bytes_per_s
    assert part.node.cards == 1


def test_slices_are_replicas_and_cannot_be_joined() -> None:
    assert plant("a100-80gb:2g.20gbx3", replicas=3).resolved.replicas == 3
    for keys in ({"tensor_parallel": 2}, {"context_parallel": 2}, {"pipeline_parallel": 2}):
        with pytest.raises(InputError, match="MIG slices"):
            plant("a100-80gb:2g.20gbx3", **keys)


def test_a_transferred_calibration_says_so() -> None:
    found = plant("h100:2g.20gb")
    assert any("MIG slice" in notice for notice in found.notices)
    assert found.bundle.transferred
