"""Seconds of a dense matrix product on one chip.

    t = max(compute, bytes / (W * eta_memory)) + start
    compute = waves * T_m * T_n * (k / split + k0) * 2 / (sustained rate of one core)

The matrix is cut into tiles, a core takes one tile at a time, and the busiest core sets the
time: edge waste, the last wave and the pipeline's fill (`k0` extra steps a tile, the `k / (k +
k0)` law) are one formula. `k0` is stated for 16 bit. The best of a few tile shapes is taken, and
of a few ways to split the sum over k, whose partial results cost fp32 traffic.

The sustained rate is `peak * efficiency * sustained`: `efficiency` is what the best measured
kernels reach at full clock, `sustained` what the power limit leaves of it on random data in a
continuous run. A benchmark that times one kernel at a time sees a higher clock the shorter its
kernel: with `burst`, time grows from the one to the other as `1 + (1/sustained - 1) t / (t +
boost)`.

Batched products over an odd head size (108) fall back to slow kernels; single products with odd
sides do not, by the rows.

Assumes operands that come from main memory once; pessimistic where they stay in a cache. Not
covered: structured sparsity.

References: NVIDIA, Matrix Multiplication Background User's Guide (tile and wave quantisation);
Osama et al., Stream-K, arXiv 2301.03598 (why tails are partly smoothed).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.kernels.parts import (
    ELEMENT_BYTES,
    KernelParts,
    Values,
    element_bytes,
    is_systolic,
    parameter,
    peak,
    shaped,
)
from hwmodels.table import FloatArray, HardwareTable

# (rows, columns, parts of the sum over k)
TILES = (
    (256.0, 128.0, 1.0),
    (128.0, 256.0, 1.0),
    (128.0, 128.0, 1.0),
    (128.0, 64.0, 1.0),
    (64.0, 128.0, 1.0),
    (64.0, 64.0, 1.0),
    (128.0, 128.0, 2.0),
    (128.0, 128.0, 4.0),
    (64.0, 64.0, 4.0),
    (64.0, 64.0, 8.0),
)
_LARGEST_TILE_EDGE = 1.0 / 256.0 + 1.0 / 128.0
_ALIGNED_BYTES = 16.0  # what one vector load takes; rows that are no multiple of it load slower
_LONGEST_HEAD = 256.0
_PARTIAL_BYTES = 4.0  # partial sums are kept in fp32
_OUTPUT_BYTES = 2.0  # a narrower input is still written in 16 bit


def traffic_bytes(
    m: Values, n: Values, k: Values, batch: Values = 1, *, dtype: str, extra_bytes: Values = 0.0
) -> FloatArray:
    """(*S,) bytes across the memory interface: both operands, the result, and the extra."""
    (m_, n_, k_, batch_, extra), _ = shaped(m, n, k, batch, extra_bytes)
    size = element_bytes(dtype)
    inputs = size * (m_ * k_ + k_ * n_)
    return batch_ * (inputs + max(size, _OUTPUT_BYTES) * m_ * n_) + extra


def parts(
    hw: HardwareTable,
    m: Values,
    n: Values,
    k: Values,
    batch: Values = 1,
    *,
    dtype: str,
    extra_bytes: Values = 0.0,
    burst: bool = False,
) -> KernelParts:
    """The terms of `batch` products of (m, k) by (k, n).

    Args:
        hw: H hardware rows.
        m: Rows of the result, broadcast to S; so are n, k and batch.
        n: Columns of the result.
        k: Length of the sum.
        batch: Equal, independent products in one launch: heads, or experts of a grouped matmul.
        dtype: Element type, a key of the chip's peaks.
        extra_bytes: Further traffic of the launch, such as 8 bytes an element of the result for
            accumulating into fp32 gradients.
        burst: The kernel is timed alone, as benchmarks do, and not inside a training step.

    Returns:
        Terms of shape (H, *S), seconds.

    Raises:
        UnsupportedError: Unknown dtype, or a chip without a peak for it.
    """
    if is_systolic(hw):
        from hwmodels.accelerator import gemm  # it builds on this package

        return gemm.parts(hw, m, n, k, batch, dtype=dtype, extra_bytes=extra_bytes, burst=burst)
    (m_, n_, k_, batch_, extra), ndim = shaped(m, n, k, batch, extra_bytes)
    cores = hw.column("num_cores", ndim)
    rate = peak(hw, dtype, ndim) * parameter(hw, f"matmul_efficiency.{dtype}", ndim)
    sustained = parameter(hw, f"matmul_sustained.{dtype}", ndim)
    if not burst:
        rate = rate * sustained
    step = element_bytes(dtype)
    odd = _misaligned(n_, step) | _misaligned(k_, step)
    rate = rate * np.where(odd, parameter(hw, "matmul_misaligned_efficiency", ndim), 1.0)
    head = (_is_head(n_) & _misaligned(n_, step)) | (_is_head(k_) & _misaligned(k_, step))
    slower_head = parameter(hw, "matmul_misaligned_batched_efficiency", ndim)
    rate = rate * np.where(head & (batch_ > 1), slower_head, 1.0)
    memory_rate = hw.column("memory_bytes_per_s", ndim)
    memory_rate = memory_rate * parameter(hw, "matmul_memory_efficiency", ndim)

    faster = _relative_rate(hw, dtype, ndim)
    k0 = parameter(hw, "matmul_k0", ndim) * faster
    tile_half = parameter(hw, "matmul_tile_half", ndim) * faster * step / ELEMENT_BYTES["bf16"]
    exposure = parameter(hw, "matmul_wave_exposure", ndim)
    second = np.full(np.broadcast_shapes(rate.shape, m_.shape), np.inf)
    for rows, columns, split in TILES:
        tiles = np.ceil(m_ / rows) * np.ceil(n_ / columns) * batch_ * split
        share = tiles / cores
        # A tail wave costs a whole one, except for what a persistent scheduler smooths.
        waves = np.maximum(1.0, share + exposure * (np.ceil(share) - share))
        # Small tiles reload operands more often.
        slower = 1.0 + tile_half * (1.0 / rows + 1.0 / columns - _LARGEST_TILE_EDGE)
        flop = 2.0 * rows * columns * (k_ / split + k0)
        busiest = waves * cores * flop * np.maximum(slower, 1.0) / rate
        if split > 1:
            busiest = busiest + 2.0 * _PARTIAL_BYTES * split * batch_ * m_ * n_ / memory_rate
        second = np.minimum(second, busiest)

    if burst:
        boost_s = parameter(hw, "matmul_boost_s", ndim)
        second = second * (1.0 + (1.0 / sustained - 1.0) * second / (second + boost_s))
    nbytes = traffic_bytes(m_, n_, k_, batch_, dtype=dtype, extra_bytes=extra)
    memory_s = np.broadcast_to(nbytes / memory_rate, second.shape)
    start_s = np.broadcast_to(parameter(hw, "matmul_start_s", ndim), second.shape)
    return KernelParts(compute_s=second, memory_s=memory_s, start_s=start_s)


def _misaligned(size: FloatArray, step: float) -> NDArray[np.bool_]:
    return np.asarray((size * step) % _ALIGNED_BYTES != 0)


def _is_head(size: FloatArray) -> NDArray[np.bool_]:
    """Whether a side can be a head size: short and whole, unlike a mean share of tokens."""
    return np.asarray((size <= _LONGEST_HEAD) & (size == np.floor(size)))


def _relative_rate(hw: HardwareTable, dtype: str, ndim: int) -> FloatArray:
    """The peak of `dtype` over the 16-bit one, for which `k0` and `tile_half` are stated.

    Filling a pipeline and loading a tile take the same time at any arithmetic rate, hence more
    elements of the sum at a higher one.
    """
    own = peak(hw, dtype, ndim)
    for reference in ("bf16", "fp16"):
        if f"peak_flop_per_s.{reference}" in hw.chip:
            ratio: FloatArray = own / peak(hw, reference, ndim)
            return ratio
    return np.ones_like(own)


def seconds(
    hw: HardwareTable,
    m: Values,
    n: Values,
    k: Values,
    batch: Values = 1,
    *,
    dtype: str,
    extra_bytes: Values = 0.0,
    burst: bool = False,
) -> FloatArray:
    """(H, *S) seconds of `batch` products of (m, k) by (k, n); arguments as in `parts`."""
    return parts(hw, m, n, k, batch, dtype=dtype, extra_bytes=extra_bytes, burst=burst).seconds


def bound(
    hw: HardwareTable,
    m: Values,
    n: Values,
    k: Values,
    batch: Values = 1,
    *,
    dtype: str,
    extra_bytes: Values = 0.0,
) -> NDArray[np.str_]:
    """(H, *S) what limits the product: `compute`, `memory` or `launch`."""
    return parts(hw, m, n, k, batch, dtype=dtype, extra_bytes=extra_bytes).bound()


def roofline_seconds(
    hw: HardwareTable,
    m: Values,
    n: Values,
    k: Values,
    batch: Values = 1,
    *,
    dtype: str,
    extra_bytes: Values = 0.0,
) -> FloatArray:
    """(H, *S) seconds at the dense peak and the nominal memory rate; no prediction beats it."""
    (m_, n_, k_, batch_, extra), ndim = shaped(m, n, k, batch, extra_bytes)
    nbytes = traffic_bytes(m_, n_, k_, batch_, dtype=dtype, extra_bytes=extra)
    compute_s = 2.0 * m_ * n_ * k_ * batch_ / peak(hw, dtype, ndim)
    fastest: FloatArray = np.maximum(compute_s, nbytes / hw.column("memory_bytes_per_s", ndim))
    return fastest
