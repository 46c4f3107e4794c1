"""Encoders that read the prompt (T5, BART, NLLB): operators, memory and times worked out by hand, laws, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.operators.flops_and_bytes import bytes_moved, flops
from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.cluster.run import Run
from simulator.cluster.simulate import engine_rules, run_rules, simulate
from simulator.core.batch import BatchShape
from simulator.core.outcomes import TOO_LONG
from simulator.costs.compile import compile_step_cost
from simulator.costs.step_cost import StepCost
from simulator.layers.encoder import cross_cache_bytes, cross_decode_calls, encoder_calls
from simulator.layers.operator_call import OperatorCall
from simulator.layers.shard import Shard
from simulator.layers.step import StepCalls, step_calls
from simulator.memory.plan import sequence_bytes, size_memory
from tests.simulator.plants import ToySource
from tests.simulator.worlds import NO_HOST, requests

#: T5-small: six layers in each stack, 8 heads of 64, blocks of 2048.
HIDDEN, LAYERS, FFN = 512, 6, 2048
TOKEN_BYTES = LAYERS * 2 * HIDDEN * 2  # keys and values of one token in 16 bit

STATIC = {"engine": "transformers-static", "max_num_batched_tokens": 16384, "max_num_seqs": 8}


def t5(model: str = "t5-small", **keys: object) -> ResolvedDeployment:
    written = {"model": model, "hardware": "h100x1", "weight_dtype": "bf16", **keys}
    return resolve(Deployment.model_validate(written))


def toy_cost(deployed: ResolvedDeployment) -> StepCost:
    return compile_step_cost(deployed, ToySource(deployed.hardware.accelerator))


COST = toy_cost(t5(**STATIC))


def prompts(n: int, tokens: int) -> BatchShape:
    return BatchShape(prefill_tokens=n * tokens, prefill_pairs=n * tokens * (0.5 * tokens), prefill_chunks=n, logits=n)


def decodes(n: int, context: int) -> BatchShape:
    return BatchShape(decodes=n, decode_context_sum=n * context, decode_context_max=context, logits=n)


def total_flops(lines: list[OperatorCall]) -> float:
    return float(sum(line.count * flops(line.op) for line in lines if line.kind != "elementwise"))


# ---- operators


@pytest.mark.parametrize(("n", "tokens"), [(1, 64), (3, 500)])
def test_an_encoder_pass_by_hand(n: int, tokens: int) -> None:
    """Per layer four projections, two feed-forward products, scores and values of all pairs; then keys and values."""
    layer = 2 * tokens * (4 * HIDDEN**2 + 2 * HIDDEN * FFN) + 4 * tokens**2 * HIDDEN
    keys_and_values = 2 * tokens * 2 * HIDDEN**2
    found = total_flops(list(encoder_calls(Shard.of(t5()), np.array(float(n)), np.array(float(tokens)))))
    assert found == pytest.approx(n * LAYERS * (layer + keys_and_values), rel=1e-12)


def test_a_decode_reads_the_keys_and_values_of_its_prompt_and_its_output() -> None:
    deployed = t5()
    shard, unit = Shard.of(deployed), deployed.hardware.accelerator
    group, n = shard.model.groups[0], 4
    for prompt, output in ((512, 1), (100, 60)):
        context = np.array(float(prompt + output))
        (line,) = cross_decode_calls(shard, group, np.array(float(n)), context, context)
        queries = 2 * n * HIDDEN * 2
        read = line.count * (float(bytes_moved(line.op, unit)) - queries)
        assert read == n * (prompt + output) * TOKEN_BYTES


def test_the_decoder_starts_with_one_token_of_each_prompt() -> None:
    """The decoder's products of a step with 3 prompts of 100 tokens are those of a step with 3 decodes."""
    shard = Shard.of(t5())
    decoder = {line.name for line in StepCalls(shard).rank(1)} - {"embedding"}
    work = [
        {line.name: flops(line.op) for line in step_calls(shard, shape) if line.name in decoder}
        for shape in (prompts(3, 100), decodes(3, 100))
    ]
    assert work[0] == work[1]
    assert COST._counts(prompts(3, 100))[:3] == (3, 3, 3)


@pytest.mark.parametrize("shape", [prompts(2, 64), prompts(8, 512), decodes(8, 100), decodes(1, 1)])
def test_the_price_of_a_step_is_that_of_its_operators(shape: BatchShape) -> None:
    """The tables that a run reads, against each operator of one step; the launch bound is tested by itself."""
    source = ToySource(COST.tables.resolved.hardware.accelerator)
    parts = sum(line.count * float(source.cost(line.op).seconds) for line in step_calls(COST.tables.lines.shard, shape))
    free = StepCost(replace(COST.tables, launch_s=0.0, decode_launch_s=0.0))
    assert free._batch_s(shape) == pytest.approx(parts, rel=0.03)


