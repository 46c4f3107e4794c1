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

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from calibration.operators.operators import SAMPLING_BYTES_PER_LOGIT
from calibration.operators.roofline import distinct_experts
from catalogs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


SOURCE: Final = "LLMServingSim@5daddb2 (MIT) vllm 0.19 eager"

#: Folder by hardware name of the catalog.
FOLDER_OF: Final = {"rtx4090": "RTX4090", "rtxpro6000": "RTXPRO6000"}


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """Sizes of a profiled model (published config.json), before the TP split."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    experts: int = 0
    experts_per_token: int = 0


MODELS: Final = {
    "meta-llama/Llama-3.1-8B": ProfiledModel(4096, 32, 8, 128, 14336, 128256),
    "Qwen/Qwen3-32B": ProfiledModel(5120, 64, 8, 128, 25600, 151936),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ProfiledModel(2048, 32, 4, 128, 768, 151936, 128, 8),
}


@dataclass(frozen=True, slots=True)
class _Run:
    """One profiled model at one TP degree: the folder of its CSV files."""

    model: ProfiledModel
    tp: int
    folder: Path

    @property
    def heads(self) -> int:
        return self.model.heads // self.tp

    @property
    def kv_heads(self) -> int:
        return max(1, self.model.kv_heads // self.tp)

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.model.head_dim

    @property
    def intermediate(self) -> int:
        return self.model.intermediate // self.tp

    def read(self, name: str) -> pd.DataFrame | None:
        import pandas as pd

        file = self.folder / f"{name}.csv"
        return pd.read_csv(file) if file.is_file() else None


def import_profiles(folder: Path, hardware: str) -> dict[str, pd.DataFrame]:
    """Return the rows of all profiled models by family: gemm, elementwise, moe, prefill, decode and mixed attention.

    `folder` holds RTX4090 and RTXPRO6000.

    Raises:
        InputError: The hardware was not profiled.
    """
    import pandas as pd

    parts: dict[str, list[pd.DataFrame]] = {}
    for run in _runs(folder, hardware):
        for family, rows in _rows_of(run):
            parts.setdefault(family, []).append(rows)
    tables = {family: pd.concat(found, ignore_index=True) for family, found in parts.items()}
    return {f: t[t.seconds > 0].reset_index(drop=True).assign(source=SOURCE) for f, t in tables.items()}


def import_skew(folder: Path, hardware: str) -> pd.DataFrame:
    """Return the factors alpha by which uneven decode contexts slow attention, by bucket.

    time = t(mean) + alpha (t(max) - t(mean)).

    Columns: model, tp, n_heads, n_kv_heads, head_dim, prefill_tokens, max_decodes, max_skew (share above the mean),
    max_context_tokens, max_prefill_context_tokens (upper bucket edges), alpha, n_samples.
    """
    import pandas as pd

    parts = []
    for run in _runs(folder, hardware):
        raw = run.read("skew_fit")
        if raw is None:
            continue
        rows = pd.DataFrame({"prefill_tokens": raw.pc.astype(float), "alpha": raw.alpha, "n_samples": raw.n_samples})
        rows["max_decodes"] = raw.n_label.map(_edge)
        rows["max_skew"] = raw.skew_rate_label.map(_edge) / 100.0
        rows["max_context_tokens"] = raw.kv_big_label.map(_edge)
        rows["max_prefill_context_tokens"] = raw.kp_label.map(_edge)
        parts.append(rows.assign(**_heads(run), model=run.folder.parent.parent.name, tp=run.tp))
    return pd.concat(parts, ignore_index=True)


def _edge(label: str) -> float:
    """Return the upper edge of a bucket label: "n<=8" 8, "kvB<=16k" 16384, "sr<=5%" 5, "n>256" inf, "kp=0" 0."""
    if ">" in label:
        return float("inf")
    text = label.split("=")[-1].rstrip("%")
    return float(text[:-1]) * 1024 if text.endswith("k") else float(text)


def _runs(folder: Path, hardware: str) -> Iterator[_Run]:
    if hardware not in FOLDER_OF:
        raise InputError("no LLMServingSim profiles for this hardware", hardware, ", ".join(FOLDER_OF))
    found = False
    for name, model in MODELS.items():
        for sub in sorted((folder / FOLDER_OF[hardware] / name / "bf16").glob("tp*")):
            found = True
            yield _Run(model, int(sub.name[2:]), sub)
    if not found:
        raise InputError("no LLMServingSim profiles in this folder", str(folder / FOLDER_OF[hardware]))


def _rows_of(run: _Run) -> Iterator[tuple[str, pd.DataFrame]]:
    import pandas as pd

    dense, per_sequence = run.read("dense"), run.read("per_sequence")
    if dense is not None and per_sequence is not None:
        layers = pd.concat([dense, per_sequence.rename(columns={"sequences": "tokens"})], ignore_index=True)
        yield "gemm", _gemm(run, layers)
        yield "elementwise", _elementwise(run, layers)
    attention, moe = run.read("attention"), run.read("moe")
    if attention is not None:
        yield from _attention(run, attention)
    if moe is not None:
        yield "moe", _moe(run, moe)


def _gemm(run: _Run, layers: pd.DataFrame) -> pd.DataFrame:
    m = run.model
    sizes = {
        "qkv_proj": (run.qkv, m.hidden),
        "o_proj": (m.hidden, run.heads * m.head_dim),
        "gate_up_proj": (2 * run.intermediate, m.hidden),
        "down_proj": (m.hidden, run.intermediate),
        "lm_head": (m.vocab // run.tp, m.hidden),
    }
    rows = layers[layers.layer.isin(sizes)].reset_index(drop=True)
    out = rows[["tokens"]].astype(float).rename(columns={"tokens": "m"})
    out["n"] = rows.layer.map({k: float(v[0]) for k, v in sizes.items()})
    out["k"] = rows.layer.map({k: float(v[1]) for k, v in sizes.items()})
    return out.assign(dtype="bf16", seconds=rows.time_us * 1e-6, kernel=rows.layer)


def _elementwise(run: _Run, layers: pd.DataFrame) -> pd.DataFrame:
    m = run.model
    rotated = (run.heads + run.kv_heads) * m.head_dim
    layer_bytes = {
        "embedding": ("embedding", 2 * m.hidden * 2),
        "layernorm": ("norm", 3 * m.hidden * 2),
        "final_layernorm": ("norm", 4 * m.hidden * 2),
        "qk_norm": ("norm", 2 * rotated * 2),
        "rotary_emb": ("rotary", 2 * rotated * 2),
        "act_fn": ("activation", 3 * run.intermediate * 2),
        "sampler": ("sampling", m.vocab * SAMPLING_BYTES_PER_LOGIT),
    }
    rows = layers[layers.layer.isin(layer_bytes)].reset_index(drop=True)
    out = rows[["tokens"]].astype(float)
    out["kind"] = rows.layer.map({k: v[0] for k, v in layer_bytes.items()})
    out["bytes_per_token"] = rows.layer.map({k: float(v[1]) for k, v in layer_bytes.items()})
    return out.assign(seconds=rows.time_us * 1e-6, kernel=rows.layer)


def _heads(run: _Run) -> dict[str, int]:
    return {"n_heads": run.heads, "n_kv_heads": run.kv_heads, "head_dim": run.model.head_dim}


def _attention(run: _Run, raw: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    chunk, decodes = raw.prefill_chunk.astype(float), raw.n_decode.astype(float)
    rows = raw[[]].assign(
        **_heads(run), kv_dtype="bf16", window_tokens=0, seconds=raw.time_us * 1e-6, kernel="attention"
    )
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


def _moe(run: _Run, raw: pd.DataFrame) -> pd.DataFrame:
    """Return the time at the experts that balanced routing reaches, interpolated between the profiled counts."""
    import pandas as pd

    m = run.model
    rows = []
    for tokens in np.unique(raw.tokens.to_numpy(dtype=np.float64)):
        part = raw[raw.tokens == tokens].sort_values("activated_experts")
        touched = float(distinct_experts(np.asarray(tokens), m.experts, m.experts_per_token))
        seconds = np.interp(touched, part.activated_experts, part.time_us * 1e-6)
        rows.append({"tokens": float(tokens), "seconds": float(seconds)})
    sizes = {"hidden_size": m.hidden, "intermediate_size": run.intermediate, "n_experts": m.experts}
    out = pd.DataFrame(rows).assign(**sizes, experts_per_token=m.experts_per_token, expert_ranks=1, dtype="bf16")
    return out.assign(distribution="expected_distinct", kernel="moe")
