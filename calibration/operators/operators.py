"""The operators that a step is made of; calibration/operators/roofline.py counts their FLOPs, bytes and roofline time.

Every field may be a number or a numpy array. Fields broadcast, and so do FLOPs, bytes and costs. An operator describes
the work of one rank: its sizes are those after the tensor-parallel split. Bytes are device-memory traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, get_args

import numpy as np
import numpy.typing as npt

Num = int | float | npt.NDArray[np.float64] | npt.NDArray[np.int64]

#: Bytes that a sampler moves for each logit: read 16 bits and write fp32, scale in place, softmax, draw.
SAMPLING_BYTES_PER_LOGIT: Final = 2 + 4 + 8 + 8 + 4

#: Additional bytes for each logit where top_p needs all logits sorted: torch.sort, softmax, cumulative sum, mask and
#: scatter back, in fp32. Sort (ATen SortStable.cu): numbering 8, radix sort of 4-byte keys and 8-byte values 4 + 4
#: digits x 24, sort by row 24, gather 24. The rest: 12 + 8 + 14 + 24.
SORT_BYTES_PER_LOGIT: Final = (8 + 100 + 24 + 24) + 58

#: Bytes of a score of sparse attention's indexer, fp32.
BYTES_PER_SCORE: Final = 4.0

#: Bytes that greedy sampling moves for each logit: read, written as fp32, read.
GREEDY_BYTES_PER_LOGIT: Final = 2 + 4 + 4


#: Metadata of a field that describes a step but no measured row: tables of rows have no column of it.
NOT_MEASURED: Final = {"measured": False}


def extents(values: Sequence[int]) -> str:
    """Return extents as text: (3, 3) is "3x3"."""
    return "x".join(map(str, values))


def numbers(text: str) -> tuple[int, ...]:
    """Return the extents in a text, the inverse of `extents`."""
    return tuple(map(int, text.split("x")))


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix product y[m, n] = x[m, k] w[k, n].

    w is stored as `dtype`, and x is quantised to it where the accelerator computes natively in that dtype.
    """

    family: ClassVar[str] = "gemm"

    m: Num
    n: Num
    k: Num
    dtype: str


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """The routed experts of one MoE layer on one rank: gate, up and down projections.

    Only experts that receive tokens are computed.
    """

    family: ClassVar[str] = "moe"

    tokens: Num  # tokens that the whole expert-parallel group routes
    hidden_size: int
    intermediate_size: int  # of one expert, after the tensor-parallel split
    n_experts: int  # of the model, not of the rank
    experts_per_token: int
    expert_ranks: int  # number of ranks that share the experts; 1: this rank holds all experts
    dtype: str
    #: Rows to which the kernel pads the rows of each expert, and all rows that it reserves are computed; 0: no padding.
    block_rows: int = field(default=0, metadata=NOT_MEASURED)
    #: The skew of the router (calibration/operators/expert_loads.py); None: the router of the rows.
    skew: float | None = field(default=None, metadata=NOT_MEASURED)
    #: Whether copies of popular experts, which `n_experts` includes, give every rank and every expert equal loads.
    balanced: bool = field(default=False, metadata=NOT_MEASURED)


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """Attention of `chunks` prompt chunks that together hold `tokens` new tokens and `pairs` query-key pairs.

    pairs = sum over chunks of q * (context + q / 2), with the sliding window already applied.
    """

    family: ClassVar[str] = "prefill_attention"

    chunks: Num
    tokens: Num
    pairs: Num
    n_heads: int
    n_kv_heads: int
    head_dim: int
    kv_dtype: str
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Attention of `sequences` one-token queries over `context_tokens` cached tokens in total.

    `max_context_tokens` is the longest context of the batch.
    """

    family: ClassVar[str] = "decode_attention"

    sequences: Num
    context_tokens: Num  # sum over sequences, with the sliding window already applied
    max_context_tokens: Num
    n_heads: int
    n_kv_heads: int
    head_dim: int
    kv_dtype: str
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class NonCausalAttention:
    """Attention without a causal mask: each of `query_tokens` queries of a sequence attends to all `key_tokens` keys.

    Keys and values have as many heads as the queries. A kernel whose name ends in "_masked" also reads a mask tensor.
    """

    family: ClassVar[str] = "noncausal_attention"

    sequences: Num
    query_tokens: Num  # of one sequence
    key_tokens: Num  # of one sequence
    n_heads: int
    head_dim: int
    kernel: str  # "fa2" | "fa3" | "fa4" | "trtllm" | "triton" | "sdpa" | "sdpa_masked", as measured
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class MlaModule:
    """A whole MLA attention block of one layer: projections, absorbed products and attention, as in the public tables.

    In stage "prefill" it has `tokens` new tokens in `sequences` chunks with `pairs` query-key pairs; in stage "decode"
    it has `sequences` queries over `context_tokens` tokens in total.
    """

    family: ClassVar[str] = "mla"

    stage: str
    sequences: Num
    tokens: Num
    pairs: Num
    context_tokens: Num
    n_heads: int
    hidden_size: int
    q_lora_rank: int
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    dtype: str
    kv_dtype: str


@dataclass(frozen=True, slots=True)
class LinearAttentionScan:
    """The state update of a linear-attention or Mamba mixer for `tokens` new tokens in `sequences` sequences."""

    family: ClassVar[str] = "linear_attention"

    tokens: Num
    sequences: Num
    n_heads: int
    key_head_dim: int
    value_head_dim: int
    stage: str  # "prefill" | "decode"


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A memory-bound kernel: norm, activation, rotary, residual, KV write, quantise, sampling, embedding."""

    family: ClassVar[str] = "elementwise"

    # "norm" | "activation" | "rotary" | "kv_write" | "quantize" | "embedding" | "sampling" | "greedy" | "sort"
    # | "routing" | "select" | "score"
    kind: str
    tokens: Num
    bytes_per_token: Num  # bytes read and written per token


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over `ranks` accelerators of one node.

    `message_bytes` is the size of the whole tensor: the tensor that is all-reduced, the gathered result, the input of a
    reduce-scatter, or everything that one rank sends in an all-to-all or a send.
    """

    family: ClassVar[str] = "collective"

    kind: str  # "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" | "send_recv"
    message_bytes: Num
    ranks: int
    graph: bool = True  # captured in a CUDA graph (decode) or launched eagerly


@dataclass(frozen=True, slots=True)
class Matmul:
    """`batch` products (m, k) by (k, n) as a network in torch runs them.

    With `shared` = 1 the second factor is a parameter in the layout in which the module holds it, the same for all of
    the batch; with 0 each product has factors of its own. Engines that run plain torch on a CPU have them too.
    (`Gemm` is the product of a serving engine, which lays weights out in advance.)
    """

    family: ClassVar[str] = "matmul"

    m: Num
    n: Num
    k: Num
    batch: Num
    shared: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of `batch` images with extents such as "56x56", in one to three dimensions, channels first.

    `input` and `output` are the extents of one image. A transposed one widens its input.
    """

    family: ClassVar[str] = "convolution"

    batch: Num
    in_channels: int
    out_channels: int
    groups: int
    window: str  # extents, such as "3x3"
    input: str
    output: str
    stride: str
    dilation: str
    transposed: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Streaming:
    """A memory-bound kernel of a network, by torch's name: pooling, norm, softmax, pointwise, reduction, copy, ....

    `width` is the number of elements that share one mean where the kernel computes means, else 0. Bytes read include
    parameters.
    """

    family: ClassVar[str] = "streaming"

    kind: str  # as in catalogs/networks/shapes.py
    operator: str  # as torch calls it, such as "native_layer_norm", "relu_", "max_pool2d_with_indices"
    elements: Num  # written
    width: Num
    read_bytes: Num
    written_bytes: Num
    dtype: str


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """The launch of `kernels` small kernels by the host, from the modules of a network or by calls of the functions.

    The difference of the two is what Python and the modules add to each call. The kind "generate CLASS" is a decode
    step of `generate` of transformers with `kernels` layers of a class of models.
    """

    family: ClassVar[str] = "host_launch"

    kind: str  # "modules" | "calls" | "generate CLASS"
    kernels: Num


Operator = (
    Gemm
    | GroupedGemm
    | PrefillAttention
    | DecodeAttention
    | NonCausalAttention
    | MlaModule
    | LinearAttentionScan
    | Elementwise
    | Collective
    | Matmul
    | Convolution
    | Streaming
    | HostLaunch
)

#: Operator class by family name.
OPERATOR_OF: Final[dict[str, type[Operator]]] = {op.family: op for op in get_args(Operator)}


def window_pairs(q: Num, context: Num, window: Num | None) -> npt.NDArray[np.float64]:
    """Return the query-key pairs of a chunk of `q` tokens after `context`.

    This is the integral of min(context + t, window) for t in 0..q. With a window of None or 0, a query attends to all
    keys. The result has the broadcast shape of the arguments.
    """
    everything = np.asarray(q * (context + np.asarray(q) / 2.0), dtype=np.float64)
    if window is None:
        return everything
    rising = np.clip(window - np.asarray(context, dtype=np.float64), 0.0, q)  # queries that still attend to every key
    inside = rising * (context + rising / 2.0) + (q - rising) * window
    return np.where(np.asarray(window) > 0, inside, everything)
