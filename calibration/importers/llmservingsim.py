"""Import LLMServingSim 2.0's layer profiles (vLLM 0.19, eager, one layer with dummy weights, times in us).

Tensor parallelism is emulated on one GPU by dividing heads, intermediate size and vocabulary, so there is no
all-reduce. Times are CUDA kernels summed by layer: device time, not host time. Fused layers: qkv_proj and gate_up_proj
are one product each; act_fn is silu times gate in one kernel; final_layernorm is the norm with the residual add (read
and write of two tensors), layernorm the mean of a plain first norm and a fused second one, counted as three tensors;
qk_norm is both head norms; attention includes the KV cache write; moe is routing, sorting and both expert products;
sampler works on the whole vocabulary at every TP degree.

Attention rows hold at most one prefill chunk of `prefill_chunk` tokens after `kv_prefill`, and `n_decode` decodes at
`kv_decode` tokens each: rows with both are "mixed_attention", for checking how the two add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from calibration.operators.flops_and_bytes import distinct_experts
from calibration.operators.operators import SAMPLING_BYTES_PER_LOGIT
from catalogs.errors import InputError

SOURCE: Final = "LLMServingSim@5daddb2 (MIT) vllm 0.19 eager"

#: Folder by hardware name of the catalog.
FOLDER_OF: Final = {"rtx4090": "RTX4090", "rtxpro6000": "RTXPRO6000"}


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """Sizes of a profiled model (published config.json); those of one rank after `split`."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    experts: int = 0
    experts_per_token: int = 0

    def split(self, tp: int) -> ProfiledModel:
        """Return the sizes of one rank of `tp`; the vocabulary stays whole."""
        heads, kv_heads = self.heads // tp, max(1, self.kv_heads // tp)
        return replace(self, heads=heads, kv_heads=kv_heads, intermediate=self.intermediate // tp)


#: The sizes of the profiled models (their configurations on Hugging Face).
MODELS: Final = {
    "meta-llama/Llama-3.1-8B": ProfiledModel(4096, 32, 8, 128, 14336, 128256),
    "Qwen/Qwen3-32B": ProfiledModel(5120, 64, 8, 128, 25600, 151936),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ProfiledModel(2048, 32, 4, 128, 768, 151936, 128, 8),
}


def import_profiles(folder: Path, hardware: str) -> dict[str, pd.DataFrame]:
    """Return the rows of all profiled models by family: gemm, elementwise, moe, prefill, decode and mixed attention.

    `folder` holds RTX4090 and RTXPRO6000.

    Raises:
        InputError: The hardware was not profiled, or the folder holds no profile of it.
    """
    if hardware not in FOLDER_OF:
        raise InputError("no LLMServingSim profiles for this hardware", hardware, ", ".join(FOLDER_OF))
    own = folder / FOLDER_OF[hardware]
    parts: defaultdict[str, list[pd.DataFrame]] = defaultdict(list)
    for name, model in MODELS.items():
        for run in sorted((own / name / "bf16").glob("tp*")):
            tp = int(run.name[2:])
            tables = {file.stem: pd.read_csv(file) for file in run.glob("*.csv")}
            for family, rows in _rows_of(model.split(tp), tp, tables):
                parts[family].append(rows)
    if not parts:
        raise InputError("no LLMServingSim profiles in this folder", str(own))
    found = {family: pd.concat(each, ignore_index=True) for family, each in parts.items()}
    return {f: t[t.seconds > 0].reset_index(drop=True).assign(source=SOURCE) for f, t in found.items()}


def _rows_of(m: ProfiledModel, tp: int, tables: dict[str, pd.DataFrame]) -> Iterator[tuple[str, pd.DataFrame]]:
    if {"dense", "per_sequence"} <= tables.keys():
        per_sequence = tables["per_sequence"].rename(columns={"sequences": "tokens"})
        layers = pd.concat([tables["dense"], per_sequence], ignore_index=True)
        yield "gemm", _gemm(m, tp, layers)
        yield "elementwise", _elementwise(m, layers)
    if "attention" in tables:
        yield from _attention(m, tables["attention"])
    if "moe" in tables:
        yield "moe", _moe(m, tables["moe"])


def _layer_rows(layers: pd.DataFrame, sizes: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the layers in the index of `sizes`, with the columns of `sizes`."""
    rows = layers[layers.layer.isin(sizes.index)].reset_index(drop=True)
    found = sizes.loc[rows.layer].reset_index(drop=True)
    return found.assign(tokens=rows.tokens.astype(float), seconds=rows.time_us * 1e-6, kernel=rows.layer)


def _gemm(m: ProfiledModel, tp: int, layers: pd.DataFrame) -> pd.DataFrame:
    sizes = {
        "qkv_proj": ((m.heads + 2 * m.kv_heads) * m.head_dim, m.hidden),
        "o_proj": (m.hidden, m.heads * m.head_dim),
        "gate_up_proj": (2 * m.intermediate, m.hidden),
        "down_proj": (m.hidden, m.intermediate),
        "lm_head": (m.vocab // tp, m.hidden),
    }
    table = pd.DataFrame.from_dict(sizes, "index", float, ["n", "k"])
    return _layer_rows(layers, table).rename(columns={"tokens": "m"}).assign(dtype="bf16")


def _elementwise(m: ProfiledModel, layers: pd.DataFrame) -> pd.DataFrame:
    rotated = (m.heads + m.kv_heads) * m.head_dim
    layer_bytes = {
        "embedding": ("embedding", 2.0 * m.hidden * 2),
        "layernorm": ("norm", 3.0 * m.hidden * 2),
        "final_layernorm": ("norm", 4.0 * m.hidden * 2),
        "qk_norm": ("norm", 2.0 * rotated * 2),
        "rotary_emb": ("rotary", 2.0 * rotated * 2),
        "act_fn": ("activation", 3.0 * m.intermediate * 2),
        "sampler": ("sampling", float(m.vocab * SAMPLING_BYTES_PER_LOGIT)),
    }
    return _layer_rows(layers, pd.DataFrame.from_dict(layer_bytes, "index", columns=["kind", "bytes_per_token"]))


def _attention(m: ProfiledModel, raw: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    chunk, decodes = raw.prefill_chunk.astype(float), raw.n_decode.astype(float)
    heads = {"n_heads": m.heads, "n_kv_heads": m.kv_heads, "head_dim": m.head_dim}
    rows = raw[[]].assign(**heads, kv_dtype="bf16", window_tokens=0, kernel="attention")
    rows["seconds"] = raw.time_us * 1e-6
    prefill: dict[str, Any] = {
        "chunks": (chunk > 0).astype(float),
        "tokens": chunk,
        "pairs": chunk * (raw.kv_prefill + chunk / 2.0),
    }
    decode: dict[str, Any] = {
        "sequences": decodes,
        "context_tokens": decodes * raw.kv_decode,
        "max_context_tokens": np.where(decodes > 0, raw.kv_decode, 0).astype(float),
        "inside_engine": True,
    }
    yield "decode_attention", rows.assign(**decode)[(chunk == 0) & (decodes > 0)]
    yield "prefill_attention", rows.assign(**prefill)[(chunk > 0) & (decodes == 0)]
    yield "mixed_attention", rows.assign(**prefill, **decode)[(chunk > 0) & (decodes > 0)]


def _moe(m: ProfiledModel, raw: pd.DataFrame) -> pd.DataFrame:
    """Return the time at the experts that balanced routing reaches, interpolated between the profiled counts."""
    tokens = np.unique(raw.tokens.to_numpy(dtype=np.float64))
    seconds = []
    for count, touched in zip(tokens, distinct_experts(tokens, m.experts, m.experts_per_token), strict=True):
        part = raw[raw.tokens == count].sort_values("activated_experts")
        seconds.append(np.interp(touched, part.activated_experts, part.time_us * 1e-6))
    sizes = {"hidden_size": m.hidden, "intermediate_size": m.intermediate, "n_experts": m.experts}
    out = pd.DataFrame({"tokens": tokens, "seconds": seconds}).assign(**sizes, experts_per_token=m.experts_per_token)
    return out.assign(expert_ranks=1, dtype="bf16", distribution="expected_distinct", kernel="moe")
