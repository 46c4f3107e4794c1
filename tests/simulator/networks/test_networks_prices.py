"""Prices of networks that are not language models: small stages worked by hand, and laws."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.bundles.bundle import Bundle, load_bundle
from calibration.operators.operators import Collective, Gemm
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.networks.files import load_network
from catalogs.networks.network import DerivedSize, JobSize, NeuralNetwork, Operator, SizedOperator, SizedStage, Stage
from catalogs.networks.polynomials import Polynomial
from catalogs.networks.shapes import AttentionShape, ConvolutionShape, ElementShape, GemmShape, Kind
from simulator.interconnect.collectives import Interconnect
from simulator.networks.attention_backends import attention_price, default_backend, load_backends
from simulator.networks.execution import Execution, Parallelism
from simulator.networks.factors import load_factors
from simulator.networks.job import (
    collective_s,
    measured_limit_w,
    price_job,
    price_stage,
)
from simulator.networks.launches import AUTOCAST_PRODUCT_KERNELS, AUTOCAST_TRAFFIC, launches, unrolled_edges
from simulator.networks.operator_price import WIDE_ATTENTION_SHARE, Pricing
from simulator.networks.ranks import (
    CONTEXT_BYTES,
    CONTEXT_BYTES_PARALLEL,
    job_memory_bytes,
    repeated_stages,
    sequence_shard,
)
from simulator.networks.written_attention import written_out

EAGER, COMPILED = Execution(mode="eager"), Execution(mode="compiled")
TENSORRT = Execution(mode="tensorrt")


def bundle(name: str = "h100") -> Bundle:
    return load_bundle(parse_hardware(name).accelerator)


def memory_op(kind: Kind, read: int, written: int, name: str = "op", times: int = 1) -> SizedOperator:
    operator = "aten.native_layer_norm" if kind == "normalisation" else f"aten.{kind}"
    return SizedOperator(name, kind, operator, ElementShape(written // 2), read, written, 0, None, times)


def product(m: int, n: int, k: int, times: int = 1) -> SizedOperator:
    return SizedOperator("linear", "gemm", "aten.mm", GemmShape(m, n, k), 2 * m * k, 2 * m * n, n * k, None, times)


def attention(queries: int, keys: int, heads: int = 24, masked: int = 0, times: int = 1) -> SizedOperator:
    shape = AttentionShape(1, heads, heads, queries, keys, 64, 64, 0, masked)
    moved = 2 * heads * 64 * 2
    return SizedOperator("attn", "attention", "aten.sdpa", shape, moved * keys, moved * queries // 2, 0, None, times)


def stage(*operators: SizedOperator, runs: int = 1) -> SizedStage:
    return SizedStage("denoiser", runs, operators, 1000, 2000)


def price(operators: SizedStage, execution: Execution, hardware: str = "h100x8") -> float:
    found = parse_hardware(hardware)
    return price_stage(operators, Pricing(bundle(found.accelerator.name), execution), Interconnect(found)).seconds


# ---- launches


def test_eager_launches_each_operator_with_its_own_bytes() -> None:
    chain = stage(memory_op("pointwise", 100, 100), memory_op("pointwise", 100, 100))
    assert [(found.bytes, found.kernels) for found in launches(chain, EAGER)] == [(200, 1), (200, 1)]


def test_a_fused_chain_reads_what_comes_from_outside_and_writes_its_last_output() -> None:
    """read 100, write 100; then read those 100 and 40 more, write 100: outside 100 + 40 + 100."""
    chain = stage(memory_op("pointwise", 100, 100), memory_op("pointwise", 140, 100))
    assert [found.bytes for found in launches(chain, COMPILED)] == [240]


def test_a_residual_that_joins_before_a_norm_is_written_for_the_next_block() -> None:
    """The sum of two inputs of 100 is normalised: read 200, write the norm 100 and the sum 100."""
    chain = stage(memory_op("pointwise", 200, 100), memory_op("normalisation", 100, 100))
    assert [(found.kind, found.bytes) for found in launches(chain, COMPILED)] == [("norm", 400)]


def test_tensorrt_fuses_what_follows_a_product_into_it() -> None:
    after = stage(product(8, 8, 8), memory_op("pointwise", 128, 128), memory_op("pointwise", 256, 128))
    kernels = launches(after, TENSORRT)
    assert [found.kernels for found in kernels] == [1, 0]
    assert kernels[1].bytes == 128  # the second input of the sum
    assert [found.kernels for found in launches(after, COMPILED)] == [1, 1]


def test_a_gated_activation_stays_a_kernel_of_its_own() -> None:
    """A product writes 8 x 16 elements; an activation of half of its columns is multiplied by the other half."""
    after = stage(product(8, 16, 8), memory_op("pointwise", 128, 128), memory_op("pointwise", 256, 128))
    assert [(found.kernels, found.bytes) for found in launches(after, TENSORRT)][1:] == [(1, 128 + 128 + 128)]


def test_chains_end_where_the_repeats_differ() -> None:
    chain = stage(memory_op("pointwise", 100, 100, times=2), memory_op("pointwise", 100, 100, times=3))
    assert [(found.times, found.bytes) for found in launches(chain, COMPILED)] == [(2, 200), (3, 200)]


def test_a_loop_that_begins_with_the_residual_of_the_layer_before_fuses_it_all_the_same() -> None:
    """(sum, product) x 3: the first sum stands alone, the other two follow a product and add their second input."""
    body = (memory_op("pointwise", 256, 128, times=3), product(8, 8, 8, times=3))
    found = launches(stage(*body), TENSORRT)
    assert [(k.kind, k.times, k.kernels) for k in found if k.kind == "stream"] == [("stream", 1, 1), ("stream", 2, 0)]
    unrolled = launches(stage(*[replace(op, times=1) for op in body] * 3), TENSORRT)
    assert sum(k.times * k.bytes for k in found) == sum(k.times * k.bytes for k in unrolled)
    assert sum(k.times * k.kernels for k in found) == sum(k.times * k.kernels for k in unrolled)


@given(st.lists(st.sampled_from(["pointwise", "gemm", "pooling"]), min_size=1, max_size=6), st.integers(1, 5))
def test_loops_written_otherwise_launch_the_same_operators(kinds: list[Kind], times: int) -> None:
    body = tuple(product(8, 8, 8) if k == "gemm" else memory_op(k, 100, 100, f"{k}{i}") for i, k in enumerate(kinds))
    written = unrolled_edges(tuple(replace(op, times=times) for op in body))
    for op in body:
        assert sum(o.times for o in written if o.name == op.name) == times * sum(o.name == op.name for o in body)


def test_quantisation_covers_the_denoiser_and_not_the_stages_beside_it() -> None:
    hardware = parse_hardware("h100x2")
    sixteen, eight = (price_job(network(), bundle(), hardware, Execution("tensorrt", p)) for p in ("bf16", "fp8"))
    assert eight.stages[0] == sixteen.stages[0]
    assert eight.peak_memory_bytes < sixteen.peak_memory_bytes


def test_a_single_stage_may_have_its_own_number_format() -> None:
    hardware = parse_hardware("h100x2")
    plain, wide = (
        price_job(network(), bundle(), hardware, replace(COMPILED, stage_precision=stated))
        for stated in ((), (("enc", "tf32"), ("denoiser", "tf32")))
    )
    assert wide.stages[0].seconds > plain.stages[0].seconds
    assert wide.stages[0].activation_bytes == 2 * plain.stages[0].activation_bytes
    assert wide.stages[1] == plain.stages[1]  # it is repeated
    with pytest.raises(InputError, match="unknown precision"):
        replace(COMPILED, stage_precision=(("enc", "tf33"),))


def test_a_product_in_8_bits_under_tensorrt_issues_as_many_instructions_as_half_the_depth_in_16() -> None:
    own = bundle()
    assert own.accelerator.flops_for("fp8") / own.accelerator.flops_for("bf16") == pytest.approx(2.0, rel=1e-3)
    half = float(own.cost(Gemm(32768.0, 4096.0, 2048.0, "bf16")).seconds)
    found = Pricing(own, Execution("tensorrt", "fp8")).product(GemmShape(32768, 4096, 4096), shared=True)
    assert found.seconds == pytest.approx(half, rel=0.01)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_torch_quantises_products_with_parameters_only(mode: str) -> None:
    """The scores of a window of four keys took fifteen times as long in fp8, by the tables of layers."""
    layer = product(16384, 4096, 4096)
    scores = replace(layer, shape=GemmShape(4, 4, 72, batch=65536), weights=0)
    for operator, is_equal in ((layer, False), (scores, True)):
        sixteen, eight = (price(stage(operator), Execution(mode, p)) for p in ("bf16", "fp8"))  # type: ignore[arg-type]
        assert (eight == sixteen) == is_equal


def test_images_that_fit_into_the_cache_move_faster_than_memory() -> None:
    own = bundle("l40s")
    pricing, unit = Pricing(own, TENSORRT), own.accelerator
    small, large = 0.5 * unit.cache_bytes, 4.0 * unit.cache_bytes
    assert pricing._images_s(small) < 0.5 * small / unit.memory_bandwidth_bytes_per_s
    assert pricing._images_s(large) > large / unit.memory_bandwidth_bytes_per_s


def test_a_board_with_the_tables_of_a_larger_one_keeps_its_own_power_limit() -> None:
    """H100 PCIe: 76 % of the arithmetic of H100 at 350 of its 700 W."""
    assert measured_limit_w(bundle()) == bundle().accelerator.tdp_w
    pcie = bundle("h100-pcie")
    assert pcie.accelerator.tdp_w < measured_limit_w(pcie) < bundle().accelerator.tdp_w
    large = stage(product(8192, 8192, 8192, times=20))
    unlimited = float(pcie.cost(Gemm(8192.0, 8192.0, 8192.0, "bf16")).seconds) * 20
    assert price(large, COMPILED, "h100-pcie") > 1.05 * unlimited


def test_autocast_runs_norms_in_fp32_in_eager_mode_only() -> None:
    norm = stage(memory_op("normalisation", 100, 100))
    assert launches(norm, replace(EAGER, autocast=True))[0].bytes == 200 * AUTOCAST_TRAFFIC
    assert launches(norm, replace(COMPILED, autocast=True))[0].bytes == 200


def test_autocast_casts_the_weight_and_the_bias_of_each_product_in_eager_mode_only() -> None:
    linear = stage(product(8, 8, 8))
    assert [found.kernels for found in launches(linear, replace(EAGER, autocast=True))] == [AUTOCAST_PRODUCT_KERNELS]
    assert [found.kernels for found in launches(linear, EAGER)] == [1]
    assert [found.kernels for found in launches(linear, replace(COMPILED, autocast=True))] == [1]


# ---- attention that is written out


def pairs(queries: int, keys: int, masked: int = 0, unfused: int = 1, heads: int = 1) -> SizedOperator:
    """Attention of heads of 64 channels in 16 bits, with a mask of one element for each score."""
    shape = AttentionShape(1, heads, heads, queries, keys, 64, 64, 0, masked, unfused)
    read = heads * (2 * 64 * (queries + 2 * keys) + 2 * masked * queries * keys)
    return SizedOperator("attn", "attention", "sdpa", shape, read, heads * 2 * 64 * queries, 0, None, 1)


def test_inputs_that_fit_no_fused_kernel_are_attended_to_in_fp32_by_torch() -> None:
    """10 queries of 20 keys: 200 scores of 4 bytes and a mask of 2 bytes each, in the order of torch's kernels."""
    found = launches(stage(pairs(10, 20, masked=1)), EAGER)
    operators = [part.operator for part in found if part.operator]
    expected = ["_to_copy"] * 3 + ["mul"] * 2 + ["bmm", "add", "_softmax", "eq", "all", "where", "bmm", "_to_copy"]
    assert [op.operator for op in operators] == expected
    scores = {op.operator: (op.read_bytes, op.written_bytes) for op in operators}
    assert scores["add"] == (800 + 400, 800)
    assert scores["_softmax"] == (800, 800)
    assert scores["eq"] == (800, 200)
    assert scores["where"] == (800 + 10, 800)


