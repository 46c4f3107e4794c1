"""Encoder-decoder models: memory, operators and timelines worked out by hand, laws, refusals, planted faults."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.operators.flops_and_bytes import bytes_moved, flops
from catalogs.deployments.resolve import resolve, resolve_pools
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.core.batch import BatchShape
from simulator.core.invariants import InvariantViolation
from simulator.core.outcomes import TOO_LARGE
from simulator.costs.compile import compile_step_cost
from simulator.layers.encoder import cross_cache_bytes, cross_decode_calls, encoder_calls
from simulator.layers.operator_call import OperatorCall
from simulator.layers.shard import Shard
from simulator.layers.step import StepCalls, step_calls
from simulator.memory.plan import size_memory
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1_encoder_decoder import EncoderDecoderV1
from tests.simulator.plants import ToySource, resolved
from tests.simulator.worlds import Linear, requests, rules

BOTH = pytest.mark.parametrize("fast", [True, False])
HIDDEN, LAYERS, POSITIONS = 1280, 32, 1500


def whisper(**keys: object) -> ResolvedDeployment:
    limits = {"max_num_batched_tokens": 3000, "max_model_len": 448}
    return resolved("whisper-large-v3", **(limits | keys))  # type: ignore[arg-type]


def encoding(**changes: object) -> EngineRules:
    """Encoders of 8 positions, two blocks; a budget of two of them."""
    values = {"encoder_tokens": 8, "max_num_batched_tokens": 16, "chunked_prefill": False, "prefix_caching": False}
    return rules(**(values | changes))


def simulate(engine: EngineRules, work: object, fast: bool = True) -> Run:
    return run_rules(engine, Linear(), work, 1, RunOptions(fast_forward=fast, check_invariants=True))  # type: ignore[arg-type]


def total_flops(lines: list[OperatorCall]) -> float:
    return float(sum(line.count * flops(line.op) for line in lines if line.kind != "elementwise"))


# ---- memory


def test_a_sequence_of_whisper_by_hand() -> None:
    """1500 positions x 32 layers x 2 x 20 heads x 64 x 2 bytes: 245.76 MB, whatever is said in the 30 seconds."""
    assert cross_cache_bytes(Shard.of(whisper())) == 1500 * 32 * 2 * 20 * 64 * 2 == 245_760_000
    assert cross_cache_bytes(Shard.of(whisper(kv_dtype="fp8"))) == 122_880_000
    plan = size_memory(whisper())
    assert plan.cross_blocks == 94  # of 16 positions
    assert plan.kv_blocks == int(plan.kv_bytes / (16 * 32 * 2 * 20 * 64 * 2))
    assert "94 of them in every sequence" in plan.equation


def test_all_weights_are_loaded() -> None:
    deployed = whisper()
    assert size_memory(deployed).weights_bytes == pytest.approx(2 * deployed.model.n_params, rel=1e-12)
    halves = size_memory(whisper(tensor_parallel=2, hardware="h100x2")).weights_bytes
    assert deployed.model.n_params < halves < 1.001 * deployed.model.n_params


def test_an_engine_starts_with_room_for_a_budget_of_encoder_output() -> None:
    block = 16 * 163_840
    enough = size_memory(whisper(kv_blocks=3008 // 16 + 448 // 16))
    assert (enough.kv_bytes, enough.fits) == (216 * block, True)
    assert not size_memory(whisper(kv_blocks=3008 // 16 + 448 // 16 - 1)).fits


# ---- operators


def test_an_encoder_pass_by_hand() -> None:
    layer = 2 * POSITIONS * (4 * HIDDEN**2 + 2 * HIDDEN * 4 * HIDDEN) + 4 * POSITIONS**2 * HIDDEN
    keys_and_values = 2 * POSITIONS * 2 * HIDDEN**2
    for n in (1, 3):
        found = total_flops(list(encoder_calls(Shard.of(whisper()), np.array(float(n)), np.array(4.0))))
        assert found == pytest.approx(n * LAYERS * (layer + keys_and_values), rel=1e-12)


def test_a_decode_reads_the_encoder_output_of_its_sequence() -> None:
    deployed = whisper()
    shard, unit = Shard.of(deployed), deployed.hardware.accelerator
    group = shard.model.groups[0]
    for n in (1, 64):
        (line,) = cross_decode_calls(shard, group, np.array(float(n)), np.array(4.0), np.array(4.0))
        queries = 2 * n * HIDDEN * 2
        assert line.count * (float(bytes_moved(line.op, unit)) - queries) == n * 245_760_000


def test_a_decoder_token_pays_for_its_query_and_its_output() -> None:
    shard = Shard.of(whisper())
    crossing = [line for line in StepCalls(shard).rank(7) if line.name.startswith("cross_")]
    assert total_flops(crossing) == LAYERS * 2 * 7 * 2 * HIDDEN**2
    assert not [line for line in StepCalls(Shard.of(resolved())).rank(7) if line.name.startswith("cross_")]


def test_ranks_share_an_encoder() -> None:
    one, two = Shard.of(whisper()), Shard.of(whisper(tensor_parallel=2, hardware="h100x2"))
    work = [
        total_flops([x for x in encoder_calls(s, np.array(2.0), np.array(4.0)) if x.kind != "collective"])
        for s in (one, two)
    ]
    assert work[1] == pytest.approx(work[0] / 2, rel=1e-12)
    assert (
        sum(line.count for line in encoder_calls(two, np.array(2.0), np.array(4.0)) if line.kind == "collective")
        == 2 * LAYERS
    )


@pytest.mark.parametrize("joins", [True, False])
def test_the_price_of_a_step_is_that_of_its_operators(joins: bool) -> None:
    """The tables a run reads against pricing each operator of one step, at counts the tables hold exactly."""
    deployed = whisper()
    source = ToySource(deployed.hardware.accelerator, joins)
    cost, shard = compile_step_cost(deployed, source), Shard.of(deployed)
    for shape in (
        BatchShape(decodes=8, decode_context_sum=800, decode_context_max=100, logits=8),
        BatchShape(prefill_tokens=8, prefill_pairs=16.0, prefill_chunks=2, logits=2),
    ):
        parts = sum(line.count * float(source.cost(line.op).seconds) for line in step_calls(shard, shape))
        least = cost.tables.launch_s if shape.prefill_chunks else 0.0
        assert cost._batch_s(shape) == pytest.approx(max(parts, least), rel=0.02)


def test_prompts_leave_the_graphs_and_decodes_do_not() -> None:
    deployed = whisper()
    cost = compile_step_cost(deployed, ToySource(deployed.hardware.accelerator))
    prompt = BatchShape(prefill_tokens=4, prefill_pairs=8.0, prefill_chunks=1, logits=1)
    decode = BatchShape(decodes=1, decode_context_sum=4, decode_context_max=4, logits=1)
    assert cost._batch_s(prompt) >= cost.tables.launch_s > cost._batch_s(decode)


# ---- schedule


def begun(run: Run) -> list[int]:
    return [int(n) for n in run.replicas[0].logs[0].prefill_chunks if n]


@BOTH
def test_a_step_begins_as_many_encoders_as_its_budget_holds(fast: bool) -> None:
    """Five at once, two encoders a step of one second: first tokens after 1, 1, 2, 2 and 3 s."""
    run = simulate(encoding(), requests([0.0] * 5, [2] * 5, [4] * 5), fast)
    assert run.first_token_s.tolist() == [1.0, 1.0, 2.0, 2.0, 3.0]
    assert begun(run) == [2, 2, 1]


@BOTH
def test_with_steps_ahead_what_the_last_one_began_still_counts(fast: bool) -> None:
    """Room is given back when a step has run, after the next was scheduled: two, none, two, none, one."""
    run = simulate(encoding(lag=1), requests([0.0] * 5, [2] * 5, [9] * 5), fast)
    assert begun(run) == [2, 2, 1]
    first = np.unique(run.first_token_s)
    assert np.diff(first).tolist() == [2.0, 2.0]


@BOTH
def test_every_request_holds_its_encoder_output_to_the_end(fast: bool) -> None:
    """6 blocks; each request takes 2 for its input and 1 for 4 tokens: two run, the third waits for a whole one."""
    run = simulate(encoding(kv_blocks=6), requests([0.0] * 3, [2] * 3, [3] * 3), fast)
    assert run.first_token_s.tolist() == [1.0, 1.0, 4.0]
    assert run.replicas[0].kv_peak_fraction == 1.0
    roomy = simulate(encoding(kv_blocks=9), requests([0.0] * 3, [2] * 3, [3] * 3), fast)
    assert roomy.first_token_s.tolist() == [1.0, 1.0, 2.0]


def test_what_can_never_fit_beside_its_encoder_output_is_refused() -> None:
    run = simulate(encoding(kv_blocks=4), requests([0.0] * 2, [2, 2], [7, 8]))
    assert run.completed.tolist() == [True, False]
    assert run.status[1] == TOO_LARGE


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 16), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(8, 40),
    st.integers(0, 1),
    st.integers(8, 40),
)
def test_laws_hold_and_fast_forward_changes_nothing(
    work: list[tuple[int, int, int]], kv_blocks: int, lag: int, budget: int
) -> None:
    engine = encoding(kv_blocks=kv_blocks, lag=lag, max_num_batched_tokens=max(budget, 16))
    sizes = sorted(work)
    asked = requests([float(t) for t, _, _ in sizes], [i for _, i, _ in sizes], [o for _, _, o in sizes])
    slow, fast = simulate(engine, asked, False), simulate(engine, asked)
    assert slow.status.tolist() == fast.status.tolist()
    assert np.allclose(slow.last_token_s, fast.last_token_s, rtol=0, atol=1e-9, equal_nan=True)
    assert max(begun(slow), default=0) * 8 <= engine.max_num_batched_tokens


def test_blocks_that_are_not_kept_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    take = EncoderDecoderV1._admit_head

    def forgets(self: EncoderDecoderV1, batch: object, request: object, budget: int) -> int:
        tokens = take(self, batch, request, budget)  # type: ignore[arg-type]
        request.spare_blocks = 0  # type: ignore[attr-defined]
        return tokens

    monkeypatch.setattr(EncoderDecoderV1, "_admit_head", forgets)
    with pytest.raises(InvariantViolation):
        simulate(encoding(), requests([0.0], [2], [4]))


# ---- what is refused, and the whole of it


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"engine": "sglang"}, "an encoder-decoder model is not simulated for sglang"),
        ({"prefix_caching": True}, "no engine caches prefixes"),
        ({"max_num_batched_tokens": 1499}, "at least the 1500 positions"),
        ({"max_model_len": 449}, "exceeds the 448 positions"),
        ({"pipeline_parallel": 2}, "together with pipeline_parallel: got 'pipeline_parallel: 2'"),
        ({"data_parallel": 2}, "got 'data_parallel: 2'; nearest valid choice: data_parallel: 1"),
        ({"kv_offload": {"host_gib": 8}}, "got 'kv_offload'"),
        ({"lora": {"adapters": 2}}, "got 'lora'"),
    ],
)
def test_what_is_not_simulated_is_refused(keys: dict[str, object], rule: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(Deployment.model_validate({"model": "whisper-large-v3", "hardware": "h100x2", **keys}))
    assert rule in str(error.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"disaggregation": {"prefill_replicas": 1, "decode_replicas": 1}},
        {"pools": [{"role": "prefill"}, {"role": "decode"}]},
    ],
)
def test_prompts_and_outputs_stay_together(keys: dict[str, object]) -> None:
    written = Deployment.model_validate({"model": "whisper-large-v3", "hardware": "h100x2", **keys})
    with pytest.raises(InputError, match="no KV connector"):
        resolve_pools(written)


def test_a_small_batch_still_holds_an_encoder() -> None:
    deployed = resolve(Deployment(model="whisper-large-v3", hardware="h100", max_num_seqs=2))
    assert deployed.limits.max_num_batched_tokens == 1500
    assert (deployed.engine.chunked_prefill, deployed.limits.prefix_caching) == (False, False)


def test_thirty_seconds_of_sound_end_to_end() -> None:
    """One request: API server and host apart, its first token takes no less than the encoder's arithmetic."""
    from simulator.cluster.simulate import simulate as run

    plant = compile_deployment(Deployment(model="whisper-large-v3", hardware="h100", max_num_seqs=16))
    done = run(plant, requests([0.0], [4], [100]))
    peak = plant.resolved.hardware.accelerator.flops_for("bf16")
    least_s = total_flops(list(encoder_calls(Shard.of(plant.resolved), np.array(1.0), np.array(4.0)))) / peak
    assert least_s < done.first_token_s[0] < 0.2
    assert done.replicas[0].kv_peak_fraction == pytest.approx((94 + 7) / plant.memory.kv_blocks)


def test_ranks_share_an_encoder_output() -> None:
    one, two = (Shard.of(whisper(tensor_parallel=tp, hardware=f"h100x{tp}")) for tp in (1, 2))
    assert (cross_cache_bytes(one), cross_cache_bytes(two)) == (245_760_000, 122_880_000)
    assert cross_cache_bytes(Shard.of(resolved())) == 0.0
