"""The key `speculative`: what is refused with which rule, and what the rest becomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.deployments.speculation import Speculation
from catalogs.errors import InputError
from catalogs.io.yaml_files import validate_as
from catalogs.models.layers import Moe
from catalogs.models.mixers import Attention

DRAFT = {"method": "draft_model", "model": "llama3.2-1b", "num_speculative_tokens": 3, "acceptance": 0.7}
EAGLE = {"method": "eagle3", "model": "some/EAGLE3-head", "num_speculative_tokens": 3, "acceptance": 0.7}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.7}
MTP = {"method": "mtp", "num_speculative_tokens": 1, "acceptance": 0.8}


def resolved(speculative: dict[str, object] | None, **keys: object) -> ResolvedDeployment:
    written = {"model": "llama3.1-8b", "hardware": "h100", "max_model_len": 4096, "speculative": speculative}
    return resolve(validate_as(Deployment, written | keys, "deployment"))


def speculation(speculative: dict[str, object], **keys: object) -> Speculation:
    found = resolved(speculative, **keys).speculation
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("options", "keys", "message"),
    [
        (EAGLE | {"acceptance": None}, {}, "needs a measured acceptance"),
        (EAGLE | {"acceptance_length": 2.0}, {}, "needs a measured acceptance"),
        (EAGLE | {"acceptance": 1.5}, {}, "must be a probability: got 1.5; nearest valid choice: 1.0"),
        (EAGLE | {"acceptance": [0.9, 0.5]}, {}, "one rate for each of 3 drafts: got 2"),
        (EAGLE | {"acceptance": [0.5, 0.6, 0.1]}, {}, "must not rise: got 0.6; nearest valid choice: at most 0.5"),
        (EAGLE | {"acceptance": None, "acceptance_length": 4.5}, {}, "between 1 and 4 tokens: got 4.5"),
        (EAGLE | {"num_speculative_tokens": 0}, {}, "num_speculative_tokens"),
        (EAGLE | {"tokens": 3}, {}, "unknown key 'speculative.tokens'"),
        (EAGLE | {"method": "eagel"}, {}, "unknown speculative.method: got 'eagel'; nearest valid choice: eagle"),
        (EAGLE | {"model": None}, {}, "needs a model"),
        (EAGLE, {"model": "mixtral-8x7b", "hardware": "h100x2", "tensor_parallel": 2}, "give the head's config.json"),
        (EAGLE, {"engine": "llama.cpp"}, "speculative decoding is not simulated for"),
        (EAGLE, {"engine": "vllm-0.11-async"}, "speculative decoding is not simulated for"),
        (DRAFT, {"engine": "vllm-0.11"}, "this speculative.method is not simulated for"),
        (DRAFT | {"model": "qwen3-0.6b"}, {}, "the vocabulary of its target, 128256 tokens"),
        (DRAFT | {"model": "llama3.2-7b"}, {}, "unknown model"),
        (DRAFT, {"model": "qwen2.5-7b"}, "the vocabulary of its target"),
        (DRAFT | {"topk": 2}, {}, "draft trees are not simulated for"),
        (DRAFT, {"max_num_seqs": 1024, "max_num_batched_tokens": 2048}, "must hold 5 tokens of each of max_num_seqs"),
        (NGRAM | {"model": "llama3.2-1b"}, {}, "without a model"),
        (NGRAM, {"engine": "sglang"}, "this speculative.method is not simulated for sglang 0.5: got 'ngram'"),
        (MTP, {}, "lists no multi-token prediction layers for llama3.1-8b"),
        (MTP | {"model": "llama3.2-1b"}, {}, "with the model's own layers"),
        (EAGLE, {"hardware": "h100x2", "pipeline_parallel": 2}, "together with pipeline_parallel"),
        (EAGLE, {"model": "t5-small"}, "an encoder-decoder model is not simulated together with speculative decoding"),
        (EAGLE, {"kv_offload": {"host_gib": 8.0}}, "together with KV offload: got 'kv_offload'"),
        (EAGLE | {"num_draft_tokens": 6}, {"engine": "sglang"}, "without a tree"),
        (EAGLE | {"topk": 2, "num_draft_tokens": 40}, {"engine": "sglang"}, "has 4 to 11 tokens to verify"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    options: dict[str, object], keys: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        resolved(options, **keys)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_acceptance_is_by_position_however_it_is_told() -> None:
    assert speculation(EAGLE).rates == pytest.approx((0.7, 0.49, 0.343))
    assert speculation(EAGLE | {"acceptance": [0.8, 0.5, 0.3]}).rates == (0.8, 0.5, 0.3)
    found = speculation(EAGLE | {"acceptance": None, "acceptance_length": 2.533})
    assert found.rates == pytest.approx((0.7, 0.49, 0.343), abs=1e-3)
    assert found.mean_advance == pytest.approx(2.533)
    for length in (1.0, 4.0):
        assert speculation(EAGLE | {"acceptance": None, "acceptance_length": length}).mean_advance == pytest.approx(
            length
        )


def test_engines_keep_their_own_books_of_a_round() -> None:
    """Slots beyond the step's: num_lookahead_tokens, get_num_extra_kv_tokens, and none."""
    options = EAGLE | {"num_speculative_tokens": 4}
    found = {name: speculation(options, engine=name) for name in ("vllm", "trtllm", "sglang")}
    assert [found[name].lookahead_tokens for name in found] == [4, 3, 0]
    assert [found[name].recomputes_block for name in found] == [True, False, False]
    assert speculation(DRAFT).budget_tokens == 1  # max_num_new_slots_for_drafting
    assert speculation(NGRAM).lookahead_tokens == 0