def test_a_step_of_decodes_does_not_launch_the_encoder() -> None:
    """Six encoder layers of 8 kernels (2 norms), and a product and a write for the cross keys of six decoder layers."""
    each = COST.tables.engine.host.kernel_launch_s
    assert (COST.tables.launch_s - COST.tables.decode_launch_s) / each == pytest.approx(LAYERS * 8 + LAYERS * 2)


@pytest.mark.parametrize(("prompt", "output"), [(512, 16), (40, 40), (256, 256)])
def test_the_division_of_the_context_does_not_matter(prompt: int, output: int) -> None:
    """Two kernels over prompt and output, against the price over the whole context: exact where time is linear."""
    deployed = t5(**STATIC)
    source, shard = ToySource(deployed.hardware.accelerator), Shard.of(deployed)
    group, n = shard.model.groups[0], np.array(8.0)

    def seconds(tokens: float) -> float:
        (line,) = cross_decode_calls(shard, group, n, np.array(tokens), np.array(tokens))
        return line.count * float(source.cost(line.op).seconds)

    divided = seconds(prompt) + seconds(output)
    assert seconds(prompt + output - 1) + seconds(1) == pytest.approx(divided, rel=1e-6)


# ---- laws


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(1, 511), st.integers(1, 64))
def test_a_longer_prompt_is_never_faster(n: int, tokens: int, more: int) -> None:
    longer = min(tokens + more, 512)
    assert COST.cycle_s(prompts(n, longer)) >= COST.cycle_s(prompts(n, tokens)) * (1 - 1e-9)
    assert COST.cycle_s(decodes(n, longer)) >= COST.cycle_s(decodes(n, tokens)) * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(1, 512))
def test_a_further_sequence_is_never_faster(n: int, tokens: int) -> None:
    for shape in (prompts, decodes):
        assert COST.cycle_s(shape(n + 1, tokens)) >= COST.cycle_s(shape(n, tokens)) * (1 - 1e-9)


def test_the_decoder_alone_is_a_decoder_only_model_with_cross_attention() -> None:
    """A decode at the shortest context costs what the same decoder costs without an encoder, plus its cross calls."""
    deployed = t5(**STATIC)
    layers = tuple(replace(group, cross_attention=False) for group in deployed.model.groups)
    plain = replace(deployed, model=replace(deployed.model, groups=layers, encoder_groups=()))
    source, crossing = ToySource(deployed.hardware.accelerator), step_calls(Shard.of(deployed), decodes(4, 1))
    added = sum(line.count * float(source.cost(line.op).seconds) for line in crossing if line.name.startswith("cross_"))
    without = StepCost(replace(toy_cost(plain).tables, launch_s=0.0, decode_launch_s=0.0))
    both = StepCost(replace(COST.tables, launch_s=0.0, decode_launch_s=0.0))
    assert both._batch_s(decodes(4, 1)) == pytest.approx(without._batch_s(decodes(4, 1)) + added, rel=0.01)


# ---- memory


def test_both_caches_by_hand() -> None:
    """12,288 bytes for a prompt token in the cross attention, and as many for an output token in the self attention."""
    shard = Shard.of(t5())
    assert sequence_bytes(shard, 500 + 20) == (500 + 20) * TOKEN_BYTES == 520 * 12_288
    assert cross_cache_bytes(shard) == 0.0  # nothing beyond the tokens of the request
    plan = size_memory(t5(**STATIC))
    assert (plan.kv_bytes_per_token, plan.cross_blocks) == (TOKEN_BYTES, 0)
    assert plan.kv_blocks == int(plan.kv_bytes / TOKEN_BYTES)


@pytest.mark.parametrize("model", ["t5-small", "bart-base", "nllb-200-distilled-600m", "flan-t5-xl"])
def test_all_weights_are_loaded(model: str) -> None:
    deployed = t5(model)
    assert size_memory(deployed).weights_bytes == pytest.approx(2 * deployed.model.n_params, rel=1e-12)


# ---- whole runs


def served(**keys: object) -> CompiledDeployment:
    return compile_deployment(Deployment.model_validate({"model": "t5-small", "hardware": "h100x1", **keys}))


def ran(plant: CompiledDeployment, inputs: list[int], outputs: list[int]) -> Run:
    return simulate(plant, requests([0.0] * len(inputs), inputs, outputs))


def test_a_padded_batch_by_hand() -> None:
    """Prompts of 60 and 100 padded to 100, one step for them, then decodes to the longest output of 5."""
    plant = served(**STATIC)
    free = replace(engine_rules(plant), host=NO_HOST)
    run = run_rules(free, plant.cost, requests([0.0] * 2, [60, 100], [3, 5]), options=RunOptions(check_invariants=True))
    (log,) = run.replicas[0].logs
    steps = [plant.cost.cycle_s(prompts(2, 100)), *(plant.cost.cycle_s(decodes(2, 100 + k)) for k in range(4))]
    assert float(log.total_s.sum()) == pytest.approx(sum(steps), rel=1e-9)
    assert log.prefill_tokens.max() == 200
    assert run.first_token_s.tolist() == run.last_token_s.tolist()  # the batch is answered whole
    assert run.replicas[0].kv_peak_fraction == pytest.approx(2 * (100 + 4) / plant.memory.kv_blocks)