def test_a_compiler_leaves_one_kernel_between_the_two_products() -> None:
    found = launches(stage(pairs(10, 20, masked=1)), COMPILED)
    middle = [part for part in found if part.kind == "norm"]
    assert [part.kind for part in found].count("gemm") == 2
    assert [part.bytes for part in middle] == [800 + 400 + 800]


def test_an_attention_of_the_module_itself_keeps_its_format() -> None:
    parts = written_out(pairs(10, 20, unfused=0), Execution(mode="eager", attention_backend="eager"))
    assert [part.operator for part in parts] == ["mul", "bmm", "_softmax", "bmm"]
    assert (parts[2].read_bytes, parts[2].written_bytes, parts[2].dtype) == (400, 400, None)


@pytest.mark.parametrize("backend", ["efficient", "fa2", "cudnn"])
def test_a_stated_kernel_fuses_all_the_same_and_so_does_tensorrt(backend: str) -> None:
    op = pairs(10, 20)
    assert written_out(op, Execution(attention_backend=backend)) == (op,)
    assert written_out(op, TENSORRT) == (op,)


@given(st.integers(1024, 4096), st.integers(1024, 4096), st.booleans())
@settings(max_examples=20)
def test_attention_written_out_has_the_flops_of_the_kernel_and_takes_longer(q: int, k: int, masked: bool) -> None:
    op = pairs(q, k, int(masked), heads=16)
    parts = written_out(op, EAGER)
    assert sum(part.flops for part in parts) == op.flops
    fused = replace(op, shape=replace(op.shape, unfused=0))  # type: ignore[type-var]
    assert price(stage(op), EAGER) > price(stage(fused), EAGER)


