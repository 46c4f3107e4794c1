"""Shapes of networks that are not language models: the operators of the user's networks, and a grid over each family.

A user's network is measured at its default job with the batches of the device, each distinct operator once. Those that
take a noticeable share of a pass come first, and held-out shapes have other batches. The grid covers what other
networks run, with fewer shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np

from calibration.operators.network_operators import TORCH_ATTENTION, NetworkOperator, converts_nothing, network_operator
from calibration.operators.operators import Convolution, NonCausalAttention, Streaming, extents
from calibration.operators.roofline import roofline_s
from calibration.profile.kernels import host_launch
from calibration.profile.session.shape import FIT, HELD_OUT, Shape
from calibration.profile.shapes.size_limits import SizeLimits
from calibration.profile.shapes.sizes import between, with_held_out
from catalogs.hardware.specs import Accelerator
from catalogs.networks.network import NeuralNetwork
from catalogs.units import DTYPE_BYTES

BATCH: Final = "batch"

#: Held-out batches of each of the user's networks.
HELD_OUT_BATCHES: Final = 2

#: Operators with a smaller share of a pass are measured after all others.
MINOR_SHARE: Final = 0.002

#: The least time of a kernel, for shares of a pass.
LAUNCH_S: Final = 5e-6

#: (width, depth) of linear layers: from small encoders to large ones, square, wider and narrower.
PRODUCTS: Final = ((256, 256), (768, 768), (3072, 768), (768, 3072), (1280, 5120), (2048, 2048))

#: Rows of products: one, tokens of images (197 for 14 x 14 patches), and large batches.
ROWS: Final = (1, 64, 197, 1024, 4096)

#: Window, stride, and whether each channel is convolved alone.
WINDOWS: Final = ((1, 1, False), (3, 1, False), (3, 2, False), (7, 2, False), (16, 16, False), (3, 1, True))

#: Sides of the output of a convolution, each with the channels that images of that side have.
MAPS: Final = ((112, 32), (56, 64), (28, 128), (14, 256), (7, 512))

#: (queries, keys) of attention without a mask: squares, text as keys, and pooled queries.
LENGTHS: Final = ((49, 49), (197, 197), (256, 256), (1024, 1024), (4096, 4096), (1024, 77), (4096, 512), (16, 64))

#: Head dimensions of attention.
HEAD_DIMS: Final = (32, 64, 80, 128)

#: Heads of all images of a batch together.
STREAMS: Final = (8, 64)

#: Memory-bound kernels of the grid: kind, torch's name, tensors read for each written one, elements that share a mean.
KERNELS: Final = (
    ("pointwise", "add", 2.0, 0),
    ("pointwise", "mul", 2.0, 0),
    ("pointwise", "relu", 1.0, 0),
    ("pointwise", "gelu", 1.0, 0),
    ("pointwise", "silu", 1.0, 0),
    ("normalisation", "native_layer_norm", 1.0, 768),
    ("normalisation", "native_batch_norm", 1.0, 0),
    ("normalisation", "native_group_norm", 1.0, 4096),
    ("softmax", "_softmax", 1.0, 0),
    ("pooling", "max_pool2d_with_indices", 4.0, 0),
    ("reduction", "mean", 256.0, 0),
    ("copy", "clone", 1.0, 0),
    ("copy", "cat", 1.0, 0),
    ("resize", "upsample_bilinear2d", 0.25, 0),
)

#: Elements of the output of memory-bound kernels: below and beyond the caches.
ELEMENTS: Final = (2**10, 2**14, 2**18, 2**22)


@dataclass(frozen=True, slots=True)
class UserNetworkShapes:
    """The shapes of the user's networks: minor ones take little of the time of a pass, major ones the rest."""

    major: list[Shape]
    minor: list[Shape]


def user_network_shapes(
    networks: Sequence[NeuralNetwork],
    limits: SizeLimits,
    dtypes: Sequence[str],
    accelerator: Accelerator,
    seed: int = 0,
) -> UserNetworkShapes:
    """Return the shapes of the user's networks in each dtype: fitted at the limits' batches, held out at others.

    An operator is minor where all its runs take less than MINOR_SHARE of a pass, by the roofline of `accelerator`.
    """
    draw = np.random.default_rng(seed)
    found = UserNetworkShapes(host_launch.shapes() if networks else [], [])
    for network, dtype in product(networks, dtypes):
        has_batch = any(size.name == BATCH for size in network.sizes)
        batches: list[tuple[int | None, str]] = (
            [(n, FIT) for n in limits.network_batches] if has_batch else [(None, FIT)]
        )
        others = sorted({*range(1, limits.network_batches[-1])} - {*limits.network_batches})
        drawn = draw.choice(others, HELD_OUT_BATCHES, replace=False) if has_batch else ()
        for batch, role in [*batches, *((int(n), HELD_OUT) for n in drawn)]:
            seconds = _operator_s(network, batch, dtype, accelerator)
            least_s = MINOR_SHARE * sum(seconds.values())
            for op, took_s in seconds.items():
                (found.major if took_s >= least_s else found.minor).append(_shape(op, role))
    return found


