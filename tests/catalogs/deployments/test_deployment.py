"""deployment.yaml: strict reading, defaults filled in, layouts checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.deployments.resolution.parallelism import check_tensor_parallel, tensor_parallel_choices
from catalogs.deployments.resolve import resolve, resolve_pools
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment, load_deployment
from catalogs.engines.files import load_engine
from catalogs.errors import InputError
from catalogs.models.catalog import load_model

DENSE, MOE = "llama3.1-8b", "openai/gpt-oss-120b"


def made(**changes: Any) -> ResolvedDeployment:
    return resolve(Deployment(**({"model": DENSE, "hardware": "h100x8"} | changes)))


def refused(**changes: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        made(**changes)
    assert "\n" not in str(caught.value)
    return caught.value


def read(tmp_path: Path, text: str) -> Deployment:
    path = tmp_path / "deployment.yaml"
    path.write_text(text)
    return load_deployment(path)


def test_yaml_and_json_read_alike(tmp_path: Path) -> None:
    data = {"model": DENSE, "hardware": "h100x8", "tensor_parallel": 2, "prefix_caching": None}
    as_yaml = read(tmp_path, f"model: {DENSE}\nhardware: h100x8\ntensor_parallel: 2\nprefix_caching: null\n")
    assert read(tmp_path, json.dumps(data)) == as_yaml == Deployment(**data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: m\nhardware: h100\ntensor_paralel: 2\n", "nearest valid choice: tensor_parallel"),
        ("model: m\nhardware: h100\ntp: 2\n", "nearest valid choice: tensor_parallel"),  # by its initials
        ("model: m\nhardware: h100\nqq: 2\n", "nearest valid choice: model, engine, hardware, "),
        ("schema_version: 3\nrequest: {}\nfeasible: true\n", "an answer of plan, not a deployment"),
        ("model: m\n", "'hardware' is missing"),
        ("model: m\nhardware: h100\nreplicas: 0\n", "replicas"),
        ("model: m\nhardware: h100\nreplicas: two\n", "replicas"),
        ("model: m\nhardware: h100\nreplicas: 1.5\n", "replicas"),
        ("model: m\nhardware: h100\nexpert_parallel: 1\n", "expert_parallel"),
        ("model: m\nhardware: h100\ngpu_memory_utilization: 1.5\n", "gpu_memory_utilization"),
        ("model: m\nmodel: n\nhardware: h100\n", "written twice"),
        ("model: [m\n", "not valid YAML"),
        ("- a\n", "key: value"),
        ("", "key: value"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_deployment(tmp_path / "none.yaml")
    (tmp_path / "chosen.yaml").touch()
    with pytest.raises(InputError, match=r"No such file.*; nearest valid choice: .*/chosen\.yaml$"):
        load_deployment(tmp_path / "choosen.yaml")


@pytest.mark.parametrize(
    ("engine", "model", "cached"),
    [
        ("vllm-0.11", "nemotron-nano-12b-v2", False),  # state-space layers
        ("vllm-0.15", "nemotron-nano-12b-v2", False),
        ("vllm-0.17", "nemotron-nano-12b-v2", False),
        ("vllm", "nemotron-nano-12b-v2", True),
        ("vllm-0.11", DENSE, True),
        ("vllm-0.11", "gemma-3-27b", True),  # windows are attention
    ],
)
def test_old_engines_cache_no_prefixes_of_models_with_states_unless_told_to(
    engine: str, model: str, cached: bool
) -> None:
    assert made(engine=engine, model=model).limits.prefix_caching is cached
    assert made(engine=engine, model=model, prefix_caching=True).limits.prefix_caching
    assert not made(engine=engine, model=model, prefix_caching=False).limits.prefix_caching


def test_nulls_become_the_engines_defaults() -> None:
    r = made()
    assert (r.limits.max_num_batched_tokens, r.limits.max_num_seqs) == (8192, 1024)
    assert (r.weight_dtype, r.kv_dtype) == ("bf16", "bf16")
    assert r.limits.max_model_len == load_model(DENSE).max_position_tokens
    assert r.gpu_memory_utilization == load_engine("vllm").gpu_memory_utilization
    assert r.limits.prefix_caching is True
    assert r.limits.kv_blocks == 0
    assert r.notices == ()


def test_given_values_are_kept() -> None:
    given_values = {
        "max_num_seqs": 7,
        "max_num_batched_tokens": 100,
        "max_model_len": 50,
        "block_size": 32,
        "kv_blocks": 9,
        "prefix_caching": False,
        "gpu_memory_utilization": 0.5,
        "kv_dtype": "fp8",
        "weight_dtype": "fp8",
    }
    r = made(**given_values)
    filled = r.filled_in(Deployment(model=DENSE, hardware="h100x8"))
    assert {key: filled[key] for key in given_values} == given_values


@given(seqs=st.none() | st.integers(1, 20000), tokens=st.none() | st.integers(1, 20000))
def test_a_step_holds_a_token_of_every_sequence(seqs: int | None, tokens: int | None) -> None:
    try:
        r = made(max_num_seqs=seqs, max_num_batched_tokens=tokens)
    except InputError:
        assert seqs is not None  # defaults alone never break the rule
        assert seqs > (tokens or 8192)
    else:
        assert 1 <= r.limits.max_num_seqs <= r.limits.max_num_batched_tokens


def test_default_token_budget_never_exceeds_all_sequences_at_full_length() -> None:
    assert made(max_num_seqs=2, max_model_len=100).limits.max_num_batched_tokens == 200


def test_tensor_parallel_must_divide_heads_and_fit_a_node() -> None:
    assert refused(tensor_parallel=3).nearest == "2"
    assert refused(tensor_parallel=16).nearest == "8"
    assert refused(hardware="2*h100x2", tensor_parallel=8).nearest == "2"
    assert refused(hardware="2*h100x6", tensor_parallel=8).nearest == "6"
    assert made(tensor_parallel=8).layout.tensor_parallel == 8


def test_a_replica_too_large_is_told_its_largest_size() -> None:
    assert refused(tensor_parallel=2, context_parallel=8).nearest == "context_parallel: 4"
    assert refused(pipeline_parallel=16).nearest == "pipeline_parallel: 8"
    assert refused(context_parallel=4, pipeline_parallel=4).nearest == "context_parallel: 2"


def test_tensor_parallel_over_whole_nodes_is_simulated_and_says_so() -> None:
    assert made(tensor_parallel=8).notices == ()
    (notice,) = made(hardware="2*h100x4", tensor_parallel=8).notices
    assert "over 2 link domains of 4" in notice
    assert refused(hardware="2*h100x4", tensor_parallel=8, replicas=2).nearest == "replicas: 1"


@given(tp=st.integers(1, 64))
def test_choices_are_exactly_what_the_check_accepts(tp: int) -> None:
    model = load_model(DENSE)  # 32 heads, 8 KV heads, 14336 wide
    try:
        check_tensor_parallel(model, tp)
        accepted = True
    except InputError:
        accepted = False
    assert accepted == (tp in tensor_parallel_choices(model, 64)) == (tp in (1, 2, 4, 8, 16, 32))


def test_everything_must_fit_in_the_hardware() -> None:
    assert made(replicas=4, tensor_parallel=2).accelerators_per_replica == 2
    assert refused(replicas=5, tensor_parallel=2).nearest == "replicas: 4"
    # three accelerators of each node are left over: a group of four does not straddle nodes
    assert refused(hardware="2*h100x7", replicas=3, tensor_parallel=4).nearest == "replicas: 2"


def test_dense_data_parallel_ranks_are_replicas() -> None:
    r = made(data_parallel=4, tensor_parallel=2)
    assert (r.replicas, r.layout.data_parallel) == (4, 1)
    assert "counted as replicas" in r.notices[0]


def test_a_pipeline_is_no_deeper_than_the_model() -> None:
    assert made(pipeline_parallel=4, tensor_parallel=2).accelerators_per_replica == 8
    assert refused(hardware="8*h100x8", pipeline_parallel=64).nearest == "32"


def test_expert_parallel_is_for_mixtures() -> None:
    assert "mixture-of-experts" in str(refused(expert_parallel=True))
    r = made(model=MOE, expert_parallel=True, data_parallel=4, tensor_parallel=2)
    assert (r.replicas, r.layout.data_parallel, r.layout.tensor_parallel, r.layout.expert_parallel) == (1, 4, 2, True)
    single = made(model=MOE, hardware="h100x4", expert_parallel=True)
    assert (single.layout.tensor_parallel, len(single.notices)) == (4, 2)


def test_dtypes() -> None:
    assert refused(weight_dtype="bfloat16").nearest == "bf16"
    assert refused(weight_dtype="nvfp4").nearest == "fp4"
    assert refused(kv_dtype="int4").nearest
    assert made(weight_dtype="fp8", kv_dtype="bf16").notices == ()
    weight_only = made(hardware="a100-80gb", weight_dtype="fp8")
    assert weight_only.weight_dtype == "fp8"
    assert "multiplied in bf16" in weight_only.notices[0]
    old = made(hardware="t4")
    assert (old.weight_dtype, old.kv_dtype) == ("fp16", "fp16")


def test_the_default_kv_dtype_is_what_the_checkpoint_declares() -> None:
    requantised = made(weight_dtype="fp8")
    assert (requantised.kv_dtype, "set kv_dtype" in requantised.notices[0]) == ("fp8", True)
    assert made(hardware="a100-80gb", weight_dtype="fp8").kv_dtype == "bf16"  # no fp8 arithmetic
    assert made(model="llama3.3-70b-fp8", hardware="h100x8", tensor_parallel=8).kv_dtype == "fp8"  # ModelOpt's
    assert made(model="llama3.1-405b-fp8", hardware="h100x8", tensor_parallel=8).kv_dtype == "bf16"  # Meta's own
    assert made(model="deepseek-v3", hardware="h200x8", tensor_parallel=8).kv_dtype == "bf16"


def test_tensorrt_llm_serves_nvidias_fp8_checkpoints_of_16_bit_models() -> None:
    """They have one scale for a tensor and an fp8 KV cache; Qwen's own have blocks and leave the cache in 16 bits."""

    def stored(model: str, engine: str) -> tuple[int | None, str]:
        r = made(model=model, engine=engine, hardware="h200x8", tensor_parallel=8, weight_dtype="fp8")
        return r.model.weight_format("fp8").block_size, r.kv_dtype

    assert stored("qwen3-235b-a22b", "trtllm") == (None, "fp8")
    assert stored("qwen3-235b-a22b", "vllm") == (128, "bf16")
    assert stored("deepseek-v3", "trtllm") == stored("deepseek-v3", "vllm") == (128, "bf16")  # fp8 is its own dtype