def test_scores_count_in_the_memory_of_a_stage() -> None:
    """1000 x 1000 scores of 4 bytes, before and after the softmax."""
    found = parse_hardware("h100")
    pricing = Pricing(bundle(), EAGER)
    assert price_stage(stage(pairs(1000, 1000)), pricing, Interconnect(found)).activation_bytes == 8e6
    fused = replace(pricing, execution=replace(EAGER, attention_backend="fa2"))
    assert price_stage(stage(pairs(1000, 1000)), fused, Interconnect(found)).activation_bytes == 2000


# ---- prices


def test_a_product_costs_what_its_table_says() -> None:
    own = bundle()
    expected = float(own.cost(Gemm(4096.0, 4096.0, 4096.0, "bf16")).seconds)
    assert price(stage(product(4096, 4096, 4096, times=3)), COMPILED) == pytest.approx(3 * expected)


def test_a_convolution_of_one_pixel_windows_costs_its_product_over_the_fitted_share() -> None:
    shape = ConvolutionShape(64, 512, 512, (1, 1), (28, 28), (28, 28), (1, 1), (1, 1))
    moved = 2 * 64 * 28 * 28 * 512
    op = SizedOperator("conv", "convolution", "aten.convolution", shape, moved, moved, 512 * 512, None, 1)
    pricing = Pricing(bundle(), COMPILED)
    own = float(bundle().cost(Gemm(64 * 784.0, 512.0, 512.0, "bf16")).seconds)
    found = pricing.convolution(shape, op).seconds
    bandwidth = parse_hardware("h100").accelerator.memory_bandwidth_bytes_per_s
    assert found >= (2 * moved + 512 * 512 * 2) / bandwidth
    assert found == pytest.approx(own / load_factors().convolution_share["compiled"], rel=0.2)
    assert Pricing(bundle(), EAGER).convolution(shape, op).seconds > found  # transposes


