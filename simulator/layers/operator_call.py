"""One call of an operator in a step: the operator, its number of executions, and the ranks that it connects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from calibration.operators.flops_and_bytes import ACTIVATION_BYTES as ACT
from calibration.operators.operators import Collective, Elementwise, Gemm, Matmul, Num, Operator
from catalogs.arrays import BoolArray, FloatArray
from catalogs.models.layers import LayerGroup
from simulator.interconnect.collectives import ExpertRouting
from simulator.layers.shard import Shard

#: Operator classes of a time breakdown.
CLASSES: Final = ("gemm", "attention_prefill", "attention_decode", "moe", "collective", "elementwise")

#: Types of matrix products that quantise their 16-bit input in a separate kernel.
QUANTISED: Final = frozenset({"fp8", "fp8_block", "fp8_block_flashinfer", "fp4", "int8", "mxfp4_mxfp8"})

#: Bytes that each kernel of a gated norm in PyTorch moves for a value, in 16 and 32 bits: the gate to 32 bits, its
#: SiLU, the product with the values, the square, the mean of a group, the product with the root, the result to 16 bits,
#: and the product with the weights (vLLM, mamba_mixer2.py: Mixer2RMSNormGated.forward_native).
TORCH_NORM_BYTES: Final = (6, 8, 10, 8, 4, 8, 6, 4)

#: Bytes of a group that each of the two kernels between mean and product moves: epsilon added, reciprocal root.
TORCH_NORM_GROUP_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """`count` executions of one operator in a step."""

    name: str
    kind: str  # operator class of a time breakdown, one of CLASSES
    count: int
    op: Operator
    stride: int = 1  # between the ranks of a collective: neighbours in a data-parallel group are tp accelerators apart
    routing: ExpertRouting | None = None  # set for an exchange with experts; its message is what one rank sends, once
    overlapped_rows: int = 0  # up to this many rows it overlaps with longer kernels, and only its bytes take time
    fused_rows: int = 0  # up to this many rows the kernel before it does its work
    kernels: int = 1  # kernel launches of one execution outside CUDA graphs
    quantised_before: bool = False  # the preceding kernel quantises the input of this matrix product
    skewed: bool = True  # ranks wait for each other before a collective; False: the next one of the layer includes it
    layers: LayerGroup | None = None  # the layers that run it; None: it runs before or after all layers
    runs: BoolArray | bool = True  # where it runs, if the counts of the operator are arrays; broadcasts to their shape
    #: Equal parts of the step, each of which runs it; broadcasts to the shape of the counts.
    parts: FloatArray | float = 1.0
    behind: tuple[OperatorCall, ...] = ()  # kernels of the other half of the step, behind which this exchange is hidden
    #: Share of the highest clock at which it runs, broadcasts to the shape of the counts; None: as in the tables.
    clock: FloatArray | None = None


Calls: TypeAlias = Iterator[OperatorCall]

#: Operator classes that the clock of the multiprocessors determines. Memory and links have clocks of their own.
CLOCKED: Final = frozenset({"gemm", "attention_prefill", "moe"})


@dataclass(frozen=True, slots=True)
class PromptClock:
    """Clocks of steps with prompts at ascending numbers of tokens on a rank, as shares of the highest.

    Shape of both: (nodes,).
    """

    tokens: FloatArray
    share: FloatArray

    def at(self, tokens: Num) -> FloatArray:
        """Return the share of the highest clock for a number of tokens in a step, linear between the nodes."""
        return np.asarray(np.interp(np.asarray(tokens, dtype=np.float64), self.tokens, self.share))

    def slowed(self, calls: Iterable[OperatorCall], tokens: Num) -> list[OperatorCall]:
        """Return the calls of a step with the clock at which they run, which follows from its number of tokens."""
        clock = self.at(tokens)
        return [replace(call, clock=clock) if call.kind in CLOCKED else call for call in calls]


def calls_of(layers: LayerGroup, calls: Iterable[OperatorCall]) -> Calls:
    """Yield the calls marked as those of a group of layers."""
    return (replace(call, layers=layers) for call in calls)


def gemm_call(name: str, count: int, op: Gemm | Matmul) -> OperatorCall:
    """Return a matrix product, with the kernel that quantises its input where its type needs one."""
    return OperatorCall(name, "gemm", count, op, kernels=1 + (op.dtype in QUANTISED))


def elementwise_call(name: str, count: int, kind: str, tokens: Num, token_bytes: float) -> OperatorCall:
    """Return a kernel that reads and writes `token_bytes` bytes for each token."""
    return OperatorCall(name, "elementwise", count, Elementwise(kind, tokens, token_bytes))


def norm_calls(shard: Shard, block: str, norm: str, count: int, tokens: Num) -> list[OperatorCall]:
    """Return the norm before a block and the addition of its output to the residual.

    They are one kernel. With several residual streams (hyper-connections, arXiv 2512.24880) a product gives their
    weights, a kernel reads the streams and writes their mean and its norm, and another kernel adds the output of the
    block to all of them.
    """
    hidden, streams = shard.model.hidden_size, shard.model.residual_streams
    if streams == 1:
        return [elementwise_call(norm, count, "norm", tokens, 4 * hidden * ACT)]
    weights = Gemm(tokens, streams * (2 + streams), streams * hidden, "bf16")
    return [
        gemm_call(f"{block}_stream_weights", count, weights),
        elementwise_call(norm, count, "norm", tokens, (streams + 1) * hidden * ACT),
        elementwise_call(f"{block}_stream_update", count, "norm", tokens, (2 * streams + 1) * hidden * ACT),
    ]


def gated_norm_calls(count: int, tokens: Num, values: int, groups: int, in_torch: bool) -> list[OperatorCall]:
    """Return the norm of `values` values of each token and the gate that multiplies them.

    Args:
        count: Executions in a step.
        tokens: Tokens of the step.
        values: Values of a token on this rank.
        groups: Groups of values that are normalised together.
        in_torch: Whether kernels of PyTorch compute it one after the other; otherwise one kernel does.
    """
    if not in_torch:
        return [elementwise_call("gated_norm", count, "norm", tokens, 3 * values * ACT)]
    # The kind "quantize" is the measured curve of a kernel that reads values and writes them, as each of these does.
    sizes = [values * each for each in TORCH_NORM_BYTES] + 2 * [groups * TORCH_NORM_GROUP_BYTES]
    return [elementwise_call("gated_norm", count, "quantize", tokens, size) for size in sizes]


def all_reduce_calls(shard: Shard, name: str, count: int, tokens: Num, graph: bool) -> list[OperatorCall]:
    """Return the all-reduce of the hidden states over tensor ranks; empty with one rank."""
    if shard.tp == 1:
        return []
    message = tokens * (shard.model.hidden_size * ACT)
    return [OperatorCall(name, "collective", count, Collective("all_reduce", message, shard.tp, graph))]
