"""Bytes that a matrix product moves between memory and scratchpad.

A schedule keeps a tile of the result, or a panel of one factor, in the scratchpad and streams the
rest through two buffers. Every candidate is a schedule that fits, so its traffic cannot fall below
the I/O lower bound, and each tile grows with the scratchpad, so a larger scratchpad never moves
more.

References:
    [Hong1981] J.-W. Hong, H. T. Kung, "I/O complexity: the red-blue pebble game", STOC 1981.
    [Smith2019] T. Smith, B. Lowery, J. Langou, R. van de Geijn, "A tight I/O lower bound for
        matrix multiplication", arXiv:1702.02017: at least 2mnk/sqrt(S) - 2S words with S words on
        chip.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.table import FloatArray

ACCUMULATOR_BYTES = 4.0


def traffic_bytes(
    scratchpad_bytes: ArrayLike,
    depth: ArrayLike,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike = 1.0,
    *,
    element_bytes: ArrayLike = 2.0,
    output_bytes: ArrayLike = 2.0,
) -> FloatArray:
    """Bytes read and written by `batch` products (m, k) x (k, n), at the best of four schedules.

    Assumes that the scratchpads of all cores act as one and share operands over the chip's
    network: optimistic for chips of very many cores.

    Args:
        scratchpad_bytes: Bytes on chip for operands and sums, all cores together.
        depth: Rows of the array, the least depth in k worth streaming.
        m, n, k, batch: Shape of the products.
        element_bytes: Bytes of an element of either factor.
        output_bytes: Bytes of an element of the result as written.

    Returns:
        Bytes, shaped by broadcasting all arguments.
    """
    space, depth, m, n, k, batch, element, output = (
        np.asarray(value, dtype=float)
        for value in (scratchpad_bytes, depth, m, n, k, batch, element_bytes, output_bytes)
    )
    stream = 2.0 * element * np.minimum(depth, k)
    # A tile of the result stays: 4 t^2 + 2 stream t = S.
    side = (np.sqrt(stream**2 + ACCUMULATOR_BYTES * space) - stream) / ACCUMULATOR_BYTES
    tile_m = _whole(np.minimum(side, m))
    tile_n = _whole(np.minimum(side, n))
    wide = _whole((space - stream * tile_m) / (ACCUMULATOR_BYTES * tile_m + stream))
    tall = _whole((space - stream * tile_n) / (ACCUMULATOR_BYTES * tile_n + stream))
    read = np.minimum(
        m * np.ceil(n / wide) + n * np.ceil(m / tile_m),
        m * np.ceil(n / tile_n) + n * np.ceil(m / tall),
    )
    # A panel of one factor stays, all of k deep, and the other factor passes once a panel.
    rows_m, rows_n = np.minimum(depth, m), np.minimum(depth, n)
    panel_n = (space - stream * rows_m) / (element * k + ACCUMULATOR_BYTES * rows_m)
    panel_m = (space - stream * rows_n) / (element * k + ACCUMULATOR_BYTES * rows_n)
    read = np.minimum(read, _panel(m, n, panel_n))
    read = np.minimum(read, _panel(n, m, panel_m))
    moved: FloatArray = batch * (element * k * read + output * m * n)
    return moved


def lower_bound_bytes(
    scratchpad_bytes: ArrayLike,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    element_bytes: float = 2.0,
    output_bytes: float = 2.0,
) -> FloatArray:
    """Bytes that no schedule of one product can avoid: compulsory traffic or [Smith2019], if
    larger.

    The bound counts a word as the smallest of the three element sizes, which can only lower it.
    """
    m, n, k = (np.asarray(value, dtype=float) for value in (m, n, k))
    word = min(element_bytes, output_bytes)
    words = np.asarray(scratchpad_bytes, dtype=float) / word
    compulsory = element_bytes * k * (m + n) + output_bytes * m * n
    reuse = word * (2.0 * m * n * k / np.sqrt(words) - 2.0 * words)
    least: FloatArray = np.maximum(compulsory, reuse)
    return least


def _whole(tile: FloatArray) -> FloatArray:
    return np.maximum(np.floor(tile), 1.0)


def _panel(passing: FloatArray, kept: FloatArray, panel: FloatArray) -> FloatArray:
    """Elements read for each unit of k: `kept` once, `passing` once a panel; infinite if none
    fits."""
    passes = np.ceil(kept / _whole(panel))
    return np.where(panel >= 1.0, kept + passing * passes, np.inf)