def test_few_output_channels_take_as_long_as_half_of_them_because_the_pixels_are_read_once_for_each_tap() -> None:
    def seconds(channels: int, kernel: int) -> float:
        side, taps = 64, (kernel, kernel, kernel)
        image, each = (side, side, side), (1, 1, 1)
        shape = ConvolutionShape(1, 32, channels, taps, image, image, each, each)
        read, written = 2 * 32 * side**3, 2 * channels * side**3
        op = SizedOperator("conv", "convolution", "convolution", shape, read, written, 32 * channels, None, 1)
        return Pricing(bundle(), TENSORRT).convolution(shape, op).seconds

    assert seconds(32, 3) == pytest.approx(seconds(16, 3))
    assert seconds(32, 5) == pytest.approx(seconds(32, 3) * 125 / 27)
    assert seconds(256, 3) > 1.5 * seconds(32, 3)  # arithmetic


def test_a_depthwise_convolution_runs_on_the_vector_units() -> None:
    shape = ConvolutionShape(64, 512, 512, (7, 7), (28, 28), (28, 28), (1, 1), (1, 1), 512)
    op = SizedOperator("conv", "convolution", "aten.convolution", shape, 1000, 1000, 512 * 49, None, 1)
    peak = parse_hardware("h100").accelerator.flops_for("fp32") * load_factors().depthwise_share
    assert Pricing(bundle(), COMPILED).convolution(shape, op).seconds == pytest.approx(shape.flops / peak)


