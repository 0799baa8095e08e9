"""Seconds of a two-dimensional convolution on one chip: implicit matrix products, or Winograd.

    t = max(compute, bytes / (W * eta_memory)) + start

Which product each direction is, `hwmodels.kernels.conv_shape` says. Tiles, waves, the fill of a
tile and split sums are those of `matmul`, with its parameters. What differs is stated relative to
it, by precision and direction: `conv_rate`, `conv_strided_rate` (stride over 1), `conv_fill` (of
`matmul_k0`), `conv_tile` (of `matmul_tile_half`). Where these are 1, a 1 x 1 convolution is the
matmul of its size.

The tiles are those that fit the rows. fp32 adds narrow ones, 32 columns wide. The gradient of the
input splits no sums and, in 16 bit, has no small tiles. That of the weights splits its long sum up
to 128 ways; in fp32 its tiles are large or narrow, and 1 x 1 windows run at `conv_pointwise_rate`.

Matrix units take channels in multiples of 16 bytes: other counts are padded, and run at
`conv_misaligned_rate`.

Winograd [1], in fp32, for square windows of 3 or 5 at stride 1. An output tile of e x e takes
(e + R - 1)^2 multiplications where e^2 R^2 were due. Tiles of 4 (4 times fewer at R = 3, 6.25 at
5) go in three passes: operands into the transformed domain, (R + 3)^2 products there, and back.
Tiles of 2 (2.25 times fewer), for windows of 3, transform on the way and move no more than a
direct convolution; the gradient of the weights has none. The fastest way is taken. Rows in 16 bit
nowhere beat the direct count, so none is modelled there.

Grouped and depthwise convolutions run on the vector units, at `conv_grouped_efficiency`, where
matrix units would waste most of a tile; memory bounds them as a rule.

Not covered: FFT, changes of layout (a pass each), activations fused behind, and a library's choice
of a slower algorithm: in the rows twice the batch changes the rate by up to 1.8.

References: [1] Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv
1509.09308.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.kernels import matmul
from hwmodels.kernels.conv_shape import (
    DIRECTIONS,
    Convolution,
    Direction,
    Sizes,
    check_direction,
    product,
    traffic_bytes,
)
from hwmodels.kernels.parts import (
    ELEMENT_BYTES,
    KernelParts,
    element_bytes,
    is_systolic,
    parameter,
    peak,
)
from hwmodels.table import FloatArray, HardwareTable

__all__ = [
    "DIRECTIONS",
    "PRECISIONS",
    "Convolution",
    "Direction",
    "bound",
    "multiplied_flop",
    "parts",
    "roofline_seconds",
    "seconds",
]

PRECISIONS = ("fp16", "fp32")
"""What parameters are stated for: matrix units of any precision, and fp32."""

Product = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
Tiles = tuple[tuple[float, float, float], ...]
_WHOLE: Tiles = tuple(tile for tile in matmul.TILES if tile[2] == 1.0)
_LARGE: Tiles = tuple(tile for tile in _WHOLE if min(tile[:2]) >= 128.0)
_MEDIUM: Tiles = tuple(tile for tile in _WHOLE if max(tile[:2]) >= 128.0)
_NARROW: Tiles = ((256.0, 32.0, 1.0), (128.0, 32.0, 1.0), (64.0, 32.0, 1.0))
_SPLITS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


def _split(tiles: Tiles) -> Tiles:
    return tuple((rows, columns, split) for rows, columns, _ in tiles for split in _SPLITS)


_TILES: dict[tuple[str, Direction], Tiles] = {
    ("fp16", "forward"): matmul.TILES,
    ("fp16", "dgrad"): _MEDIUM,
    ("fp16", "wgrad"): _split(_WHOLE),
    ("fp32", "forward"): matmul.TILES + _NARROW,
    ("fp32", "dgrad"): _WHOLE + _NARROW,
    ("fp32", "wgrad"): _split(_LARGE + _NARROW),
}
_LARGEST_TILE_EDGE = 1.0 / 256.0 + 1.0 / 128.0
_ALIGNED_BYTES = 16.0
_PARTIAL_BYTES = 4.0  # partial sums are kept in fp32
_WINOGRAD_WINDOWS = (3.0, 5.0)
_SEPARATE_EDGE, _FUSED_EDGE, _FUSED_WINDOW = 4.0, 2.0, 3.0  # outputs a side of a tile


def multiplied_flop(conv: Convolution, *, dtype: str) -> FloatArray:
    """(*S,) FLOP of one direction by the algorithm with the fewest multiplications modelled."""
    s = conv.sizes
    edge = s.kernel_h + _SEPARATE_EDGE - 1.0
    fewer = _SEPARATE_EDGE**2 * s.taps / edge**2
    return conv.flop / np.where(_transforms(s, dtype), fewer, 1.0)


def parts(
    hw: HardwareTable, conv: Convolution, *, dtype: str, direction: Direction = "forward"
) -> KernelParts:
    """The terms of one direction of a convolution.

    Args:
        hw: H hardware rows.
        conv: Sizes, of shape S.
        dtype: Element type, a key of the chip's peaks.
        direction: `forward`, `dgrad` (gradient of the input) or `wgrad` (of the weights).

    Returns:
        Terms of shape (H, *S), seconds.

    Raises:
        UnsupportedError: Unknown dtype or direction, or a chip without a peak for the dtype.
    """
    check_direction(direction)
    nbytes = traffic_bytes(conv, dtype=dtype, direction=direction)
    s = conv.sizes
    if is_systolic(hw):
        from hwmodels.accelerator import gemm  # it builds on this package

        multiplied = gemm.parts(hw, *product(s, direction), dtype=dtype)
        moved_s = gemm.pointwise_parts(hw, nbytes).memory_s
        return KernelParts(multiplied.compute_s, moved_s, multiplied.start_s)
    ndim = s.batch.ndim + 1
    own = f"{_precision(dtype)}.{direction}"
    memory_rate = hw.column("memory_bytes_per_s", ndim)
    memory_rate = memory_rate * parameter(hw, f"conv_memory_efficiency.{own}", ndim)
    compute_s = _direct_seconds(hw, s, dtype, direction, memory_rate)
    transforms = _transforms(s, dtype)
    if np.any(transforms):
        faster = np.minimum(compute_s, _winograd_seconds(hw, s, dtype, direction, memory_rate))
        compute_s = np.where(transforms, faster, compute_s)
    if np.any(s.groups > 1):
        rate = hw.column("vector_flop_per_s", ndim)
        rate = rate * parameter(hw, "conv_grouped_efficiency", ndim)
        compute_s = np.where(s.groups > 1, np.minimum(compute_s, conv.flop / rate), compute_s)
    memory_s = np.broadcast_to(nbytes / memory_rate, compute_s.shape)
    start_s = np.broadcast_to(parameter(hw, f"conv_start_s.{own}", ndim), compute_s.shape)
    return KernelParts(compute_s=compute_s, memory_s=memory_s, start_s=start_s)


def seconds(
    hw: HardwareTable, conv: Convolution, *, dtype: str, direction: Direction = "forward"
) -> FloatArray:
    """(H, *S) seconds of one direction of a convolution; arguments as in `parts`."""
    return parts(hw, conv, dtype=dtype, direction=direction).seconds


def bound(
    hw: HardwareTable, conv: Convolution, *, dtype: str, direction: Direction = "forward"
) -> NDArray[np.str_]:
    """(H, *S) what limits the convolution: `compute`, `memory` or `launch`."""
    return parts(hw, conv, dtype=dtype, direction=direction).bound()


def roofline_seconds(
    hw: HardwareTable, conv: Convolution, *, dtype: str, direction: Direction = "forward"
) -> FloatArray:
    """(H, *S) seconds at the dense peak and the nominal memory rate; no prediction beats it.

    Counts the multiplications of the algorithm with the fewest, see `multiplied_flop`.
    """
    nbytes = traffic_bytes(conv, dtype=dtype, direction=direction)
    flop = multiplied_flop(conv, dtype=dtype)
    ndim = flop.ndim + 1
    fastest: FloatArray = np.maximum(
        flop / peak(hw, dtype, ndim), nbytes / hw.column("memory_bytes_per_s", ndim)
    )
    return fastest


def _direct_seconds(
    hw: HardwareTable, s: Sizes, dtype: str, direction: Direction, memory_rate: FloatArray
) -> FloatArray:
    """(H, *S) seconds of the implicit product."""
    ndim = s.batch.ndim + 1
    own = f"{_precision(dtype)}.{direction}"
    rate = _matmul_rate(hw, dtype, ndim) * parameter(hw, f"conv_rate.{own}", ndim)
    strided = parameter(hw, f"conv_strided_rate.{own}", ndim)
    rate = rate * np.where(s.strides > 1, strided, 1.0)
    multiple = 1.0
    if _precision(dtype) == "fp32":
        if direction == "wgrad":
            pointwise = parameter(hw, "conv_pointwise_rate.fp32.wgrad", ndim)
            rate = rate * np.where(s.taps == 1, pointwise, 1.0)
    else:
        multiple = _ALIGNED_BYTES / element_bytes(dtype)
        odd = (s.in_channels / s.groups % multiple) + (s.out_channels / s.groups % multiple)
        rate = rate * np.where(odd > 0, parameter(hw, "conv_misaligned_rate", ndim), 1.0)
    sizes = product(s, direction, multiple=multiple)
    tiles = _TILES[_precision(dtype), direction]
    return _tiled_seconds(hw, sizes, rate, memory_rate, tiles, dtype, direction)


def _winograd_seconds(
    hw: HardwareTable, s: Sizes, dtype: str, direction: Direction, memory_rate: FloatArray
) -> FloatArray:
    """(H, *S) seconds with transforms: in passes of their own, or on the way if that is faster."""
    ndim = s.batch.ndim + 1
    rate = _matmul_rate(hw, dtype, ndim)
    rate = rate * parameter(hw, f"conv_winograd_rate.{direction}", ndim)
    inputs, outputs = s.in_channels / s.groups, s.out_channels / s.groups
    n, k = (inputs, outputs) if direction == "dgrad" else (outputs, inputs)

    patches, points = _patches(s, _SEPARATE_EDGE)
    sizes = (patches, n, k, points * s.groups)
    if direction == "wgrad":
        sizes = (inputs, outputs, patches, points * s.groups)
    separate_s = _tiled_seconds(hw, sizes, rate, memory_rate, _MEDIUM, dtype, direction)
    # Images and weights once as they are, and once written and read transformed.
    images = (s.in_channels + s.out_channels) * (s.pixels + 2.0 * points * patches)
    weights = s.out_channels * inputs * (s.taps + 2.0 * points)
    separate_s = separate_s + element_bytes(dtype) * (images + weights) / memory_rate
    if direction == "wgrad":
        return separate_s

    patches, points = _patches(s, _FUSED_EDGE)
    area = _FUSED_EDGE**2
    sizes = (patches * area, n, k * points / area, s.groups)
    tiles = _TILES[_precision(dtype), direction]
    fused_s = _tiled_seconds(hw, sizes, rate, memory_rate, tiles, dtype, direction)
    fused_s = np.where(s.kernel_h == _FUSED_WINDOW, fused_s, np.inf)
    return np.minimum(separate_s, fused_s)


def _patches(s: Sizes, edge: float) -> tuple[FloatArray, FloatArray]:
    """(*S,) output tiles of `edge` a side, and the multiplications of each a pair of channels."""
    patches = s.batch * np.ceil(s.out_height / edge) * np.ceil(s.out_width / edge)
    return patches, (s.kernel_h + edge - 1.0) ** 2


def _tiled_seconds(
    hw: HardwareTable,
    sizes: Product,
    rate: FloatArray,
    memory_rate: FloatArray,
    tiles: Tiles,
    dtype: str,
    direction: Direction,
) -> FloatArray:
    """(H, *S) seconds of the busiest core with the best of the tiles: the law of `matmul`."""
    m, n, k, batch = sizes
    ndim = m.ndim + 1
    own = f"{_precision(dtype)}.{direction}"
    cores = hw.column("num_cores", ndim)
    faster = _relative_peak(hw, dtype, ndim)
    k0 = parameter(hw, "matmul_k0", ndim) * parameter(hw, f"conv_fill.{own}", ndim) * faster
    tile_half = parameter(hw, "matmul_tile_half", ndim) * faster
    tile_half = tile_half * element_bytes(dtype) / ELEMENT_BYTES["bf16"]
    tile_half = tile_half * parameter(hw, f"conv_tile.{own}", ndim)
    exposure = parameter(hw, "matmul_wave_exposure", ndim)
    best = np.full(np.broadcast_shapes(rate.shape, m.shape), np.inf)
    for rows, columns, split in tiles:
        share = np.ceil(m / rows) * np.ceil(n / columns) * batch * split / cores
        waves = np.maximum(1.0, share + exposure * (np.ceil(share) - share))
        slower = 1.0 + tile_half * (1.0 / rows + 1.0 / columns - _LARGEST_TILE_EDGE)
        flop = 2.0 * rows * columns * (k / split + k0)
        busiest = waves * cores * flop * np.maximum(slower, 1.0) / rate
        if split > 1:
            busiest = busiest + 2.0 * _PARTIAL_BYTES * split * batch * m * n / memory_rate
        best = np.minimum(best, busiest)
    return best


def _transforms(s: Sizes, dtype: str) -> NDArray[np.bool_]:
    """(*S,) where fewer multiplications are modelled."""
    square = (s.kernel_h == s.kernel_w) & np.isin(s.kernel_h, _WINOGRAD_WINDOWS)
    return np.asarray(square & (s.strides == 1) & (_precision(dtype) == "fp32"))


def _matmul_rate(hw: HardwareTable, dtype: str, ndim: int) -> FloatArray:
    rate = peak(hw, dtype, ndim) * parameter(hw, f"matmul_efficiency.{dtype}", ndim)
    return rate * parameter(hw, f"matmul_sustained.{dtype}", ndim)


def _relative_peak(hw: HardwareTable, dtype: str, ndim: int) -> FloatArray:
    """The peak over that of 16 bit, for which the matmul's `k0` and `tile_half` are stated."""
    for reference in ("bf16", "fp16"):
        if f"peak_flop_per_s.{reference}" in hw.chip:
            ratio: FloatArray = peak(hw, dtype, ndim) / peak(hw, reference, ndim)
            return ratio
    return np.ones_like(peak(hw, dtype, ndim))


def _precision(dtype: str) -> str:
    return "fp32" if dtype == "fp32" else "fp16"
