"""Engine profiles: defaults by device memory, capture sizes, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.engines.files import engine_profile, list_engines, load_engine, read_engine_file
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError
from catalogs.hardware.catalog import list_hardware, parse_hardware
from catalogs.models.catalog import load_model

UNSUPPORTED = ["tgi", "lmdeploy"]


@pytest.mark.parametrize(
    ("hardware", "limits"),
    [
        ("b200", (16384, 1024)),
        ("h200", (8192, 1024)),
        ("h100", (8192, 1024)),
        ("rtxpro6000", (8192, 1024)),
        ("a100-80gb", (2048, 256)),  # as large as H100, but excepted by name
        ("a100-40gb", (2048, 256)),
        ("l40s", (2048, 256)),
        ("rtx4090", (2048, 256)),
        ("epyc-9654", (2048, 128)),
    ],
)
def test_default_limits_by_device_memory(hardware: str, limits: tuple[int, int]) -> None:
    a = parse_hardware(hardware).accelerator
    assert load_engine("vllm").default_limits(a.memory_bytes, a.name, a.kind) == limits


def test_unknown_device_kind_is_refused() -> None:
    with pytest.raises(InputError, match="no default limits"):
        load_engine("vllm").default_limits(1e12, "tpu", "tpu")


def test_capture_sizes() -> None:
    sizes = load_engine("vllm").graph_capture_sizes
    assert sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert sizes[-1] == load_engine("vllm").max_graph_tokens == 512
    assert list(sizes) == sorted(set(sizes))


def test_versions_differ_where_the_engine_did() -> None:
    new, old = load_engine("vllm"), load_engine("vllm-0.15")
    assert (new.gpu_memory_utilization, old.gpu_memory_utilization) == (0.92, 0.90)
    assert (new.admit_whole_prompt, old.admit_whole_prompt) == (True, False)
    assert old.limits == new.limits
    assert old.host == new.host


def test_tensorrt_llm_0_11_hands_over_and_gathers_without_the_rules_of_later_versions() -> None:
    new, old = load_engine("trtllm"), load_engine("trtllm-tensorrt")
    assert (new.first_token, old.first_token) == ("admission", "prefill")
    assert (new.gathers_quantised, old.gathers_quantised) == (True, False)


def test_vllm_normalises_in_the_all_reduce_from_0_17_on_where_the_kernel_exists() -> None:
    """Pull requests 34299 and 34392: Hopper and Blackwell with HBM, several tensor ranks, no other kind of rank."""
    from catalogs.deployments.resolve import resolve
    from catalogs.deployments.schema import Deployment
    from simulator.layers.step import fused_rows

    def rows(engine: str, hardware: str, tp: int, **keys: object) -> int:
        found = {"model": "llama3.1-8b", "hardware": hardware, "tensor_parallel": tp, "engine": engine, **keys}
        return fused_rows(resolve(Deployment.model_validate(found)))

    values = 2 * 4096
    assert rows("vllm-0.15", "h100x2", 2) == rows("vllm-0.11", "h100x2", 2) == rows("sglang", "h100x2", 2) == 0
    assert [rows("vllm-0.17", "h100x8", tp) for tp in (2, 4, 8)] == [64 * 2**20 // values, 2**21 // values, 128]
    assert rows("vllm-0.17", "b200x4", 4) == 32 * 2**20 // values
    assert rows("vllm-0.17", "a100-80gbx4", 4) == rows("vllm-0.17", "rtxpro6000x4", 4) == 0
    asked = {"fused_allreduce": True}
    assert rows("vllm-0.17", "h100x4", 2, pipeline_parallel=2) == 0 < rows("vllm", "h100x4", 2, **asked)
    assert rows("vllm-0.15", "h100x4", 4, **asked) == rows("vllm-0.17", "h100x4", 4)
    assert rows("vllm-0.17", "h100x4", 4, fused_allreduce=False) == 0


def test_vllm_0_11_schedules_in_line_and_sorts_for_top_p() -> None:
    new, old, started = (load_engine(n) for n in ("vllm", "vllm-0.11", "vllm-0.11-async"))
    assert (old.async_scheduling, started.async_scheduling, new.async_scheduling) == (False, True, True)
    assert (old.top_p_by_sort, started.top_p_by_sort, new.top_p_by_sort) == (True, True, False)
    assert old.gpu_memory_utilization == started.gpu_memory_utilization == 0.90
    assert old.limits == new.limits


def test_host_times_are_positive_and_sourced() -> None:
    host = load_engine("vllm").host
    assert min(host.step_s, host.step_s_per_sequence, host.request_s, host.output_s) > 0
    assert host.step_gap_s == 0.0  # no measurement shows one
    assert host.request_s_per_input_token > 0
    assert host.step_s < 0.1  # seconds, not milliseconds
    assert host.source


def test_a_missing_host_term_is_an_error_not_zero() -> None:
    keys = read_engine_file("vllm")
    host = keys["host_times"]
    for fault in ({"output_ms": 0.0}, {"output_ms": None}, {"output_ms": "1"}):
        with pytest.raises(InputError, match=r"vllm\.yaml: host_times\.output_ms"):
            engine_profile(keys | {"host_times": host | fault})
    with pytest.raises(InputError, match=r"host_times\.api_step_s"):
        engine_profile(keys | {"host_times": {term: ms for term, ms in host.items() if term != "api_step_ms"}})


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"block_size_token": 16}, "unknown key 'block_size_token'"),
        ({"gpu_memory_utilization": 1.2}, "gpu_memory_utilization"),
        ({"graph_capture_sizes": {"first": [1], "step": 8, "to": 16}}, "then_step"),
        ({"memory": {"non_torch_gib_single": 0.1}}, "non_torch_gib_parallel"),
        ({"speculation": {"eagle": "sometimes"}}, "speculation"),
        ({"default_limits": [{"kind": "tpu"}]}, "default_limits"),
    ],
)
def test_a_fault_in_an_engine_file_is_one_line(fault: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named) as caught:
        engine_profile(read_engine_file("vllm") | fault)
    assert "\n" not in str(caught.value)


def test_every_engine_file_states_the_wait_of_collectives() -> None:
    """The one host term that may be zero but not left out."""
    for name in list_engines(supported_only=True):
        assert "collective_skew_us" in read_engine_file(name)["host_times"]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_known_but_unsupported_engines_say_so(name: str) -> None:
    assert name in list_engines()
    message = r"not supported yet.*supported: fastertransformer, llama.cpp, orca, .*, sglang, sglang-0.5, sglang-bare"
    with pytest.raises(InputError, match=message) as caught:
        load_engine(name)
    assert "\n" not in str(caught.value)


def test_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        load_engine("vlm")
    assert caught.value.nearest == "vllm"


def test_flags_name_deployment_keys() -> None:
    from catalogs.deployments.schema import Deployment

    flags = load_engine("vllm").flags
    assert set(flags) <= set(Deployment.model_fields)
    assert all(flag.startswith("--") for flag in flags.values())


@pytest.mark.parametrize(
    ("hardware", "tokens", "share"),
    [("b200", 16384, 0.857), ("h200", 8192, 0.903), ("h100", 8192, 0.83), ("l40s", 4096, 0.832), ("t4", 2048, 0.695)],
)
def test_sglang_defaults_follow_from_device_memory(hardware: str, tokens: int, share: float) -> None:
    """mem_fraction_static = 1 - (1488 + 1.5 per token + 128 per rank) / memory, in MiB: B200 1 - 26192 / 183359."""
    engine, a = load_engine("sglang"), parse_hardware(hardware).accelerator
    assert engine.default_limits(a.memory_bytes, a.name, a.kind) == (tokens, 2048)
    assert engine.default_utilization(a.memory_bytes, tokens, 1) == pytest.approx(share, abs=5e-4)
    assert engine.default_utilization(a.memory_bytes, tokens, 8) < engine.default_utilization(a.memory_bytes, tokens, 1)


def test_sglang_keeps_ten_gib_free_on_large_cards() -> None:
    a = parse_hardware("h100").accelerator
    assert load_engine("sglang").default_utilization(a.memory_bytes, 2048, 1) == round(
        1 - 10 * 2**30 / a.memory_bytes, 3
    )


TRTLLM_TERMS = ("api_token_s", "latent_launch_s", "triton_experts_s", "piece_s")


@pytest.mark.parametrize("name", ["sglang", "trtllm"])
def test_engines_without_measurements_say_so_and_use_those_of_vllm(name: str) -> None:
    from catalogs.deployments.resolve import resolve
    from catalogs.deployments.schema import Deployment

    engine, vllm = load_engine(name), load_engine("vllm")
    own = {"sglang": ("kernel_launch_s", "piece_s"), "trtllm": TRTLLM_TERMS}[name]
    assert replace(engine.host, **{term: getattr(vllm.host, term) for term in (*own, "source")}) == vllm.host
    deployment = Deployment(model="llama3.1-8b", hardware="h100", engine=name)
    (notice,) = resolve(deployment).notices
    assert notice.startswith(f"{name}: its scheduler and defaults are modelled")
    assert "host times are those measured on vLLM" in notice
    assert resolve(deployment.model_copy(update={"engine": "vllm"})).notices == ()


def test_the_tensorrt_backend_has_the_build_defaults_of_0_11() -> None:
    """No norm in the all-reduce, no graphs, no overlap; its name has no number, so that no version is read as it."""
    from catalogs.deployments.resolve import resolve
    from catalogs.deployments.schema import Deployment
    from catalogs.launch.reading.names import engine_of_version
    from simulator.layers.step import fused_rows

    new, old = (
        resolve(Deployment(model="llama3.1-8b", hardware="h100x2", tensor_parallel=2, engine=engine))
        for engine in ("trtllm", "trtllm-tensorrt")
    )
    assert fused_rows(new) > 0 == fused_rows(old)
    assert (old.limits.block_size, old.limits.max_num_seqs, old.limits.max_num_batched_tokens) == (64, 256, 8192)
    assert (old.engine.async_scheduling, old.engine.graph_capture_sizes, old.engine.max_graph_tokens) == (False, (), 0)
    assert (old.engine.prefix_caching, old.engine.chunked_prefill) == (False, False)
    versions = ("0.21", "1.2.0rc6", "1.3.0")
    assert [engine_of_version("trtllm", v)[0] for v in versions] == ["trtllm-1.2", "trtllm-1.2", "trtllm"]


def test_tensorrt_llm_streams_ten_tokens_in_one_response() -> None:
    engine, vllm = load_engine("trtllm"), load_engine("vllm")
    assert engine.host.api_token_s == pytest.approx(vllm.host.api_token_s / 10)
    assert load_engine("trtllm-max-utilization").host == engine.host


def test_block_size_left_open_is_the_engines() -> None:
    from catalogs.deployments.resolve import resolve
    from catalogs.deployments.schema import Deployment

    def size(engine: str, **keys: int) -> int:
        return resolve(Deployment(model="llama3.1-8b", hardware="h100", engine=engine, **keys)).limits.block_size

    assert [size(e) for e in ("vllm", "sglang", "trtllm")] == [16, 1, 32]
    assert [size(e, block_size=64) for e in ("vllm", "sglang", "trtllm")] == [64, 64, 64]


def test_sglang_receives_as_the_recipes_of_a_model_have_it() -> None:
    def interval(engine: str, model: str, hardware: str, requests: int) -> int | None:
        unit = parse_hardware(hardware).accelerator
        receiving = load_engine(engine).for_model(load_model(model).architecture, unit).receiving
        return receiving.interval(requests) if receiving else None

    for model in ("deepseek-r1", "qwen3.5-397b-a17b"):
        assert [interval("sglang", model, "b200", n) for n in (4, 15, 16, 64)] == [10, 10, 30, 30]
        assert interval("sglang", model, "h200", 64) is None
        assert interval("sglang-bare", model, "b200", 64) is None
    for model in ("glm-5", "llama3.1-70b"):  # neither the script of GLM-5 nor the server sets one
        assert interval("sglang", model, "b200", 64) is None


def test_sparse_attention_has_an_8_bit_cache_in_sglang_from_blackwell_on() -> None:
    """_set_default_nsa_kv_cache_dtype of server_args.py; a stated format stays."""

    def kv_dtype(hardware: str, **keys: str) -> str:
        known = {"model": "glm-5", "engine": "sglang", "tensor_parallel": 8, "weight_dtype": "fp8"}
        return resolve(Deployment(**known | {"hardware": hardware} | keys)).kv_dtype

    assert [kv_dtype("b200x8"), kv_dtype("h200x8"), kv_dtype("b200x8", kv_dtype="bf16")] == ["fp8", "bf16", "bf16"]


def test_only_the_rules_of_the_model_and_the_accelerator_change_a_profile() -> None:
    engine = load_engine("sglang")
    b200, h20 = (parse_hardware(name).accelerator for name in ("b200", "h20"))
    assert engine.for_model("LlamaForCausalLM", b200) is engine
    assert engine.for_model("DeepseekV3ForCausalLM", h20) is engine  # excepted by name
    small = replace(b200, memory_bytes=96e9)
    assert engine.for_model("DeepseekV3ForCausalLM", small) is engine
    changed = engine.for_model("DeepseekV3ForCausalLM", b200)
    assert changed == replace(engine, fuses_norms=True, launches_experts_at_once=True, receiving=changed.receiving)


def unknown_names(engine: EngineProfile) -> set[str]:
    """Return what a profile names as an architecture of accelerators, or as an engine with tables, and is neither."""
    known = {parse_hardware(name).accelerator.architecture for name in list_hardware()}
    tables = (engine.launch_factors, engine.expert_block_rows, engine.cut_experts_tables, engine.fused_norm_bytes)
    named = {name for table in tables for name in table} - {"all"}
    named |= {name for rule in engine.model_defaults for name in rule.accelerators}
    engines = {*engine.cut_experts_tables.values(), engine.operator_tables}
    return named - known | engines - set(list_engines())


@pytest.mark.parametrize("name", list_engines(supported_only=True))
def test_profiles_name_only_architectures_and_engines_of_the_catalog(name: str) -> None:
    engine = load_engine(name)
    assert unknown_names(engine) == set()
    assert unknown_names(replace(engine, launch_factors={"hoper": 1.3})) == {"hoper"}
    assert unknown_names(replace(engine, cut_experts_tables={"blackwel": "trtlm"})) == {"blackwel", "trtlm"}
