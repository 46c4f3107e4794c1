"""Tracing: modules worked by hand, random stacks at unseen sizes, and one line for what cannot be traced."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from catalogs.errors import InputError  # noqa: E402
from catalogs.networks.files import read_network  # noqa: E402
from catalogs.networks.network import JobSize, NeuralNetwork, Repeat, Stage  # noqa: E402
from catalogs.networks.polynomials import Polynomial  # noqa: E402
from catalogs.networks.shapes import AttentionShape, ConvolutionShape, GemmShape  # noqa: E402
from catalogs.trace.command import trace_command  # noqa: E402
from catalogs.trace.recipes import NetworkRecipe  # noqa: E402
from catalogs.trace.record import record  # noqa: E402
from catalogs.trace.stage import trace_operators  # noqa: E402
from catalogs.trace.trace import trace_network  # noqa: E402

BATCH, SIDE = JobSize("batch", 1), JobSize("side", 16, 8, multiple_of=8)


def traced(module, shape, sizes=(BATCH,), dtype=torch.bfloat16) -> NeuralNetwork:
    """Trace a module with one input, whose extents are a function of the sizes."""
    module = module.to(device="meta", dtype=dtype).eval()

    def run(job):
        data = torch.empty(shape(**job), device="meta", dtype=dtype)
        return record(module, lambda: module(data), [data], dtype)

    found = trace_operators(run, sizes)
    stage = Stage("forward", Polynomial.of(1), found.items, 0, "bf16", found.peak, notices=found.unknown)
    return NeuralNetwork("n", "f", tuple(sizes), (stage,), found.derived)


def operators(network: NeuralNetwork, **job: int):
    return network.at(job)[0].operators


def test_a_perceptron_worked_by_hand() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4, bias=False))
    up, relu, down = operators(traced(module, lambda batch: (batch, 8)), batch=5)
    assert (up.shape, up.weights) == (GemmShape(5, 32, 8), 8 * 32 + 32)
    assert (up.read_bytes, up.written_bytes) == (5 * 8 * 2, 5 * 32 * 2)
    assert (relu.kind, relu.shape.elements) == ("pointwise", 5 * 32)
    assert (down.shape, down.weights, down.name) == (GemmShape(5, 4, 32), 32 * 4, "2")


def test_peak_memory_is_the_most_that_lives_at_once() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    stage = traced(module, lambda batch: (batch, 8)).at({"batch": 5})[0]
    assert stage.peak_activation_bytes == 5 * (8 + 32 + 32) * 2  # the input is the caller's and stays


def test_which_operator_has_the_peak_may_depend_on_the_sizes() -> None:
    class Two(torch.nn.Module):
        def forward(self, x):
            table = torch.ones(1000, dtype=x.dtype).clone()
            small = x[:, :1] * table[0]
            del table
            return small + x.repeat(1, 10)[:, :1]

    network = traced(Two(), lambda batch: (batch, 8))
    assert network.at({"batch": 1})[0].peak_activation_bytes == 2 * (8 + 1000 + 1000)
    assert network.at({"batch": 900})[0].peak_activation_bytes == 2 * 900 * (8 + 1 + 80 + 1)


def test_a_convolution_worked_by_hand() -> None:
    module = torch.nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3)
    sizes = (BATCH, SIDE)
    (conv,) = operators(traced(module, lambda batch, side: (batch, 3, side, 2 * side), sizes), batch=2, side=24)
    assert conv.shape == ConvolutionShape(2, 3, 6, (3, 3), (24, 48), (12, 24), (2, 2), (1, 1), groups=3)
    assert conv.flops == 2 * 2 * 12 * 24 * 9 * 6
    assert conv.weights == 6 * 9 + 6


def test_a_transposed_convolution_has_the_flops_of_torch() -> None:
    module = torch.nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1)
    network = traced(module, lambda batch, side: (batch, 4, side, side), (BATCH, SIDE))
    assert network.at({"side": 16})[0].flops == 2 * 16 * 16 * 16 * 4 * 6


@pytest.mark.parametrize(("dimensions", "unfused"), [(3, 1), (4, 0), (5, 1)])
def test_attention_of_other_than_four_dimensions_is_no_fused_kernel(dimensions: int, unfused: int) -> None:
    class Attends(torch.nn.Module):
        def forward(self, x):  # type: ignore[no-untyped-def]
            q = {3: x.flatten(0, 1), 4: x, 5: x[None]}[dimensions]
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    network = traced(Attends(), lambda batch: (batch, 2, 8, 16))
    assert [op.shape.unfused for op in operators(network, batch=1) if op.kind == "attention"] == [unfused]


def test_attention_is_one_operator() -> None:
    class Attend(torch.nn.Module):
        def forward(self, x):
            q = x.view(*x.shape[:2], 4, 8).transpose(1, 2)
            y = torch.nn.functional.scaled_dot_product_attention(q, q[:, :2], q[:, :2], is_causal=True, enable_gqa=True)
            return y.transpose(1, 2).reshape(x.shape)  # a view of what the fused kernels return

    sizes = (BATCH, JobSize("tokens", 7))
    found = operators(traced(Attend(), lambda batch, tokens: (batch, tokens, 32), sizes), batch=3, tokens=11)
    assert [op.kind for op in found] == ["attention"]
    assert found[0].shape == AttentionShape(3, 4, 2, 11, 11, 8, 8, causal=1)
    assert found[0].flops == 2 * 3 * 4 * 11 * 11 * 16


def test_equal_layers_are_folded() -> None:
    blocks = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(24)), torch.nn.Linear(8, 2)
    )
    stage = traced(blocks, lambda batch: (batch, 8)).stages[0]
    repeat, head = stage.items
    assert isinstance(repeat, Repeat)
    assert (repeat.times, len(repeat.items)) == (Polynomial.of(24), 2)
    assert (repeat.items[0].name, head.name) == ("*.*", "24")


def test_a_copy_that_a_batch_of_one_does_not_need() -> None:
    class Transposed(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x.transpose(0, 1).contiguous())

    network = traced(Transposed(), lambda batch: (batch, 6))
    assert [op.kind for op in operators(network, batch=1)] == ["pointwise"]
    assert [op.kind for op in operators(network, batch=2)] == ["copy", "pointwise"]
    assert network.at({"batch": 1})[0].peak_activation_bytes == 24
    assert network.at({"batch": 4})[0].peak_activation_bytes == 3 * 48


def test_an_expanded_tensor_is_read_once_and_a_table_by_its_rows() -> None:
    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(1000, 16)

        def forward(self, x):
            index = torch.zeros(x.shape[0], dtype=torch.int64)
            return self.table(index) + x[:, :1].expand(-1, 16)

    found = operators(traced(Rows(), lambda batch: (batch, 4)), batch=10)
    gather, add = (op for op in found if op.operator in ("embedding", "add"))
    assert (gather.kind, gather.read_bytes, gather.weights) == ("gather", 10 * 16 * 2 + 10 * 8, 0)
    assert add.read_bytes == 10 * 16 * 2 + 10 * 2


def test_an_unknown_operator_keeps_its_bytes_and_is_reported() -> None:
    class Unknown(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x)

    network = traced(Unknown(), lambda batch: (batch, 4, 4), dtype=torch.float32)
    found = [op for op in operators(network, batch=2) if op.kind == "other"]
    assert found
    assert all(op.written_bytes for op in found)
    assert network.stages[0].notices


def test_a_fixed_size_stays_fixed_and_a_part_is_traced_alone() -> None:
    pytest.importorskip("transformers")
    recipe = NetworkRecipe.model_validate(
        {
            "family": "test",
            "source": "by hand",
            "sizes": {"batch": {"default": 2}, "side": {"default": 32, "minimum": 32, "maximum": 32}},
            "stages": {
                "encoder": {
                    "module": "transformers.ViTModel",
                    "part": "embeddings.patch_embeddings",
                    "config": {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "image_size": 32},
                    "inputs": {"pixel_values": ["batch", 3, "side", "side"]},
                    "runs": 3,
                }
            },
        }
    )
    stage = trace_network("patches", recipe).at()[0]
    assert (stage.runs, stage.parameters, len(stage.operators)) == (3, 16 * 16 * 3 * 8 + 8, 1)
    assert stage.flops == 2 * 2 * (2 * 2) * (16 * 16 * 3) * 8


layers = st.lists(
    st.tuples(st.sampled_from([4, 8, 12]), st.sampled_from([1, 3, 5]), st.sampled_from([1, 2]), st.booleans()),
    min_size=1,
    max_size=4,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layers, st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.sampled_from([16, 40]))
def test_random_stacks_have_the_flops_of_torch_at_unseen_sizes(stack, batch, high, wide, hidden) -> None:
    modules, channels = [], 4
    for out, kernel, stride, separable in stack:
        groups = 4 if separable else 1
        modules += [torch.nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups), torch.nn.ReLU()]
        channels = out
    modules += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(channels, hidden)]
    module = torch.nn.Sequential(*modules)
    sizes = (BATCH, JobSize("height", 32, 16, multiple_of=16), JobSize("width", 32, 16, multiple_of=16))
    network = traced(module, lambda batch, height, width: (batch, 4, height, width), sizes)
    job = {"batch": batch, "height": 16 * high, "width": 16 * wide}
    data = torch.empty(batch, 4, 16 * high, 16 * wide, device="meta", dtype=torch.bfloat16)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(data)
    assert network.at(job)[0].flops == counter.get_total_flops()


def test_a_size_between_the_steps_of_a_network_is_refused() -> None:
    module = torch.nn.Conv2d(3, 6, 2, stride=2)
    with pytest.raises(InputError, match="an extent of convolution in the module is no polynomial in side"):
        traced(module, lambda side: (1, 3, side, 4), (JobSize("side", 16, 5),))


def test_control_flow_on_a_size_is_one_line() -> None:
    class Branch(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x) if x.shape[0] > 4 else torch.sigmoid(torch.relu(x))

    with pytest.raises(InputError, match="the sequence of operators depends on batch, first at"):
        traced(Branch(), lambda batch: (batch, 3))


CASES = [
    (
        {},
        "transformers.BertModel",
        "decides by the value of a tensor",
        "attention_mask: {shape: [batch, 8], dtype: int64}",
    ),
    ({"hidden_size": 7}, "transformers.BertModel", "cannot be built from this configuration", ""),
    ({}, "BertModle", "no class of transformers, diffusers or timm has this name", ""),
    ({}, "transformers.BertModle", "transformers has no such class: got 'BertModle'", ""),
    ({}, "transformers.BertModel", "an input has an extent without a size: got 'tokens'", "x: [tokens]"),
    ({}, "transformers.BertModel", "does not run with input_ids 3x8", "input_ids: [batch, 8]"),
    ({}, "transformers.BertModel", "unknown dtype: got 'int46'", "x: {shape: [batch], dtype: int46}"),
    ({}, "transformers.BertModel", "an input with a shape needs a dtype", "x: {shape: [batch]}"),
    ({}, "transformers.BertModel", "a tuple is a list of inputs", "x: {tuple: 3}"),
    ({}, "transformers.BertModel", "--inputs has no such key: got 'szies'", "inputs: {x: [batch]}\nszies: {}"),
    ({}, "transformers.BertModel", "sizes are a mapping by name", "inputs: {x: [batch]}\nsizes: 3"),
]


@pytest.mark.parametrize(("config", "module", "message", "more"), CASES)
def test_a_module_that_cannot_be_traced_is_one_line(tmp_path: Path, config, module, message: str, more: str) -> None:
    pytest.importorskip("transformers")
    small = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    path, out = tmp_path / "config.json", tmp_path / "net.yaml"
    path.write_text(json.dumps(small | config))
    inputs = more if more.startswith("input") else "input_ids: {shape: [batch, 8], dtype: int64}\n" + more
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        trace_command(module, path, inputs, ["batch=1"], out)
    assert "\n" not in str(caught.value)
    assert not out.exists()


def test_the_command_traces_a_class_with_a_configuration(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    small = {
        "hidden_size": 8,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 9,
    }
    config, out = tmp_path / "config.json", tmp_path / "small.yaml"
    config.write_text(json.dumps(small))
    network = trace_command("transformers.BertModel", config, None, ["tokens=4"], out)  # the inputs of the recipe
    assert read_network(out) == network
    attention = next(op for op in operators(network, batch=2, tokens=5) if op.kind == "attention")
    assert (attention.times, attention.shape) == (3, AttentionShape(2, 2, 2, 5, 5, 4, 4))
    assert network.parameters == sum(op.weights * op.times for op in operators(network)) + (9 + 2 + 512) * 8


def test_gelu_by_tanh_is_another_kernel_than_by_erf() -> None:
    both = torch.nn.Sequential(torch.nn.GELU(), torch.nn.GELU(approximate="tanh"))
    assert [op.operator for op in operators(traced(both, lambda batch: (batch, 8)), batch=2)] == ["gelu", "gelu_tanh"]