@pytest.mark.parametrize(
    ("engine", "options", "ahead"),
    [
        ("vllm", EAGLE, True),
        ("vllm", DRAFT, True),
        ("vllm", NGRAM, False),
        ("vllm-0.15", EAGLE, True),
        ("vllm-0.15", DRAFT, False),
        ("vllm-0.11", EAGLE, False),
        ("trtllm", DRAFT, False),
        ("sglang", EAGLE, True),
        ("sglang", EAGLE | {"topk": 4, "num_draft_tokens": 8}, False),
    ],
)
def test_whether_steps_are_scheduled_ahead(engine: str, options: dict[str, object], ahead: bool) -> None:
    assert resolved(options, engine=engine).engine.async_scheduling is ahead
    assert resolved(None, engine=engine).engine.async_scheduling is (engine != "vllm-0.11")


def test_sglang_takes_fewer_sequences_and_trees() -> None:
    tree = resolved(EAGLE | {"topk": 4, "num_draft_tokens": 8}, engine="sglang")
    assert tree.limits.max_num_seqs == 48
    assert tree.queries == 8
    assert resolved(EAGLE, engine="sglang", max_num_seqs=100).limits.max_num_seqs == 100


def test_mtp_drafts_with_a_layer_of_the_model_s_last_kind() -> None:
    v3 = speculation(MTP, model="deepseek-v3", hardware="h200x8", tensor_parallel=8)
    assert v3.draft is not None
    assert v3.draft.n_layers == 1
    assert v3.draft.is_moe
    assert v3.draft_weight_dtype == "fp8"
    hybrid = speculation(MTP, model="qwen3.5-27b", hardware="h100x2", tensor_parallel=2)
    assert hybrid.draft is not None
    assert hybrid.draft.kv_bytes_per_token("bf16") > 0  # attention, not the linear layers beside it


def test_mtp_of_layers_with_one_block_each_is_attention_and_a_feed_forward_block() -> None:
    """Nemotron-3 Super: mtp_layers_block_type is attention, then a mixture of experts."""
    super_ = speculation(MTP, model="nemotron-3-super-120b-a12b", hardware="h200x8", tensor_parallel=8)
    assert super_.draft is not None
    (layer,) = super_.draft.groups
    assert (layer.count, layer.mixer) == (1, Attention(32, 2, 128))
    assert isinstance(layer.ffn, Moe)


def test_a_head_is_read_from_its_config(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1,
        "vocab_size": 128256, "draft_vocab_size": 32000, "max_position_embeddings": 2048, "hidden_act": "silu",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = resolved(EAGLE | {"model": str(tmp_path)})
    assert found.speculation is not None
    assert found.speculation.draft is not None
    assert found.speculation.draft.vocab_size == 32000
    assert not any("is assumed to be" in notice for notice in found.notices)
    assert any("is assumed to be" in notice for notice in resolved(EAGLE).notices)
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 2048}))
    with pytest.raises(InputError, match="must have the hidden size of its target"):
        resolved(EAGLE | {"model": str(tmp_path)})


def test_it_is_shown_filled_in() -> None:
    written = validate_as(Deployment, {"model": "llama3.1-8b", "hardware": "h100", "speculative": EAGLE}, "deployment")
    shown = resolve(written).filled_in(written)["speculative"]
    assert shown["num_draft_tokens"] == 4
    assert shown["acceptance"] == pytest.approx([0.7, 0.49, 0.343])
    again = written.model_copy(update={"speculative": type(written.speculative)(**shown)})
    assert resolve(again).speculation == resolve(written).speculation