@pytest.mark.parametrize(("precision", "dtype", "share"), [("fp32", "fp32", 1.0), ("tf32", "bf16", 0.5)])
def test_attention_in_32_bits_has_the_rate_of_its_number_format(precision: str, dtype: str, share: float) -> None:
    shape = AttentionShape(1, 24, 24, 4096, 4096, 64, 64)
    peak = share * parse_hardware("h100").accelerator.flops_for(dtype)
    found = Pricing(bundle(), Execution(precision=precision)).attention(shape)
    assert found.seconds == pytest.approx(shape.flops / peak / WIDE_ATTENTION_SHARE)


def test_host_time_counts_where_kernels_are_shorter() -> None:
    tiny = stage(*(memory_op("pointwise", 100, 100, times=1) for _ in range(1000)))
    assert price(tiny, EAGER) == pytest.approx(1000 * load_factors().host_launch_s["eager"], rel=0.01)


@pytest.mark.parametrize("name", ["h100", "l20"])
def test_shares_of_certainty_add_up(name: str) -> None:
    """The tables of l20 are those of l40s."""
    found = price_stage(
        stage(product(4096, 4096, 4096), attention(4096, 4096)),
        Pricing(bundle(name), COMPILED),
        Interconnect(parse_hardware(name)),
    )
    assert found.measured + found.interpolated + found.borrowed + found.roofline == pytest.approx(1.0)
    assert (found.measured > 0, found.borrowed > 0) == (name == "h100", name == "l20")


# ---- attention backends


def test_the_default_backend_is_the_best_measured_one() -> None:
    found = {name: default_backend(bundle(name)) for name in ("h100", "b200", "l40s", "rtxpro6000", "a100-80gb")}
    assert found == {"h100": "fa3", "b200": "fa4", "l40s": "fa2", "rtxpro6000": "fa2", "a100-80gb": None}


def test_flash_attention_2_reaches_its_published_share_of_3_on_hopper_and_states_it() -> None:
    shape = attention(16384, 16384).shape
    assert isinstance(shape, AttentionShape)
    third, second = (attention_price(shape, name, bundle()) for name in ("fa3", "fa2"))
    assert second.seconds == pytest.approx(third.seconds * 648 / 370, rel=0.01)  # FlashAttention-3, arXiv 2407.08608
    assert 400e12 < shape.flops / third.seconds < 650e12
    assert third.notice is None
    assert second.notice is not None