def test_laws_hold_in_flight_with_prompts_of_all_lengths() -> None:
    plant = served(engine="trtllm", max_num_seqs=4, kv_blocks=64)
    rng = np.random.default_rng(3)
    work = requests(np.sort(rng.uniform(0, 1, 40)).tolist(), rng.integers(1, 513, 40).tolist(), [20] * 40)
    slow, fast = (simulate(plant, work, RunOptions(fast_forward=ff, check_invariants=True)) for ff in (False, True))
    assert fast.completed.all()
    assert np.allclose(slow.last_token_s, fast.last_token_s, rtol=0, atol=1e-9)


def test_in_flight_batches_do_not_wait_for_each_other() -> None:
    run = ran(served(engine="trtllm"), [60, 100], [3, 50])
    assert run.completed.all()
    assert run.last_token_s[0] < run.last_token_s[1]
    assert run.first_token_s[1] < run.last_token_s[1]


@pytest.mark.parametrize("engine", ["transformers-static", "pytorch", "triton", "trtllm"])
def test_each_side_has_its_own_positions(engine: str) -> None:
    """T5 has 512 positions in either stack: 513 + 1 and 1 + 513 tokens are refused, 512 + 512 are served."""
    run = ran(served(engine=engine), [513, 1, 512], [1, 513, 512])
    assert run.completed.tolist() == [False, False, True]
    assert run.status[:2].tolist() == [TOO_LONG, TOO_LONG]


def test_prompts_are_cut_to_the_encoder_on_request() -> None:
    run = ran(served(engine="triton", queue={"too_long": "truncate"}), [800, 100], [600, 10])
    assert run.completed.all()
    assert run.n_truncated == 1
    assert run.requests.input_tokens.tolist() == [512, 100]
    assert run.requests.output_tokens.tolist() == [512, 10]


# ---- engines


@pytest.mark.parametrize(
    ("model", "hardware", "engine"),
    [
        ("t5-small", "h100x8", "trtllm"),
        ("google/flan-t5-xl", "l40s", "trtllm"),
        ("bart-large-cnn", "any", "trtllm"),
        ("nllb-200-3.3b", "h100", "transformers-static"),
        ("t5-small", "mi300x", "transformers-static"),
        ("t5-small", "local", "transformers-static"),
        ("whisper-large-v3", "h100", "vllm"),
        ("llama3.1-8b", "h100", "vllm"),
    ],
)
def test_the_default_engine_serves_the_model(model: str, hardware: str, engine: str) -> None:
    assert Deployment(model=model, hardware=hardware).engine == engine


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        (
            {"engine": "vllm"},
            "vllm does not serve T5ForConditionalGeneration, whose encoder reads the prompt: got 't5-sm",
        ),
        ({"engine": "sglang"}, "nearest valid choice: engine: trtllm"),
        ({"engine": "transformers"}, "transformers does not serve"),
        ({"engine": "llama.cpp"}, "llama.cpp does not serve"),
        (
            {"engine": "trtllm", "hardware": "mi300x"},
            "on mi300x, whose encoder reads the prompt: got 't5-small'; nearest valid choice: engine: transformers-sta",
        ),
        ({"model": "nllb-200-3.3b", "engine": "trtllm"}, "nearest valid choice: engine: transformers-static"),
        (
            {"engine": "transformers-static", "tensor_parallel": 2},
            "transformers-static serves t5-small on one accelerator: got 'tensor_parallel: 2'",
        ),
        ({"prefix_caching": True}, "no engine caches prefixes of encoder-decoder models"),
        ({"pipeline_parallel": 2}, "an encoder-decoder model is not simulated together with pipeline_parallel"),
        ({"data_parallel": 2}, "nearest valid choice: data_parallel: 1"),
        ({"lora": {"adapters": 2}}, "got 'lora'"),
        ({"kv_dtype": "fp8"}, "trtllm has no such kv_dtype"),
        ({"max_model_len": 1025}, "exceeds the 1024 positions of t5-small, half of them the decoder's"),
        ({"max_num_batched_tokens": 511, "max_num_seqs": 8}, "at least the positions of the encoder: got 511"),
    ],
)
def test_what_is_not_served_is_refused_in_one_line(keys: dict[str, object], rule: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(Deployment.model_validate({"model": "t5-small", "hardware": "h100x2", **keys}))
    assert rule in str(error.value)
    assert "\n" not in str(error.value)
