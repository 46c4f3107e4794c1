"""What llama.cpp reads and writes: a GGUF file that means the same model, and the log of its iterations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calibration.serve.gguf_file import write_gguf
from calibration.serve.llama_log import read_llama_log
from catalogs.errors import InputError

EXTRA = "gguf or safetensors is not installed (pip install '.[verify]')"
HEADS, KV_HEADS, HEAD, HIDDEN, VOCABULARY = 4, 2, 8, 32, 12


def model_folder(folder: Path, **changes: object) -> Path:
    """A Llama of one layer with random weights and a tokenizer of single characters and one merge."""
    save_file = pytest.importorskip("safetensors.numpy", reason=EXTRA).save_file
    pytest.importorskip("gguf", reason=EXTRA)
    shape = {"q_proj": (HEADS * HEAD, HIDDEN), "k_proj": (KV_HEADS * HEAD, HIDDEN), "v_proj": (KV_HEADS * HEAD, HIDDEN)}
    attention = {
        f"self_attn.{name}.weight": rows for name, rows in (shape | {"o_proj": (HIDDEN, HEADS * HEAD)}).items()
    }
    mlp = {f"mlp.{n}_proj.weight": (48, HIDDEN) for n in ("gate", "up")} | {"mlp.down_proj.weight": (HIDDEN, 48)}
    norms = {"input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,)}
    layer = {f"model.layers.0.{name}": size for name, size in (attention | mlp | norms).items()}
    outer = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    sizes = layer | outer | {"lm_head.weight": (VOCABULARY, HIDDEN)}
    rng = np.random.default_rng(0)
    save_file({k: rng.standard_normal(s).astype(np.float32) for k, s in sizes.items()}, folder / "model.safetensors")
    config = {"model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": 1, "intermediate_size": 48}
    config |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "eos_token_id": 0}
    config |= {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    words = ["<end>", *"abcdefgh", "ab"]  # two ids fewer than the model's vocabulary
    model = {"type": "BPE", "vocab": {w: i for i, w in enumerate(words)}, "merges": [["a", "b"]]}
    added = [{"id": 0, "content": "<end>"}]
    tokenizer = {"model": model, "pre_tokenizer": {"type": "ByteLevel"}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def rotated_by_halves(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Hugging Face: element i turns with element i + half."""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def rotated_by_pairs(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """ggml: element 2i turns with element 2i + 1."""
    a, b = x[..., 0::2], x[..., 1::2]
    turned = np.stack([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)
    return turned.reshape(x.shape)


def test_queries_and_keys_meet_as_they_did(tmp_path: Path) -> None:
    """The products of rotated queries and keys are the same, each side rotated in its own way."""
    load_file = pytest.importorskip("safetensors.numpy", reason=EXTRA).load_file
    folder = model_folder(tmp_path)
    reader = pytest.importorskip("gguf", reason=EXTRA).GGUFReader(write_gguf(folder, tmp_path / "m.gguf"))
    ours = {t.name: np.array(t.data) for t in reader.tensors}
    theirs = load_file(folder / "model.safetensors")
    x, angles = np.random.default_rng(1).standard_normal(HIDDEN), np.array([0.3, 0.11, 0.02, 0.001])
    made = []
    for name, heads in (("q", HEADS), ("k", KV_HEADS)):
        before = theirs[f"model.layers.0.self_attn.{name}_proj.weight"] @ x
        after = ours[f"blk.0.attn_{name}.weight"] @ x
        made.append((before.reshape(heads, HEAD), after.reshape(heads, HEAD)))
    (q, q_ours), (k, k_ours) = made
    expected = rotated_by_halves(q[0], 9 * angles) @ rotated_by_halves(k[0], 4 * angles)
    assert rotated_by_pairs(q_ours[0], 9 * angles) @ rotated_by_pairs(k_ours[0], 4 * angles) == pytest.approx(expected)
    assert q_ours[0] @ k_ours[0] != pytest.approx(rotated_by_pairs(q_ours[0], angles) @ k_ours[0])  # turning matters
    np.testing.assert_array_equal(ours["output.weight"], theirs["lm_head.weight"])
    assert len(ours) == len(theirs)
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == VOCABULARY


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only plain Llama models"):
        write_gguf(model_folder(tmp_path, model_type="qwen3"), tmp_path / "m.gguf")
    (tmp_path / "config.json").unlink()
    with pytest.raises(InputError, match="not a Hugging Face model folder"):
        write_gguf(tmp_path, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_weights_that_are_not_there_or_not_written_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    folder = model_folder(tmp_path / "model")
    with pytest.raises(InputError, match="cannot write"):
        write_gguf(folder, tmp_path / "no" / "m.gguf")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5])
    with pytest.raises(InputError, match=r"one model\.safetensors"):
        write_gguf(folder, tmp_path / "m.gguf")
    weights.rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(InputError, match=r"one model\.safetensors"):
        write_gguf(folder, tmp_path / "m.gguf")
    assert not list(tmp_path.glob("*.gguf"))
    assert not list(tmp_path.glob("*.part"))


LOG = """\
0.02.000.000 I srv  update_slots: all slots are idle
0.59.900.000 D srv  update_slots: posting NEXT_RESPONSE
0.59.900.010 I slot   operator(): id  3 | task 0 | new prompt, n_ctx_slot = 2048, n_keep = 0, task.n_tokens = 12
0.59.900.020 I slot   operator(): id  3 | task 0 | cached n_tokens = 0, memory_seq_rm [0, end)
0.59.901.000 D srv        decode: n_batch (effective) = 8, off = 0
0.59.999.000 D que  yield_to_que: done yielding to queue
1.00.000.000 D srv  update_slots: posting NEXT_RESPONSE
1.00.000.020 I slot   operator(): id  3 | task 0 | cached n_tokens = 8, memory_seq_rm [8, end)
1.00.000.030 I slot init_sampler: id  3 | task 0 | init sampler, took 0.00 ms, tokens: text = 12, total = 12
1.00.001.000 D srv        decode: n_batch (effective) = 8, off = 0
1.00.051.000 D que  yield_to_que: done yielding to queue
1.00.052.000 D srv  update_slots: posting NEXT_RESPONSE
1.00.052.010 D slot handle_last_: id  3 | task 0 | slot decode token, id=5, n_ctx = 2048, n_tokens = 12, truncated = 0
1.00.052.020 I slot   operator(): id  1 | task 2 | new prompt, n_ctx_slot = 2048, n_keep = 0, task.n_tokens = 30
1.00.052.030 I slot   operator(): id  1 | task 2 | cached n_tokens = 0, memory_seq_rm [0, end)
1.00.053.000 D srv        decode: n_batch (effective) = 8, off = 0
No parser definition detected, assuming pure content parser.1.00.063.000 D que  yield_to_que: done yielding to queue
1.00.064.000 D srv  update_slots: posting NEXT_RESPONSE
1.00.064.010 D slot handle_last_: id  3 | task 0 | slot decode token, id=5, n_ctx = 2048, n_tok"""


def test_iterations_are_read_with_what_they_held(tmp_path: Path) -> None:
    """Batches of 8: a prompt of 12 in two, then its first decode with 7 tokens of the next. A torn step is none."""
    log = tmp_path / "server.log"
    log.write_text(LOG)
    steps = read_llama_log(log)
    assert steps["rows"].tolist() == [((3, 8),), ((3, 4),), ((3, 1), (1, 7))]
    assert steps["context_tokens"].tolist() == [8, 4, 7]
    assert steps["generation_requests"].tolist() == [0, 0, 1]
    assert steps["generation_context_tokens"].tolist() == [0, 0, 12]
    assert steps["context_pairs"].tolist() == [32.0, 4 * (8 + 2.0), 24.5]
    assert steps["seconds"].tolist() == pytest.approx([0.1, 0.052, 0.012])  # across the full minute
    assert steps["decode_s"].tolist() == pytest.approx([0.098, 0.05, 0.01])
    log.write_text("nothing of the kind\n")
    with pytest.raises(InputError, match="no engine steps"):
        read_llama_log(log)
