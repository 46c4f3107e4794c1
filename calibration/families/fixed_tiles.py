"""Price block-scaled FP8 products in FlashInfer's kernel of fixed tiles, which no public operator table times.

FlashInfer 0.5 and 0.6 (`gemm_fp8_nt_groupwise` with backend="trtllm"; select_kernel_fp8 in
csrc/trtllm_gemm_runner.cu) choose the tile by n and k alone: 128 columns of the weights and 8, 16 or 32 rows, however
many rows there are. Every tile reads its weights again, so a product of many rows takes as long as so many small ones.
SGLang runs this kernel on Blackwell where `--fp8-gemm-backend flashinfer_trtllm` asks for it.

The constants are those that `python tools/fixed_tiles.py` fits to published times of the kernel on GB200 and B200.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from calibration.operators.cost import broadcast
from calibration.operators.flops_and_bytes import QUANTISE_BYTES
from calibration.operators.operators import Gemm
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

#: The dtype of these products.
FLASHINFER: Final = "fp8_block_flashinfer"

#: The dtype of the same products in the kernels of the public tables.
TABLED: Final = "fp8_block"

#: With fewer values of k, SGLang runs another kernel (flashinfer_gemm_w8a8_block_fp8_linear_with_fallback).
LEAST_K: Final = 256

#: Columns of the weights in a tile (select_kernel_fp8).
TILE_COLUMNS: Final = 128

#: Values of k that a multiprocessor multiplies in one pass of its loop.
TILE_DEPTH: Final = 128

#: Seconds of the start of the kernel. Fitted by `python tools/fixed_tiles.py`.
START_S: Final = 1.49e-6

#: Seconds of the first reads and last writes of the tiles that run at once. Fitted by the same command.
WAVE_S: Final = 2.18e-6

#: Seconds of one pass of the loop, with all multiprocessors at work. Fitted by the same command.
PASS_S: Final = 0.176e-6

#: Share of the bandwidth that the kernel reaches where the weights do not stay in the second-level cache.
MEMORY_SHARE: Final = 0.85

#: Least seconds of the kernel that quantises the input: its time of a few rows in the public tables.
QUANTISE_S: Final = 2e-6


def tile_rows(n: FloatArray, k: FloatArray) -> FloatArray:
    """Return the rows of a tile for products with n x k weights, in their broadcast shape."""
    ratio = np.asarray(n, dtype=np.float64) / k
    return np.where(ratio >= 32.0, 8.0, np.where((ratio <= 2.0) | (np.asarray(n) >= 20000), 32.0, 16.0))


def layer_s(op: Gemm, accelerator: Accelerator) -> FloatArray:
    """Return the seconds of a product and of the kernel that quantises its input, as rows of other products have both.

    Its shape is the broadcast shape of m, n and k.
    """
    m, _, k = broadcast(op.m, op.n, op.k)
    moved_s = QUANTISE_BYTES * m * k / (MEMORY_SHARE * accelerator.memory_bandwidth_bytes_per_s)
    return fixed_tile_s(op, accelerator) + np.maximum(QUANTISE_S, moved_s)


def fixed_tile_s(op: Gemm, accelerator: Accelerator) -> FloatArray:
    """Return the seconds of a product whose input is in FP8, in the broadcast shape of m, n and k."""
    m, n, k = broadcast(op.m, op.n, op.k)
    row_tiles = np.ceil(np.maximum(m, 1.0) / tile_rows(n, k))
    waves = np.ceil(row_tiles * np.ceil(n / TILE_COLUMNS) / accelerator.multiprocessors)
    computing_s = waves * (WAVE_S + PASS_S * np.ceil(k / TILE_DEPTH))
    reads = np.where(n * k > accelerator.cache_bytes, row_tiles, 1.0)
    reading_s = reads * n * k / (MEMORY_SHARE * accelerator.memory_bandwidth_bytes_per_s)
    return START_S + np.maximum(computing_s, reading_s)
