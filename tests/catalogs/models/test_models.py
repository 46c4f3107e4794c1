"""The model catalog: counts against the publishers', bytes against numbers worked by hand, names, strictness."""

from __future__ import annotations

import dataclasses

import pytest

from catalogs.errors import InputError
from catalogs.models.catalog import list_models, load_model
from catalogs.models.files import read_facts
from catalogs.models.layers import LayerGroup, Mlp, Moe
from catalogs.models.mixers import Attention, LinearAttention, MlaAttention
from catalogs.models.names import load_names
from catalogs.models.spec import ModelSpec, WeightFormat

ALIASES = list_models()

#: bf16 bytes per token: layers x 2 x kv heads x head size x 2, or layers x (latent + rotary) x 2 for MLA.
KV_BYTES = {
    "llama3.1-8b": 32 * 2 * 8 * 128 * 2,  # 131,072
    "llama-2-7b": 32 * 2 * 32 * 128 * 2,  # 524,288: no grouping
    "llama-2-70b": 80 * 2 * 8 * 128 * 2,  # 327,680
    "llama3.1-405b": 126 * 2 * 8 * 128 * 2,  # 516,096
    "llama3.2-1b": 16 * 2 * 8 * 64 * 2,  # 32,768
    "qwen2.5-0.5b": 24 * 2 * 2 * 64 * 2,  # 12,288
    "qwen3-32b": 64 * 2 * 8 * 128 * 2,  # 262,144: head size 128, not 5120 / 64
    "qwen3-235b-a22b": 94 * 2 * 4 * 128 * 2,  # 192,512
    "mistral-nemo": 40 * 2 * 8 * 128 * 2,  # 163,840: head size 128, not 5120 / 32
    "gemma-3-27b": 62 * 2 * 16 * 128 * 2,  # 507,904: local and global layers
    "gemma-3-12b": 48 * 2 * 8 * 256 * 2,  # 393,216
    "gpt-oss-120b": 36 * 2 * 8 * 64 * 2,  # 73,728
    "gpt-oss-20b": 24 * 2 * 8 * 64 * 2,  # 49,152
    "deepseek-v3": (512 + 64) * 2 * 61,  # 70,272
    "kimi-k2": (512 + 64) * 2 * 61,
    "glm-5": ((512 + 64) * 2 + 128 + 4) * 78,  # 100,152: latent, and the indexer's fp8 key with its fp32 scale
    "qwen3.5-397b-a17b": 15 * 2 * 2 * 256 * 2,  # 30,720: every fourth layer has a cache
    "nemotron-nano-12b-v2": 6 * 2 * 8 * 128 * 2,  # 24,576: six attention layers of 62
    "opt-175b": 96 * 2 * 12288 * 2,  # 4,718,592
    "t5-small": 6 * 2 * 8 * 64 * 2,  # 12,288: decoder self-attention
}