def test_on_h20_flash_attention_2_is_bound_by_its_own_instructions() -> None:
    """H20 has two thirds of the vector units of H200 and 15 % of its matrix units, of which mma reaches 62.9 %."""
    shape = attention(65536, 65536).shape
    assert isinstance(shape, AttentionShape)
    found = attention_price(shape, "fa2", bundle("h20"))
    assert shape.flops / found.seconds == pytest.approx(0.629 * 148e12, rel=0.02)


def test_an_accelerator_without_the_table_takes_its_causal_one_and_says_so() -> None:
    shape = attention(16384, 16384).shape
    assert isinstance(shape, AttentionShape)
    found = attention_price(shape, "fa2", bundle("a100-80gb"))
    assert found.notice is not None
    assert "causal table" in found.notice
    assert 100e12 < shape.flops / found.seconds < 312e12


def test_an_unknown_pair_is_a_roofline_with_a_notice_and_an_unknown_backend_an_error() -> None:
    shape = attention(4096, 4096).shape
    assert isinstance(shape, AttentionShape)
    found = attention_price(shape, "fa4", bundle("h100"))
    assert found.notice is not None
    assert "not measured" in found.notice
    with pytest.raises(InputError, match=r"unknown attention backend.*fa3"):
        attention_price(shape, "fa33", bundle())


def test_a_rate_that_no_source_states_is_announced_as_an_assumption() -> None:
    shape = attention(16384, 16384).shape
    assert isinstance(shape, AttentionShape)
    assumed, published = (attention_price(shape, "cudnn", bundle(name)).notice or "" for name in ("b200", "h100"))
    assert "an assumed rate" in assumed
    assert "a published rate" in published


def test_every_published_rate_has_a_source() -> None:
    entries = [entry for found in load_backends().values() for entry in found]
    assert all(entry.source for entry in entries if entry.relative_speed != 1.0)


# ---- several accelerators, power limits, jobs


def test_ulysses_divides_heads_and_tokens_and_refuses_uneven_heads() -> None:
    op = sequence_shard(attention(4096, 4096), Parallelism(ulysses=4))
    assert isinstance(op.shape, AttentionShape)
    assert (op.shape.heads, op.shape.queries, op.shape.keys) == (6, 4096, 4096)
    with pytest.raises(InputError, match="heads"):
        sequence_shard(attention(4096, 4096), Parallelism(ulysses=5))


def test_a_ring_computes_all_pairs_in_as_many_turns() -> None:
    whole = attention(4096, 4096)
    op = sequence_shard(whole, Parallelism(ring=4))
    assert op.times == 4
    assert op.flops * 4 == whole.flops


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 2, 3, 4, 6, 8]), st.sampled_from([1024, 8192]))
def test_work_of_all_ranks_is_at_least_the_whole(ranks: int, tokens: int) -> None:
    for op in (attention(tokens, tokens), product(tokens, 512, 512)):
        assert ranks * sequence_shard(op, Parallelism(ulysses=ranks)).flops >= op.flops


def test_the_exchange_of_ulysses_is_four_all_to_alls_by_hand() -> None:
    own, links = stage(attention(8192, 8192), runs=10), Interconnect(parse_hardware("h100x4"))
    execution = replace(COMPILED, parallelism=Parallelism(ulysses=4))
    found = price_stage(own, Pricing(bundle(), execution), links)
    sent = 24 * 64 * 2 * 8192 / 4  # one tensor of this rank's tokens
    expected = 4 * float(links.collective_s(Collective("all_to_all", sent, 4), links.span(4)))
    assert found.communication_s == pytest.approx(expected)


