"""The operators that stand for those of a network do the same work, and one mapping serves profiles and prices."""

from __future__ import annotations

import pytest

from calibration.operators.flops_and_bytes import bytes_moved, flops
from calibration.operators.network_operators import TORCH_ATTENTION_MASKED, converts_nothing, network_operator
from calibration.operators.operators import Convolution, Matmul, NonCausalAttention, Streaming, extents, numbers
from catalogs.hardware.catalog import parse_hardware
from catalogs.networks.files import load_network
from catalogs.networks.network import SizedOperator
from catalogs.networks.shapes import AttentionShape, ConvolutionShape, ElementShape, GemmShape

NETWORKS = ("resnet50", "vit_base_patch16_224", "bert-base", "t5-small-encoder", "sam2.1-tiny", "mobilenetv3_large_100")
UNIT = parse_hardware("h100").accelerator


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_work_is_that_of_the_network(name: str, batch: int) -> None:
    """FLOPs agree exactly, and bytes with those that the network file states, but for masks, bias and statistics."""
    for stage in load_network(name).at({"batch": batch}, 4):
        found = [(op, network_operator(op, "fp32")) for op in stage.operators]
        assert all(mapped is not None for _, mapped in found)
        assert sum(op.times * float(flops(mapped)) for op, mapped in found if mapped) == pytest.approx(stage.flops)
        for op, mapped in found:
            if mapped is None or op.kind == "attention":
                continue
            stated = op.read_bytes + op.written_bytes + 4 * op.weights
            assert float(bytes_moved(mapped, UNIT)) == pytest.approx(stated, rel=0.02, abs=16_384), op.name


def test_each_kind_by_hand() -> None:
    linear = SizedOperator("fc", "gemm", "addmm", GemmShape(6, 8, 4), 96, 192, 40, None, 1)
    assert network_operator(linear, "fp32") == Matmul(6, 8, 4, 1, 1, "fp32")
    own = SizedOperator("qk", "gemm", "bmm", GemmShape(6, 8, 4, 3), 0, 0, 0, None, 1)
    assert network_operator(own, "bf16") == Matmul(6, 8, 4, 3, 0, "bf16")
    image = ConvolutionShape(2, 3, 64, (7, 7), (224, 224), (112, 112), (2, 2), (1, 1))
    found = network_operator(SizedOperator("conv1", "convolution", "convolution", image, 0, 0, 9408, None, 1), "fp32")
    assert found == Convolution(2, 3, 64, 1, "7x7", "224x224", "112x112", "2x2", "1x1", 0, "fp32")
    rows = ElementShape(768 * 10)
    norm = SizedOperator("norm", "normalisation", "native_layer_norm", rows, 0, 30_720 + 80, 1536, None, 1)
    mapped = network_operator(norm, "fp32")
    assert isinstance(mapped, Streaming)
    assert (mapped.width, mapped.read_bytes) == (768, 4 * 1536)  # ten rows with a mean and a deviation each


def test_attention_states_its_mask_and_a_causal_one_is_none() -> None:
    shape = AttentionShape(2, 8, 8, 16, 77, 64, 64, masked=1)
    op = SizedOperator("a", "attention", "sdpa", shape, 0, 0, 0, None, 1)
    assert network_operator(op, "fp32") == NonCausalAttention(2, 16, 77, 8, 64, TORCH_ATTENTION_MASKED, "fp32")
    causal = AttentionShape(2, 8, 8, 16, 16, 64, 64, causal=1)
    assert network_operator(SizedOperator("a", "attention", "sdpa", causal, 0, 0, 0, None, 1), "fp32") is None


def test_conversions_to_fp32_vanish_where_the_network_computes_in_it() -> None:
    """T5 converts to fp32 and back in each of its 13 norms, if it computes in bf16."""
    network = load_network("t5-small-encoder")
    for itemsize, converted in ((2, 26), (4, 0)):
        (stage,) = network.at(None, itemsize)
        copies = [op for op in stage.operators if op.operator == "_to_copy" and not converts_nothing(op)]
        assert sum(op.times for op in copies if op.shape.elements > 128 * 128) == converted  # type: ignore[union-attr]


def test_extents_are_read_back() -> None:
    for values in ((3,), (16, 16), (1, 2, 4)):
        assert numbers(extents(values)) == values