def test_block_sizes_engines_have() -> None:
    assert made(block_size=32).limits.block_size == 32
    assert refused(block_size=17).nearest == "16"


def test_max_model_len_within_the_models_positions() -> None:
    assert refused(max_model_len=10**7).nearest == str(load_model(DENSE).max_position_tokens)


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "tgi"},
        {"engine": "llama.cpp", "prefix_caching": True},
    ],
)
def test_what_is_not_supported_says_so(changes: dict[str, Any]) -> None:
    assert "not supported yet" in str(refused(**changes))


APART = {"prefill_replicas": 2, "decode_replicas": 1}


def apart(**changes: Any) -> tuple[ResolvedDeployment, ...]:
    keys = {"model": DENSE, "hardware": "h100x8", "disaggregation": APART | changes}
    return resolve_pools(Deployment(**keys))  # type: ignore[arg-type]


def test_disaggregation_is_two_pools() -> None:
    prefill, decode = apart(decode={"tensor_parallel": 2, "max_num_seqs": 64})
    assert [(p.role, p.replicas, p.layout.tensor_parallel) for p in (prefill, decode)] == [
        ("prefill", 2, 1),
        ("decode", 1, 2),
    ]
    assert (prefill.limits.max_num_seqs, decode.limits.max_num_seqs) == (1024, 64)
    assert prefill.site == decode.site == ""  # on the same eight
    elsewhere = apart(decode={"hardware": "a100-80gb"})
    assert [(p.site, p.hardware.text) for p in elsewhere] == [("", "h100x8"), ("decode", "a100-80gbx1")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefill_replicas": 8}, "together must fit in the 8"),
        ({"decode": {"tensor_paralel": 2}}, "nearest valid choice: tensor_parallel"),
        ({"decode": {"replicas": 2}}, "cannot set replicas"),
        ({"decode": {"kv_dtype": "fp8"}}, "same kv_dtype"),
        ({"decode": {"tensor_parallel": 3}}, "does not divide"),
    ],
)
def test_pools_that_cannot_be_are_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        apart(**changes)


