"""Experts whose kernel in an engine differs from the one that the engine's own public tables time.

FlashInfer packages kernels of TensorRT-LLM for vLLM and SGLang, so one kernel is in the tables of several engines.
Where an engine's collector timed another kernel than the engine selects, or a kernel that was not tuned, the rows of
an engine whose collector timed the right one are used instead (`SHARED`). Rows of a tactic that tuning would not choose
are left out (`without_mistuned`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

#: Hidden size, intermediate size, experts per token and experts.
Experts = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class SharedKernel:
    """Experts of a dtype whose rows in the tables of an engine are replaced by those of another engine, the lender.

    Attributes:
        engine: The engine that runs the kernel.
        timed: Part of the name of the kernel that its tables time.
        lender: The engine with tables of the kernel.
        kernel: Part of the name of the kernel in the lender's tables.
        dtype: The dtype by the tables' name.
        kept: Experts that keep the engine's own rows where they are whole (`moe_ep_size` above 1).
    """

    engine: str
    timed: str
    lender: str
    kernel: str
    dtype: str
    kept: Collection[Experts] = ()

    def rows(self, raw: pd.DataFrame, kernel: str) -> npt.NDArray[np.bool_]:
        """Return whether each row is of these experts, and `kernel` is in the name of its kernel; shape (rows,)."""
        whole = of_experts(raw, self.kept) & (raw.moe_ep_size > 1).to_numpy(dtype=bool)
        named = raw.kernel_source.str.contains(kernel, regex=False).to_numpy(dtype=bool)
        return named & (raw.moe_dtype == self.dtype).to_numpy(dtype=bool) & ~whole


SHARED: Final = (
    # TensorRT-LLM's tables of B200 and GB200 time DeepGEMM, which the collector selects. The engine's default is its
    # own kernel (ModelConfig.resolve_moe_backend since pull request 14282). The default before, CUTLASS, has no such
    # experts on SM100 (fused_moe_cutlass.py: SM90 and SM120). The reference configurations of DeepSeek-R1 select
    # DeepGEMM with attention data parallelism, where experts are whole.
    SharedKernel("trtllm", "deepgemm", "sglang", "sglang_flashinfer_trtllm_moe", "fp8_block", {(7168, 2048, 8, 256)}),
    # vLLM tunes FlashInfer's kernels as it starts (kernel_warmup.py: flashinfer_autotune, from SM90 on), and its
    # collector does not: its rows of per-tensor experts take 3.6 and 4.0 times as long in the median on H100 and H200
    # as TensorRT-LLM's of the same kernel, which were tuned.
    SharedKernel("vllm", "flashinfer_cutlass", "trtllm", "moe_torch_flow_cutlass", "fp8"),
)

#: Row of TensorRT-LLM's tuned experts over one of more tokens beyond which its tactic is mistuned. Noise reaches 1.2.
#: On H100 86 of 576 curves of bf16 experts go beyond, most of them 3 to 12 times as long, and 41 on H200. The two
#: boards, which are one chip, agree in a third of the rows, so a server that starts anew seldom has them.
MISTUNED: Final = 1.5

#: Sources of rows whose tactics were tuned.
TUNED_SOURCE: Final = " trtllm "

CURVE: Final = ["moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]


def of_experts(raw: pd.DataFrame, experts: Collection[Experts]) -> npt.NDArray[np.bool_]:
    """Return whether each row is of one of these experts; shape (rows,)."""
    shapes = zip(raw.hidden_size, raw.inter_size, raw.topk, raw.num_experts, strict=True)
    return np.fromiter((shape in experts for shape in shapes), dtype=bool, count=len(raw))


def with_shared_kernels(
    raw: pd.DataFrame | None, engine: str, table_of: Callable[[str], pd.DataFrame | None]
) -> pd.DataFrame | None:
    """Return an engine's rows of experts with those of the kernels that it runs, from the tables of other engines.

    Only experts that the engine's table has in the other kernel are lent; without lent rows the engine's own stay.

    Args:
        raw: The rows of the engine's table; None without one.
        engine: The engine.
        table_of: Returns the table of experts of another engine on the same accelerator; None without one.
    """
    for shared in SHARED:
        if raw is None or shared.engine != engine:
            continue
        own = shared.rows(raw, shared.timed)
        lent = table_of(shared.lender) if own.any() else None
        if lent is None:
            continue
        sizes = raw.loc[own, ["hidden_size", "inter_size", "topk", "num_experts"]].drop_duplicates()
        known = {tuple(row) for row in sizes.itertuples(index=False)}
        lent = lent[shared.rows(lent, shared.kernel) & of_experts(lent, known)]
        raw = raw if lent.empty else pd.concat([raw[~own], lent], ignore_index=True)
    return raw


def without_mistuned(raw: pd.DataFrame) -> pd.DataFrame:
    """Return rows of experts, one for each shape, without those of TensorRT-LLM that a mistuned tactic slowed down."""
    ordered = raw.sort_values("num_tokens", ascending=False, kind="stable")
    least = ordered.groupby(CURVE).seconds.cummin().reindex(raw.index)
    mistuned = raw.source.str.contains(TUNED_SOURCE) & (raw.seconds > MISTUNED * least)
    return raw[~mistuned].reset_index(drop=True)