def _operator_s(
    network: NeuralNetwork, batch: int | None, dtype: str, accelerator: Accelerator
) -> dict[NetworkOperator, float]:
    """Return about how long all runs of each distinct operator of a job take, in the order of the stages."""
    job = {} if batch is None else {BATCH: batch}
    found: dict[NetworkOperator, float] = {}
    for stage in network.at(job, round(DTYPE_BYTES[dtype])):
        for sized in stage.operators:
            op = None if converts_nothing(sized) else network_operator(sized, dtype)
            if op is not None:
                each = float(roofline_s(op, accelerator)) + LAUNCH_S
                found[op] = found.get(op, 0.0) + stage.runs * sized.times * each
    return found


def _shape(op: Any, role: str = FIT) -> Shape:
    return Shape.of(op.family, role, **asdict(op))


def network_grid(limits: SizeLimits, dtype: str, seed: int = 0) -> list[Shape]:
    """Return the shapes that cover networks in general, in one dtype, fitted and held out."""
    draw = np.random.default_rng(seed)
    families = (
        [*_products(limits, dtype)],
        [*_convolutions(limits, dtype)],
        [*_attention(limits, dtype)],
        [*_kernels(dtype)],
    )

    def held_out(of: list[Shape]) -> list[Shape]:
        return with_held_out(of, lambda _: _between(of, draw))

    return [*host_launch.shapes(), *(shape for of in families for shape in held_out(of))]


def _between(shapes: Sequence[Shape], draw: np.random.Generator) -> Shape:
    """Return a held-out shape: a random one of `shapes` with its number of images, rows or bytes changed."""
    shape = shapes[int(draw.integers(len(shapes)))]
    factor = between(1, 4, draw) * 0.5
    grown = {"matmul": ("m",), "convolution": ("batch",), "noncausal_attention": ("sequences",)}
    names = grown.get(shape.family, ("elements", "read_bytes", "written_bytes"))
    fields = {k: max(round(float(v) * factor), 1) if k in names else v for k, v in shape.fields}
    return Shape.of(shape.family, HELD_OUT, **fields)


def _products(limits: SizeLimits, dtype: str) -> Iterator[Shape]:
    for (n, k), rows in product(PRODUCTS, ROWS):
        for times in (1, limits.network_batches[-1]):
            yield Shape.of("matmul", m=rows * times, n=n, k=k, batch=1, shared=1, dtype=dtype)
    for (queries, keys), streams in product(LENGTHS, STREAMS):
        yield Shape.of("matmul", m=queries, n=keys, k=64, batch=streams, shared=0, dtype=dtype)


def _convolutions(limits: SizeLimits, dtype: str) -> Iterator[Shape]:
    for (window, stride, alone), (side, channels) in product(WINDOWS, MAPS):
        for batch in (1, limits.network_batches[-1]):
            padding = 0 if stride == window else window // 2
            image = (side - 1) * stride + window - 2 * padding
            inputs = channels if alone or window < 7 else 3
            op = Convolution(
                batch=batch,
                in_channels=inputs,
                out_channels=channels,
                groups=channels if alone else 1,
                window=extents((window, window)),
                input=extents((image, image)),
                output=extents((side, side)),
                stride=extents((stride, stride)),
                dilation=extents((1, 1)),
                transposed=0,
                dtype=dtype,
            )
            yield _shape(op)


def _attention(limits: SizeLimits, dtype: str) -> Iterator[Shape]:
    for (queries, keys), head_dim, heads in product(LENGTHS, HEAD_DIMS, STREAMS):
        for batch in (1, limits.network_batches[-1]):
            if prod((queries, keys, heads, batch)) <= limits.attention_pairs:
                yield _shape(NonCausalAttention(batch, queries, keys, heads, head_dim, TORCH_ATTENTION, dtype))


def _kernels(dtype: str) -> Iterator[Shape]:
    size = round(DTYPE_BYTES[dtype])
    for (kind, name, tensors, width), elements in product(KERNELS, ELEMENTS):
        statistics = 8 * elements // width if width else 0
        read, written = round(tensors * elements * size), elements * size + statistics
        yield _shape(Streaming(kind, name, elements, width, read, written, dtype))