def test_one_pool_is_asked_for_where_only_one_can_be() -> None:
    assert refused(disaggregation=APART).nearest == "disaggregation: null"


def test_slices_hold_whole_replicas_only() -> None:
    assert made(hardware="a100-80gb:2g.20gbx3", replicas=3).replicas == 3
    assert refused(hardware="a100-80gb:2g.20gbx3", tensor_parallel=2).nearest == "1"


def test_cpu_limits_grow_with_ranks() -> None:
    one, two = made(hardware="epyc-9654"), made(hardware="epyc-9654x2", tensor_parallel=2)
    assert (two.limits.max_num_batched_tokens, two.limits.max_num_seqs) == (
        2 * one.limits.max_num_batched_tokens,
        2 * one.limits.max_num_seqs,
    )


def test_real_deployments_resolve(validation_data: Path) -> None:
    found = sorted(validation_data.glob("*/deployment.yaml"))
    assert found
    for path in found:
        assert resolve(load_deployment(path)).replicas >= 1


def test_every_rank_of_an_expert_group_holds_a_whole_expert() -> None:
    """Mixtral has eight experts, so 16 ranks cannot share them."""
    keys = {"model": "mixtral-8x7b", "tensor_parallel": 8, "expert_parallel": True}
    assert made(**keys).layout.expert_parallel
    found = refused(hardware="2*h100x8", data_parallel=2, **keys)
    assert str(found).startswith("16 ranks cannot share the 8 whole experts of mixtral-8x7b")
    assert found.nearest == "expert_parallel: false"
