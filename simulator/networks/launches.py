"""The kernels that a stage launches: its operators one by one, or with chains of memory-bound operators fused.

Operators stand in the order of launch, and a network file states no other data flow. The traffic of a fused chain is
therefore counted from the bytes of its operators: an operator reads from outside what exceeds the output of the one
before it, and only the last output is written. A second input that joins before a norm (the residual of a transformer
block) is written too, because the next block reads the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from calibration.operators.network_operators import converts_nothing
from catalogs.networks.network import SizedOperator, SizedStage
from simulator.networks.execution import Execution
from simulator.networks.written_attention import written_out

#: Kinds that compilers fuse with each other.
FUSED: Final = frozenset({"pointwise", "normalisation", "softmax", "reduction", "copy", "gather", "resize"})

#: Kinds that need a whole row before they can write.
ROWS: Final = frozenset({"normalisation", "softmax", "reduction"})

#: Kinds that compute; all others move bytes.
COMPUTING: Final = frozenset({"gemm", "attention", "convolution"})

#: Bytes that a norm or softmax in 16 bits moves per element under autocast, over those of 16 bits alone: cast to fp32
#: (2 + 4), the norm itself in fp32 (4 + 4) and the cast for the product that follows (4 + 2), against 2 + 2. Fused, the
#: casts are free.
AUTOCAST_TRAFFIC: Final = (2 + 4 + 4 + 4 + 4 + 2) / (2 + 2)

#: Kernels of such a norm or softmax: the cast to fp32, the norm itself, and the cast for the product that follows.
AUTOCAST_KERNELS: Final = 3

#: Kernels of a product or convolution under autocast in eager mode: itself, and the casts of its weight and its bias
#: from fp32. torch keeps a cast only until autocast ends (ATen/autocast_mode.cpp), so that each pass repeats them.
AUTOCAST_PRODUCT_KERNELS: Final = 3


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Kernels that run `times` times in a stage.

    Attributes:
        kind: "gemm", "attention", "convolution", "norm" (rows are reduced) or "stream" (bytes pass through).
        operator: The operator that runs alone, None for kernels that do the work of several or of a part.
        bytes: Traffic of one run, weights included.
        kernels: Number of kernels of one run.
        times: Number of runs in one run of the stage.
        names: The operators that it executes.
    """

    kind: str
    operator: SizedOperator | None
    bytes: float
    kernels: int
    times: int
    names: tuple[str, ...]


def launches(stage: SizedStage, execution: Execution) -> list[KernelLaunch]:
    """Return the kernels of one run of a stage in their order."""
    kept = (op for op in stage.operators if not converts_nothing(op))
    operators = tuple(part for op in kept for part in written_out(op, execution))
    if execution.mode == "eager":
        return [_alone(op, execution) for op in operators]
    return list(_fused(unrolled_edges(operators), execution))


def unrolled_edges(operators: tuple[SizedOperator, ...]) -> tuple[SizedOperator, ...]:
    """Return the same launches with loops that begin after the kernel, not before the memory-bound end of a layer.

    A network file folds equal layers where it finds them, so a body may begin with the residual sum of another layer.
    (ab)^t is a (ba)^(t-1) b: written so, the sum stands after the product that it is fused with.
    """
    found: list[SizedOperator] = []
    for times, group in groupby(operators, key=lambda op: op.times):
        body = tuple(group)
        first = next((i for i, op in enumerate(body) if op.kind not in FUSED), 0)
        if times == 1 or not first:
            found += body
            continue
        lead, rest = body[:first], body[first:]
        found += [replace(op, times=1) for op in lead]
        found += [replace(op, times=times - 1) for op in (*rest, *lead)]
        found += [replace(op, times=1) for op in rest]
    return tuple(found)


def _alone(op: SizedOperator, execution: Execution) -> KernelLaunch:
    moved: float = op.read_bytes + op.written_bytes + op.weights * execution.activation_bytes
    if op.kind in COMPUTING:
        casts = execution.autocast and execution.mode == "eager" and op.weights > 0
        kernels = AUTOCAST_PRODUCT_KERNELS if casts else 1
        return KernelLaunch(op.kind, op, moved, kernels, op.times, (op.name,))
    kind = "norm" if op.kind in ROWS else "stream"
    if execution.autocast and op.kind in ("normalisation", "softmax") and not is_batch_norm(op):
        return KernelLaunch(kind, None, moved * AUTOCAST_TRAFFIC, AUTOCAST_KERNELS, op.times, (op.name,))
    return KernelLaunch(kind, op, moved, 1, op.times, (op.name,))


def _fused(operators: tuple[SizedOperator, ...], execution: Execution) -> Iterator[KernelLaunch]:
    chain: list[SizedOperator] = []
    producer: SizedOperator | None = None
    for op in operators:
        joins = op.kind in FUSED
        if chain and (not joins or chain[-1].times != op.times):
            yield from _chain(chain, producer, execution)
            chain, producer = [], None
        if joins:
            chain.append(op)
        else:
            yield _alone(op, execution)
            producer = op if op.kind in ("gemm", "convolution") else None
    if chain:
        yield from _chain(chain, producer, execution)


def _chain(chain: list[SizedOperator], producer: SizedOperator | None, execution: Execution) -> Iterator[KernelLaunch]:
    """Yield the kernel of a chain, or nothing where the product before it does all of its work."""
    head: list[SizedOperator] = []
    fits = producer is not None and producer.times == chain[0].times and not _gates(chain[0], producer)
    if execution.mode == "tensorrt" and fits:
        while chain and (chain[0].kind == "pointwise" or is_batch_norm(chain[0])):
            head, chain = [*head, chain[0]], chain[1:]
    names = tuple(op.name for op in (*head, *chain))
    joined = _outside_bytes(head, producer.written_bytes if producer else 0)
    if chain:
        kind = "norm" if any(op.kind in ROWS and not is_batch_norm(op) for op in chain) else "stream"
        yield KernelLaunch(kind, None, joined + chain_bytes(chain, execution), 1, chain[0].times, names)
    elif joined:  # the product reads the further inputs itself: traffic without a launch
        yield KernelLaunch("stream", None, joined, 0, head[0].times, names)


def _gates(first: SizedOperator, producer: SizedOperator) -> bool:
    """Return whether the operator after a product takes only a part of its columns, as gated activations do (GEGLU).

    Both parts of a pair are in different tiles of the product, so its kernel cannot combine them. TensorRT fuses them
    from 10.10 on, on Blackwell only (release notes, "GEMM+SwiGLU/GeGLU fusion").
    """
    return first.kind == "pointwise" and first.read_bytes < producer.written_bytes


def _outside_bytes(chain: list[SizedOperator], given: float) -> float:
    total = 0.0
    for op in chain:
        total += max(op.read_bytes - given, 0.0)
        given = op.written_bytes
    return total


def chain_bytes(chain: list[SizedOperator], execution: Execution) -> float:
    """Return the traffic of one run of a fused chain of memory-bound operators."""
    norms = [i for i, op in enumerate(chain) if op.kind in ROWS and not is_batch_norm(op)]
    before = chain[: norms[-1]] if norms else []
    joined = _outside_bytes(before, before[0].written_bytes) if before else 0.0
    kept = min(joined, before[-1].written_bytes) if before else 0.0
    weights = sum(op.weights for op in chain) * execution.activation_bytes
    return _outside_bytes(chain, 0.0) + kept + chain[-1].written_bytes + weights


def is_batch_norm(op: SizedOperator) -> bool:
    """Return whether an operator is a batch norm, which scales channels by constants at inference."""
    return op.kind == "normalisation" and "batch_norm" in op.operator