def test_two_ranks_share_the_passes_of_guidance() -> None:
    own, links = stage(attention(8192, 8192), runs=100), Interconnect(parse_hardware("h100x2"))
    one = price_stage(own, Pricing(bundle(), COMPILED), links)
    two = price_stage(own, Pricing(bundle(), replace(COMPILED, parallelism=Parallelism(guidance=2))), links)
    assert (one.runs, two.runs) == (100, 50)
    assert two.total_s == pytest.approx(one.total_s / 2, rel=0.01)


def test_a_power_limit_makes_a_stage_longer_and_its_power_fits() -> None:
    own = stage(product(8192, 8192, 8192, times=20))
    links = Interconnect(parse_hardware("rtxpro6000"))
    full, capped = (
        price_stage(own, Pricing(bundle("rtxpro6000"), replace(COMPILED, power_limit_w=limit)), links)
        for limit in (None, 300.0)
    )
    assert capped.seconds > full.seconds
    assert capped.joules < full.joules
    assert price_stage(
        own, Pricing(bundle("rtxpro6000"), replace(COMPILED, power_limit_w=600.0)), links
    ).seconds == pytest.approx(full.seconds)


def network() -> NeuralNetwork:
    tokens = Polynomial.name("tokens")
    item = Polynomial.name("itemsize")
    one = Polynomial.of(1)
    dims = {"m": tokens, "n": Polynomial.of(512), "k": Polynomial.of(512), "batch": one}
    moved = tokens * 512 * item
    linear = Operator("linear", "gemm", "aten.mm", dims, moved, moved, 512 * 512)
    stages = (
        Stage("encoder", one, (linear,), 10, "bf16", (moved,)),
        Stage("denoiser", Polynomial.name("steps"), (linear,), 20, "bf16", (moved * 2,)),
    )
    return NeuralNetwork("toy", "test", (JobSize("tokens", 1024), JobSize("steps", 5)), stages)


@pytest.mark.parametrize("name", ["wan2.1-t2v-14b", "cogvideox-2b", "bge-small-en-v1.5"])
@pytest.mark.parametrize(
    "execution",
    [COMPILED, EAGER, TENSORRT, Execution("eager", "fp8", offload=True), Execution("eager", attention_backend="math")],
)
def test_the_memory_of_a_job_needs_no_price(name: str, execution: Execution) -> None:
    found, hardware = load_network(name), parse_hardware("h100x2")
    assert job_memory_bytes(found, execution) == price_job(found, bundle(), hardware, execution).peak_memory_bytes
    if repeated_stages(found):
        split = replace(execution, parallelism=Parallelism(ulysses=2, shard_weights=True))
        assert job_memory_bytes(found, split) == price_job(found, bundle(), hardware, split).peak_memory_bytes


def test_a_job_adds_its_stages_and_its_memory() -> None:
    hardware = parse_hardware("h100x2")
    found = price_job(network(), bundle(), hardware, COMPILED)
    single = float(bundle().cost(Gemm(1024.0, 512.0, 512.0, "bf16")).seconds)
    assert [s.runs for s in found.stages] == [1, 5]
    assert found.seconds == pytest.approx(6 * max(single, load_factors().host_launch_s["compiled"]))
    assert found.peak_memory_bytes == 30 * 2 + 2 * 1024 * 512 * 2 + CONTEXT_BYTES
    kept = price_job(network(), bundle(), hardware, replace(COMPILED, offload=True))
    assert kept.peak_memory_bytes == 20 * 2 + 2 * 1024 * 512 * 2 + CONTEXT_BYTES
    with pytest.raises(InputError, match="as many ranks"):
        price_job(network(), bundle(), hardware, replace(COMPILED, parallelism=Parallelism(ulysses=4)))


