"""The seconds of one kernel of a network on one accelerator, by the kind of its operator.

A convolution is an implicit matrix product. Its arithmetic runs at the utilisation that the measured products of the
same extents reach, times a fitted share (factors.py); its bytes are those of the images, not those of the unfolded
matrix. One with a group for each channel runs on the vector units. In eager mode with channels first, a part of the
convolutions on the matrix units also transpose their input and output. Images that fit into the last-level cache are
still there from the kernel before, and move at the rate of measured kernels of that size.

An implicit product reads a pixel once for each tap of its kernel and each tile of output channels. These reads come
from the last-level cache, so that a convolution with few output channels is bound by its bandwidth, not by arithmetic.

Where the calibration holds the kernel itself (measured.py), its measured time counts instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Final

import numpy as np

from calibration.bundles.bundle import Bundle
from calibration.bundles.lower_clock import Clocked
from calibration.families.elementwise import CACHE_SHARE
from calibration.operators.cost import ROOFLINE, CostSource
from calibration.operators.operators import Elementwise, Gemm
from calibration.operators.roofline import compute_s, roofline_s
from catalogs.networks.network import SizedOperator
from catalogs.networks.shapes import AttentionShape, ConvolutionShape, GemmShape
from simulator.networks.attention_backends import attention_price
from simulator.networks.execution import ACTIVATION_BYTES, Execution
from simulator.networks.factors import EngineFactors, load_factors
from simulator.networks.launches import KernelLaunch
from simulator.networks.measured import measured_cost

#: Smallest columns of a tile of the matrix units; narrower products fill a part of it. A judgement: the narrowest tile
#: of usual kernels.
TILE_COLUMNS: Final = 64

#: Smallest depth of such a tile; shallower products fill a part of it. A judgement, as for `TILE_COLUMNS`.
TILE_DEPTH: Final = 32

#: Output channels of the widest tiles, of which each reads the pixels again. A judgement: the widest tile of usual
#: kernels.
TILE_CHANNELS: Final = 256

#: Bytes of a stream that show the bandwidth of the last-level cache, where they fit into it. A judgement: large beside
#: a launch.
CACHED_STREAMS: Final = (4e6, 8e6, 16e6, 32e6)

#: Number format of the vector units; products in it run there, and those in tf32 on the matrix units.
VECTOR_DTYPE: Final = "fp32"

#: Share of the tf32 or fp32 peak that attention reaches without a 16-bit kernel. A judgement: the efficiency of
#: `prefill_attention` in calibration/families/uncalibrated.py, a median of 16-bit kernels; no table has others.
WIDE_ATTENTION_SHARE: Final = 0.35

#: Share of memory bandwidth that images and weights reach: the efficiency of `streaming` in
#: calibration/families/uncalibrated.py.
IMAGE_SHARE: Final = 0.80

#: Backends that read a mask tensor; engines give the others the lengths of sequences instead.
TAKES_MASKS: Final = (None, "sdpa", "efficient", "tensorrt")

#: The attention kernels that TensorRT takes by itself.
TENSORRT_ATTENTION: Final = "tensorrt"

#: Table of products by precision.
GEMM_DTYPE: Final = {"fp32": "fp32", "tf32": "bf16", "bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "int8": "int8"}

#: Factor of the times in tf32 over those in bf16: its peak is half of that of bf16 on all boards that have it.
TF32_SLOWDOWN: Final = 2.0


@dataclass(frozen=True, slots=True)
class KernelPrice:
    """The seconds of one run of a kernel, their origin (calibration/operators/cost.py), and its watts."""

    seconds: float
    origin: float
    watts: float


@dataclass(slots=True)
class Pricing:
    """Prices of kernels on the accelerator of a bundle under one execution; equal shapes are priced once."""

    bundle: Bundle
    execution: Execution
    factors: EngineFactors = field(default_factory=load_factors)
    clock: float = 1.0
    notices: dict[str, None] = field(default_factory=dict)
    _known: dict[object, KernelPrice] = field(default_factory=dict)
    _cache_rate: float | None = None

    @property
    def source(self) -> CostSource:
        """Return the costs at the clock."""
        return self.bundle if self.clock == 1.0 else Clocked(self.bundle, self.clock)

    def price(self, launch: KernelLaunch) -> KernelPrice:
        """Return the price of one run of a launch.

        Raises:
            InputError: The attention backend is unknown.
        """
        shape = launch.operator.shape if launch.operator is not None else None
        op = launch.operator
        key = (launch.kind, shape, launch.bytes, (op.operator, op.weights, op.dtype) if op else None)
        if key not in self._known:
            self._known[key] = self._price(launch)
        return self._known[key]

    def _price(self, launch: KernelLaunch) -> KernelPrice:
        op = launch.operator
        measured = None if op is None else measured_cost(op, self.execution, self.bundle, self.source)
        if measured is not None:
            return KernelPrice(float(measured.seconds), float(measured.origin), float(measured.watts))
        if op is None:
            return self.stream(launch.bytes, launch.kind, bool(launch.kernels))
        match op.shape:
            case GemmShape():
                return self.product(op.shape, bool(op.weights), self._precision_of(op))
            case AttentionShape():
                return self.attention(op.shape, launch.bytes)
            case ConvolutionShape():
                return self.convolution(op.shape, op)
            case _:
                return self.stream(launch.bytes, launch.kind, launches=True)

    def _precision_of(self, op: SizedOperator) -> str:
        """Return the number format of a product.

        It is fp32 where the network computes this one in fp32. torch quantises the layers of a network, so a product
        without parameters, such as that of a written attention, keeps 16 bits (torchao replaces torch.nn.Linear).
        """
        if op.dtype == "fp32" and self.execution.precision in ("bf16", "fp16"):
            return "fp32"
        layer = bool(op.weights) or self.execution.mode == "tensorrt"
        return self.execution.precision if layer or not self._in_8_bits else "bf16"

    def product(self, shape: GemmShape, shared: bool, precision: str | None = None) -> KernelPrice:
        """Return the price of `shape.batch` products.

        Args:
            shape: The products.
            shared: Whether all have the same second factor, a parameter.
            precision: Their number format, where it is not that of the execution.
        """
        precision = precision or self.execution.precision
        rows = shape.m * shape.batch
        slower = TF32_SLOWDOWN if precision == "tf32" else 1.0
        sized = Gemm(float(rows), float(shape.n), float(shape.k), GEMM_DTYPE[precision])
        cost = self.source.cost(sized)
        seconds = float(cost.seconds) * slower
        if self._in_8_bits and self.execution.mode == "tensorrt":
            cost = self.source.cost(self._in_16_bits(sized))
            seconds = max(float(cost.seconds), float(roofline_s(sized, self.bundle.accelerator)))
            self.notices[
                f"products in {self.execution.precision} under TensorRT: those of 16 bits of the same steps"
            ] = None
        if not shared and shape.batch > 1:  # each has factors of its own, which pass through memory
            size = ACTIVATION_BYTES[precision]
            moved = size * shape.batch * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
            seconds = max(seconds, self.stream(moved, "stream", launches=True).seconds)
        measured = slower == 1.0 and not (self._in_8_bits and self.execution.mode == "tensorrt")
        return KernelPrice(seconds, float(cost.origin) if measured else ROOFLINE, float(cost.watts))

    @property
    def _in_8_bits(self) -> bool:
        return self.execution.precision in ("fp8", "int8")

    def _in_16_bits(self, sized: Gemm) -> Gemm:
        """Return the product in 16 bits that issues as many matrix instructions as one in 8 bits.

        An instruction in 8 bits takes as long and covers as many times the depth as its peak is higher, and the depth
        moves as many bytes. TensorRT scales activations by constants in the kernel before, while the tables in fp8 are
        those of language models, whose kernels find the scale of each token.
        """
        unit = self.bundle.accelerator
        depth = float(sized.k) * unit.flops_for("bf16") / unit.flops_for(sized.dtype)
        return replace(sized, k=depth, dtype="bf16")

    def attention(self, shape: AttentionShape, moved_bytes: float = 0.0) -> KernelPrice:
        """Return the price of an attention that moves at least `moved_bytes`, a mask included.

        Raises:
            InputError: The attention backend is unknown.
        """
        if self.execution.precision in ("fp32", "tf32"):
            self.notices["attention in fp32: a stated share of the peak, not measured"] = None
            unit = self.bundle.accelerator
            tf32 = unit.flops_for("bf16") / TF32_SLOWDOWN
            peak = unit.flops_for(VECTOR_DTYPE) if self.execution.precision == "fp32" else tf32
            watts = self.product(GemmShape(shape.queries, shape.keys, shape.head_dim), shared=True).watts
            return KernelPrice(shape.executed_flops / peak / WIDE_ATTENTION_SHARE / self.clock, ROOFLINE, watts)
        backend = self.execution.attention_backend
        if backend is None and self.execution.mode == "tensorrt":
            backend = TENSORRT_ATTENTION
        found = attention_price(shape, backend, self.bundle, self.source)
        if found.notice:
            self.notices[found.notice] = None
        if shape.masked and backend in TAKES_MASKS:
            reading = moved_bytes / (IMAGE_SHARE * self.bundle.accelerator.memory_bandwidth_bytes_per_s)
            return KernelPrice(max(found.seconds / self.factors.masked_attention_speed, reading), ROOFLINE, found.watts)
        return KernelPrice(found.seconds, found.origin, found.watts)

    def convolution(self, shape: ConvolutionShape, op: SizedOperator) -> KernelPrice:
        """Return the price of a convolution."""
        accelerator, mode = self.bundle.accelerator, self.execution.mode
        moving = self._images_s(op.read_bytes + op.written_bytes, op.weights * self.execution.activation_bytes)
        images = op.read_bytes + op.written_bytes + op.weights * self.execution.activation_bytes
        product = shape.gemm
        if shape.groups > 1 and product.n <= 2:
            peak = accelerator.flops_for(VECTOR_DTYPE) * self.factors.depthwise_share
            floor = self.stream(images, "stream", launches=True)
            return KernelPrice(max(moving, shape.flops / peak / self.clock, floor.seconds), ROOFLINE, floor.watts)
        share = self.factors.convolution_share[mode]
        extents = float(product.m), float(max(product.n, TILE_COLUMNS)), float(max(product.k, TILE_DEPTH))
        sized = Gemm(*extents, GEMM_DTYPE[self.execution.precision])
        # Convolutions in 8 bits are other kernels than the products of language models: the rate in 16 bits, scaled.
        known = replace(sized, dtype="bf16") if self._in_8_bits else sized
        cost = self.source.cost(known)
        utilisation = float(roofline_s(known, accelerator)) / float(cost.seconds)
        slower = TF32_SLOWDOWN if self.execution.precision == "tf32" else 1.0
        arithmetic = slower * product.batch * float(compute_s(sized, accelerator)) / utilisation / share
        if self._in_8_bits:
            self.notices[f"convolutions in {self.execution.precision}: no table; the utilisation of bf16"] = None
        seconds = max(arithmetic, moving, self._taps_s(product), self.stream(0.0, "stream", launches=True).seconds)
        if mode == "eager":
            transposed = 2.0 * (op.read_bytes + op.written_bytes)
            seconds += self.factors.transposed_share * self.stream(transposed, "stream", launches=True).seconds
        return KernelPrice(seconds, ROOFLINE, float(cost.watts))

    def _taps_s(self, product: GemmShape) -> float:
        """Return the seconds in which a convolution reads its pixels from the cache, for each tap and tile."""
        tiles = ceil(product.n / TILE_CHANNELS)
        size = 1 if self._in_8_bits else self.execution.activation_bytes
        return float(product.batch) * product.m * product.k * size * tiles / self._cache_bytes_per_s()

    def _cache_bytes_per_s(self) -> float:
        """Return the bandwidth of the last-level cache, from measured streams that fit into it; infinite without."""
        if "elementwise" not in self.bundle.models:
            return inf
        if self._cache_rate is None:
            fitting = [n for n in CACHED_STREAMS if n <= CACHE_SHARE * self.bundle.accelerator.cache_bytes]
            launch = self.stream(0.0, "stream", launches=True).seconds
            times = [(n, self.stream(n, "stream", launches=True).seconds - launch) for n in fitting]
            self._cache_rate = max((n / seconds for n, seconds in times if seconds > 0.0), default=inf)
        return self._cache_rate

    def stream(self, moved_bytes: float, kind: str, launches: bool) -> KernelPrice:
        """Return the price of a memory-bound kernel; without a launch, its bytes are those of another kernel."""
        if not launches:
            alone = self._images_s(moved_bytes)
            return KernelPrice(alone, ROOFLINE, self.stream(moved_bytes, kind, launches=True).watts)
        op = Elementwise("norm" if kind == "norm" else "activation", 1.0, max(moved_bytes, 1.0))
        cost = self.source.cost(op)
        return KernelPrice(float(cost.seconds), float(np.maximum(cost.origin, 1.0)), float(cost.watts))

    def _images_s(self, image_bytes: float, weight_bytes: float = 0.0) -> float:
        """Return the seconds in which images and weights move: from memory, or images from the cache where they fit."""
        unit = self.bundle.accelerator
        from_memory = 1.0 / (IMAGE_SHARE * unit.memory_bandwidth_bytes_per_s)
        if image_bytes > CACHE_SHARE * unit.cache_bytes:
            return (image_bytes + weight_bytes) * from_memory
        kernel = self.stream(image_bytes, "stream", launches=True).seconds
        cached = kernel - self.stream(0.0, "stream", launches=True).seconds
        return min(cached, image_bytes * from_memory) + weight_bytes * from_memory