def spec(**changes: object) -> ModelSpec:
    """A one-layer world: hidden 8, vocabulary 10, 2 heads of 4, MLP of 16."""
    base = ModelSpec(
        name="toy",
        hf_id="",
        architecture="",
        hidden_size=8,
        vocab_size=10,
        groups=(LayerGroup(1, Attention(2, 1, 4), Mlp(16)),),
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


# ---- counts


@pytest.mark.parametrize("alias", [a for a in ALIASES if read_facts(a).published])
def test_parameter_counts_match_the_published_ones(alias: str) -> None:
    model, published = load_model(alias), read_facts(alias).published
    assert published is not None
    assert published.source
    assert model.n_params == pytest.approx(published.total, rel=0.01, abs=published.total_rounded_to / 2)
    if published.active is not None:
        left_out = {"nothing": 0, "input embedding": model.embedding_params}
        left_out["embeddings"] = model.embedding_params + model.lm_head_params
        assert model.n_active_params - left_out[published.active_leaves_out] == pytest.approx(
            published.active, rel=0.03
        )


@pytest.mark.parametrize("alias", ALIASES)
def test_every_entry_has_a_published_count_a_source_and_a_date(alias: str) -> None:
    model, facts = load_model(alias), read_facts(alias)
    assert model.published_params
    assert model.source
    assert facts.as_of
    assert model.hf_id == load_names().hf_id(alias)


@pytest.mark.parametrize(
    ("alias", "published"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama3.1-8b", 8_030_261_248),
        ("llama3.1-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-0.5b", 494_032_768),  # tied, with biases
        ("phi-4", 14_659_507_200),
        ("phi-4-mini", 3_836_021_760),  # tied, with three query heads for each KV head
        ("olmo-2-7b", 7_298_617_344),  # with norms over all heads
        ("deepseek-r1-distill-qwen-1.5b", 1_777_088_000),  # its base has tied embeddings, the distillation does not
    ],
)
def test_some_are_counted_to_the_last_parameter(alias: str, published: int) -> None:
    assert load_model(alias).n_params == published


def test_toy_world_counted_by_hand() -> None:
    model = spec()
    attention = 8 * 8 + 2 * (8 * 4) + 8 * 8  # q, k and v, o
    assert model.part_params["attention"] == attention == 192
    assert model.part_params["mlp"] == 3 * 8 * 16
    assert model.n_params == 192 + 384 + 2 * 8 + 8 + 2 * 80  # two norms, the last norm, embedding and output
    assert model.n_active_params == model.n_params
    assert spec(tied_embeddings=True).n_params == model.n_params - 80


def test_one_token_uses_the_routed_and_the_shared_experts() -> None:
    moe = Moe(n_experts=4, experts_per_token=1, expert_intermediate_size=2, shared_intermediate_size=5)
    model = spec(groups=(LayerGroup(3, Attention(2, 1, 4), moe),), other_params=1000.0)
    assert model.is_moe
    assert model.part_params["experts"] == 3 * 4 * 3 * 8 * 2
    assert model.part_params["shared_experts"] == 3 * 3 * 8 * 5
    assert model.n_params - model.n_active_params == 1000 + 3 * 3 * (3 * 8 * 2)  # tower, three idle experts a layer


def test_parts_of_a_mixer_add_up() -> None:
    mla = MlaAttention(4, 6, 5, 3, 2, 3, index_n_heads=2, index_head_dim=4, index_topk_tokens=7)
    keys_and_values, output = 8 * (5 + 2) + 5 * 4 * (3 + 3), 4 * 3 * 8
    assert mla.indexer_params(8) == 6 * 2 * 4 + 8 * (4 + 2)
    assert mla.linear_params(8) == (8 * 6 + 6 * 4 * 5) + keys_and_values + mla.indexer_params(8) + output
    plain = dataclasses.replace(mla, q_lora_rank=None, index_n_heads=0, index_head_dim=0)
    assert plain.linear_params(8) == 8 * 4 * 5 + keys_and_values + output
    gated = Attention(2, 1, 4, output_gate=True, value_head_dim=3)
    assert (gated.q_size, gated.kv_size, gated.output_size) == (16, 7, 6)


# ---- bytes


@pytest.mark.parametrize(("alias", "expected"), KV_BYTES.items())
def test_kv_bytes_per_token_by_hand(alias: str, expected: int) -> None:
    assert load_model(alias).kv_bytes_per_token("bf16") == expected


def test_kv_dtype_halves_the_cache_but_not_the_indexer() -> None:
    assert load_model("llama3.1-8b").kv_bytes_per_token("fp8") == 65_536
    assert load_model("deepseek-v3").kv_bytes_per_token("fp8") == 576 * 61
    assert load_model("glm-5").kv_bytes_per_token("fp8") == (576 + 132) * 78


def test_state_of_linear_attention_by_hand() -> None:
    qwen = 45 * (64 * 128 * 128 * 4 + (2 * 16 * 128 + 64 * 128) * 3 * 2)  # fp32 state, three bf16 inputs of the conv
    assert load_model("qwen3.5-397b-a17b").state_bytes_per_sequence == qwen
    mamba = 28 * (128 * 80 * 128 * 4 + (128 * 80 + 2 * 8 * 128) * 3 * 2)
    assert load_model("nemotron-nano-12b-v2").state_bytes_per_sequence == mamba
    assert load_model("llama3.1-8b").state_bytes_per_sequence == 0


def test_encoder_decoder_counts_both_stacks() -> None:
    bart = load_model("bart-base")
    assert bart.is_encoder_decoder
    assert (bart.n_layers, bart.n_encoder_layers) == (6, 6)
    assert bart.kv_bytes_per_token("bf16") == 6 * 2 * 768 * 2


@pytest.mark.parametrize("alias", ALIASES)
def test_whole_dtypes_hold_every_parameter(alias: str) -> None:
    model = load_model(alias)
    assert model.weight_bytes("bf16") == pytest.approx(2 * model.n_params)
    assert model.weight_bytes("fp32") == pytest.approx(4 * model.n_params)
    assert model.weight_bytes("fp8") < model.weight_bytes("bf16")


@pytest.mark.parametrize(
    ("alias", "checkpoint_bytes"),
    [
        ("gpt-oss-120b", 60.8 * 2**30),  # its model card, table 1
        ("gpt-oss-20b", 12.8 * 2**30),
        ("kimi-k2", 1029.2e9),  # files on the hub
    ],
)
def test_weight_bytes_match_the_checkpoint_files(alias: str, checkpoint_bytes: float) -> None:
    model = load_model(alias)
    assert model.weight_bytes(model.weight_dtype) == pytest.approx(checkpoint_bytes, rel=0.01)


def test_what_a_checkpoint_leaves_unquantised_stays_in_bf16() -> None:
    model = load_model("gpt-oss-120b")
    assert model.weight_dtype == "fp4"
    assert model.part_dtype("experts", "fp4") == "fp4"
    assert model.part_dtype("attention", "fp4") == "bf16"
    assert model.part_dtype("attention", "fp8") == "fp8"  # another storage than the published one is plain
    plain_fp4 = dataclasses.replace(model, formats=())
    assert model.weight_bytes("fp4") != plain_fp4.weight_bytes("fp4")
    meta, nvidia = load_model("llama3.1-405b-fp8"), load_model("llama3.1-405b-fp8-nvidia")
    assert meta.part_dtype("attention", "fp8") == "bf16"
    assert meta.weight_bytes("fp8") > 1.15 * nvidia.weight_bytes("fp8")


def test_a_second_published_storage_is_found_by_its_dtype() -> None:
    r1 = load_model("deepseek-ai/DeepSeek-R1")
    assert r1.weight_dtype == "fp8"
    assert 0 < r1.weight_format("fp4").quantized_fraction("attention") < 1
    assert r1.weight_format("fp8") == WeightFormat("fp8", block_size=128)


def test_unknown_dtype_names_the_nearest() -> None:
    with pytest.raises(InputError, match="bf16"):
        load_model("llama3.1-8b").weight_bytes("bf61")
    with pytest.raises(InputError, match="unknown dtype"):
        load_model("llama3.1-8b").kv_bytes_per_token("fp7")


# ---- shapes that must be distinguished


def windows(alias: str) -> dict[int | None, int]:
    """Layers by window."""
    found: dict[int | None, int] = {}
    for group in load_model(alias).groups:
        if isinstance(group.mixer, Attention):
            found[group.mixer.window_tokens] = found.get(group.mixer.window_tokens, 0) + group.count
    return found


def test_windowed_layers() -> None:
    assert windows("gemma-3-27b") == {1024: 52, None: 10}  # five local to one global
    assert windows("gpt-oss-20b") == {128: 12, None: 12}
    assert windows("mistral-7b-v0.1") == {4096: 32}
    assert windows("mistral-7b") == {None: 32}
    assert windows("llama4-scout") == {8192: 36, None: 12}
    assert load_model("llama4-scout").has_chunked_attention
    assert not load_model("gemma-3-27b").has_chunked_attention
    assert windows("qwen2.5-7b") == {None: 28}


def ffn_layers(alias: str, kind: type[Mlp] | type[Moe]) -> int:
    return sum(g.count for g in load_model(alias).groups if isinstance(g.ffn, kind))


def test_dense_and_moe_layers() -> None:
    assert (ffn_layers("llama4-maverick", Mlp), ffn_layers("llama4-maverick", Moe)) == (24, 24)
    assert (ffn_layers("llama4-scout", Mlp), ffn_layers("llama4-scout", Moe)) == (0, 48)
    assert (ffn_layers("deepseek-v3", Mlp), ffn_layers("deepseek-v3", Moe)) == (3, 58)
    assert (ffn_layers("kimi-k2", Mlp), ffn_layers("kimi-k2", Moe)) == (1, 60)
    assert not load_model("llama3.1-70b").is_moe


def test_the_skew_of_a_router_is_stated_where_it_is_published() -> None:
    names = ("mixtral-8x7b", "gpt-oss-120b", "mixtral-8x22b", "deepseek-v3", "qwen3-235b-a22b")
    skews = [{g.ffn.routing_skew for g in load_model(n).groups if isinstance(g.ffn, Moe)} for n in names]
    assert skews == [{0.0}, {1.0}, {None}, {None}, {None}]


def test_mixers() -> None:
    kinds = {a: {type(g.mixer) for g in load_model(a).groups} for a in ("deepseek-v3", "glm-5", "qwen3.5-397b-a17b")}
    assert kinds["deepseek-v3"] == {MlaAttention}
    assert kinds["qwen3.5-397b-a17b"] == {Attention, LinearAttention}
    indexer = load_model("glm-5").groups[0].mixer
    assert isinstance(indexer, MlaAttention)
    assert (indexer.index_n_heads, indexer.index_topk_tokens) == (32, 2048)


def test_embeddings() -> None:
    opt = load_model("opt-350m")
    assert opt.embedding_size == 512
    assert opt.learned_positions == 2050
    assert opt.lm_head_params == 0
    assert load_model("gemma-3-12b").tied_embeddings
    assert not load_model("qwen3-8b").tied_embeddings