def test_weights_kept_in_a_wider_format_need_its_bytes_and_a_cast_in_every_run() -> None:
    """Of the denoiser's 20 weights: 4 bytes each; a run reads them in fp32 and writes them in bf16."""
    hardware = parse_hardware("h100x2")
    plain = price_job(network(), bundle(), hardware, COMPILED)
    wide = price_job(network(), bundle(), hardware, replace(COMPILED, weight_precision="fp32"))
    assert wide.peak_memory_bytes - plain.peak_memory_bytes == 20 * (4 - 2)
    cast = 20 * (4 + 2) / bundle().accelerator.memory_bandwidth_bytes_per_s
    assert wide.stages[1].device_s - plain.stages[1].device_s == pytest.approx(cast, rel=1e-3)
    assert wide.stages[0] == plain.stages[0]


def test_sharding_divides_the_weights_of_all_stages() -> None:
    hardware = parse_hardware("h100x2")
    split = replace(COMPILED, parallelism=Parallelism(ring=2, shard_weights=True))
    found = price_job(network(), bundle(), hardware, split)
    activations = max(1024 * 512 * 2, 2 * 1024 * 512 * 2 / 2)  # the encoder runs whole on each rank
    assert found.peak_memory_bytes == 30 * 2 / 2 + activations + CONTEXT_BYTES_PARALLEL


def test_a_split_that_would_change_nothing_is_refused() -> None:
    """A network in one pass, and guidance in a job that has none: both would silently leave ranks without work."""
    hardware, two = parse_hardware("h100x2"), replace(COMPILED, parallelism=Parallelism(ulysses=2))
    once = replace(network(), stages=network().stages[:1])
    with pytest.raises(InputError, match="runs in one pass"):
        price_job(once, bundle(), hardware, two)
    with pytest.raises(InputError, match="guidance"):
        price_job(network(), bundle(), hardware, replace(COMPILED, parallelism=Parallelism(guidance=2)))


def test_only_stages_of_the_sampler_are_split_however_often_others_run() -> None:
    decoder = replace(network().stages[0], name="decoder", runs=Polynomial.of(100))
    found = replace(network(), stages=(*network().stages, decoder))
    assert repeated_stages(found) == {"denoiser"}


def test_an_expert_that_takes_a_part_of_the_steps_is_a_stage_of_the_sampler() -> None:
    early = DerivedSize("early", "floor", Polynomial.name("steps"), Polynomial.of(2))
    expert = replace(network().stages[1], name="expert", runs=Polynomial.name("early"))
    found = replace(network(), stages=(*network().stages, expert), derived=(early,))
    assert repeated_stages(found) == {"denoiser", "expert"}


def test_windows_shorten_self_attention_by_their_share_and_leave_the_rest() -> None:
    own = stage(attention(65536, 65536, times=10), attention(65536, 512), product(4096, 4096, 4096))
    links = Interconnect(parse_hardware("h100"))
    dense, half = (
        price_stage(own, Pricing(bundle(), replace(COMPILED, attended=share)), links) for share in (1.0, 0.5)
    )
    whole = price_stage(stage(attention(65536, 65536, times=10)), Pricing(bundle(), COMPILED), links)
    assert dense.device_s - half.device_s == pytest.approx(whole.device_s / 2, rel=0.05)


def test_a_collective_is_no_faster_than_the_host_that_routes_it() -> None:
    """RTX PRO 6000: each of two ranks sends half of 64 MB at 15.92 GB/s, and two hops of 6.6 us."""
    links = Interconnect(parse_hardware("rtxpro6000x2"))
    assert collective_s(Collective("all_to_all", 64e6, 2), links) == pytest.approx(32e6 / 15.92e9 + 2 * 6.6e-6)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Execution(weight_precision="bf8"), "unknown precision"),
        (lambda: Execution(attended=0.0), "attended share"),
        (lambda: Execution(mode="jit"), "unknown execution mode"),  # type: ignore[arg-type]
        (lambda: Execution(precision="bf8"), "unknown precision"),
        (lambda: Parallelism(guidance=3), "two passes"),
        (lambda: Parallelism(ring=0), "at least 1"),
    ],
)
def test_bad_executions_are_one_line(make, rule: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=rule):
        make()
