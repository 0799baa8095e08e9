"""Cycles that identical systolic arrays need for a matrix product.

The operand with `k` rows and `c` columns stays in the array (R rows, C columns) while `t` rows of
the other operand stream through it. The stationary operand is cut into `folds` of at most R x C;
the next fold is shifted into shadow registers, one row a cycle, behind the running one.

References:
    [Samajdar2020] A. Samajdar et al., "A systematic methodology for characterizing scalability of
        DNN accelerators using SCALE-Sim", ISPASS 2020: one fold without overlap costs 2R + C + T -
        2 cycles.
    [Jouppi2017] N. Jouppi et al., "In-datacenter performance analysis of a tensor processing
        unit", ISCA 2017: shadow weights, partial sums gathered below the array.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.table import FloatArray

MAX_SPLITS = 24
FULL_POOL = 16.0
"""Pieces an array beyond which another cut is not tried: what is uneven is then below 1/16."""


def fold_cycles(
    rows: ArrayLike, cols: ArrayLike, streamed: ArrayLike, folds: ArrayLike
) -> FloatArray:
    """Cycles of one array for a sequence of folds, from the first weight in to the last sum out.

    The first fold is loaded in the open (R); fold i + 1 starts once fold i has streamed its rows
    and the shadow registers are full, max(T, R) later; the last sum leaves the corner R + C - 2
    cycles after the last row has entered. One fold alone gives 2R + C + T - 2 [Samajdar2020].

    Args:
        rows: R, rows of the array (broadcastable with the rest).
        cols: C, columns of the array.
        streamed: T, rows of the moving operand in each fold.
        folds: Pieces of the stationary operand that this array handles; at least 1.

    Returns:
        Cycles, exact integers in floats below 2**53.
    """
    rows, cols = np.asarray(rows, dtype=float), np.asarray(cols, dtype=float)
    streamed, folds = np.asarray(streamed, dtype=float), np.asarray(folds, dtype=float)
    waiting = (folds - 1) * np.maximum(streamed, rows)
    cycles: FloatArray = waiting + streamed + (2 * rows + cols - 2)
    return cycles


def gemm_cycles(
    rows: ArrayLike,
    cols: ArrayLike,
    arrays: ArrayLike,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike = 1.0,
    *,
    packed: ArrayLike = 1.0,
) -> FloatArray:
    """Cycles of `batch` products (m, k) x (k, n) on identical arrays, at the best simple mapping.

    Either factor may stay in the arrays. The moving one is cut into 1, 2, 4, ... pieces, while
    they are longer than the array is deep and the pool is small; pieces, column blocks and batch
    entries form the pool, which is dealt out evenly, all k blocks of an entry staying on one array
    so that its sums need no second pass. Edge loss follows from the ceilings. More arrays only add
    cuts to try and shorten each, hence never take longer.

    Assumes operands arrive in time (`tiling` bounds them) and k is not split between arrays:
    pessimistic where m and n are both small and k is large.

    Args:
        rows, cols: R and C, broadcastable with the shapes.
        arrays: Arrays in the chip.
        m, n, k, batch: Shape of the products.
        packed: Products a cell makes in a cycle (2 for fp8 in a bf16 cell); they extend k.

    Returns:
        Cycles, shaped by broadcasting all arguments.
    """
    rows, cols, arrays, packed, m, n, k, batch = (
        np.asarray(value, dtype=float) for value in (rows, cols, arrays, packed, m, n, k, batch)
    )
    k_blocks = np.ceil(k / (rows * packed))
    first = _one_mapping(rows, cols, arrays, m, n, k_blocks, batch)
    return np.minimum(first, _one_mapping(rows, cols, arrays, n, m, k_blocks, batch))


def _one_mapping(
    rows: FloatArray,
    cols: FloatArray,
    arrays: FloatArray,
    moving: FloatArray,
    still: FloatArray,
    k_blocks: FloatArray,
    batch: FloatArray,
) -> FloatArray:
    blocks = batch * np.ceil(still / cols)
    best = fold_cycles(rows, cols, moving, np.ceil(blocks / arrays) * k_blocks)
    pool, pieces, streamed = blocks, 1.0, moving
    for _ in range(MAX_SPLITS):
        # Which pieces are tried depends on the design and shape alone, so that batches equal
        # scalars.
        worth = (streamed > rows) & (pool < FULL_POOL * arrays)
        if not np.any(worth):
            break
        pieces *= 2.0
        pool, streamed = blocks * pieces, np.ceil(moving / pieces)
        cycles = fold_cycles(rows, cols, streamed, np.ceil(pool / arrays) * k_blocks)
        best = np.where(worth & (cycles < best), cycles, best)
    return best
