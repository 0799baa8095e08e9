"""Cycles against an array stepped cycle by cycle, and traffic against its lower bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.accelerator.systolic import FULL_POOL, fold_cycles, gemm_cycles
from hwmodels.accelerator.tiling import lower_bound_bytes, traffic_bytes

pytestmark = pytest.mark.fast

SMALL = st.integers(1, 5)
SIZE = st.integers(1, 20_000)


def step_array(streams, weights):
    """Run folds through one weight-stationary array, cycle by cycle, with real numbers.

    Every cycle each cell multiplies what comes from the left by its weight, adds what comes from
    above, and passes both on; the first operand of a new fold swaps the shadow weight in. Weights
    enter at the top, the last row's first, column c delayed by c, one row down a cycle.

    Args:
        streams: A (T, R) matrix a fold.
        weights: A (R, C) matrix a fold.

    Returns:
        The (T, C) products, and the cycles from the first weight in to the last sum out.
    """
    rows, cols = weights[0].shape
    length = streams[0].shape[0]
    results = [np.full((length, cols), np.nan) for _ in weights]
    active = [[None] * cols for _ in range(rows)]
    shadow = [[None] * cols for _ in range(rows)]
    right = [
        [None] * cols for _ in range(rows)
    ]  # (fold, row of the stream, operand) leaving a cell
    down = [[0.0] * cols for _ in range(rows)]
    falling = {}  # (row, col) -> (fold, target row)
    load_start, stream_start = {0: 0}, {}
    missing = sum(result.size for result in results)
    cycle = 0
    while missing:
        fold = len(stream_start)
        if fold < len(weights):
            loaded = fold in load_start and cycle >= load_start[fold] + rows
            free = fold == 0 or cycle >= stream_start[fold - 1] + length
            if loaded and free:
                stream_start[fold] = cycle
                load_start[fold + 1] = cycle
        new_right = [[None] * cols for _ in range(rows)]
        new_down = [[0.0] * cols for _ in range(rows)]
        for r in range(rows):
            for c in range(cols):
                if c:
                    operand = right[r][c - 1]
                else:
                    operand = None
                    for f, begun in stream_start.items():
                        if 0 <= cycle - r - begun < length:
                            operand = (f, cycle - r - begun, streams[f][cycle - r - begun, r])
                if operand is None:
                    continue
                f, line, value = operand
                if active[r][c] is None or active[r][c][0] != f:
                    active[r][c] = shadow[r][c]
                assert active[r][c][0] == f, "a weight is used before it has arrived"
                above = down[r - 1][c] if r else 0.0
                new_right[r][c] = operand
                new_down[r][c] = above + value * active[r][c][1]
                if r == rows - 1:
                    results[f][line, c] = new_down[r][c]
                    missing -= 1
        right, down = new_right, new_down
        falling = {(r + 1, c): packet for (r, c), packet in falling.items()}
        for f, begun in load_start.items():
            for c in range(cols):
                if f < len(weights) and 0 <= cycle - begun - c < rows:
                    falling[0, c] = (f, rows - 1 - (cycle - begun - c))
        for (r, c), (f, target) in list(falling.items()):
            if r == target:
                shadow[r][c] = (f, weights[f][r, c])
                del falling[r, c]
        cycle += 1
    return results, cycle


def dealt_gemm(moving, still, rows, cols, arrays, pieces):
    """Cut a product into folds, deal them to arrays, step each array; the product and the slowest
    array."""
    (m, k), n = moving.shape, still.shape[1]
    length, blocks = -(-m // pieces), -(-n // cols)
    k_blocks = -(-k // rows)
    padded_m = np.zeros((length * pieces, k_blocks * rows))
    padded_m[:m, :k] = moving
    padded_n = np.zeros((k_blocks * rows, blocks * cols))
    padded_n[:k, :n] = still
    tasks = [(piece, block) for piece in range(pieces) for block in range(blocks)]
    share = -(-len(tasks) // arrays)
    product, slowest = np.zeros((length * pieces, blocks * cols)), 0
    for start in range(0, len(tasks), share):
        mine = tasks[start : start + share]
        spans = [(p, b, q) for p, b in mine for q in range(k_blocks)]
        folds = [
            padded_m[p * length : (p + 1) * length, q * rows : (q + 1) * rows] for p, b, q in spans
        ]
        tiles = [
            padded_n[q * rows : (q + 1) * rows, b * cols : (b + 1) * cols] for p, b, q in spans
        ]
        results, cycles = step_array(folds, tiles)
        for (p, b, _), result in zip(spans, results, strict=True):
            product[p * length : (p + 1) * length, b * cols : (b + 1) * cols] += result
        slowest = max(slowest, cycles)
    return product[:m, :n], slowest


@given(SMALL, SMALL, SMALL, SMALL, st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_fold_cycles_equal_a_stepped_array(rows, cols, length, folds, seed):
    """The closed form counts exactly the cycles of an array that also computes the right
    product."""
    rng = np.random.default_rng(seed)
    streams = [rng.integers(-9, 9, (length, rows)).astype(float) for _ in range(folds)]
    weights = [rng.integers(-9, 9, (rows, cols)).astype(float) for _ in range(folds)]
    results, cycles = step_array(streams, weights)
    for stream, weight, result in zip(streams, weights, results, strict=True):
        np.testing.assert_array_equal(result, stream @ weight)
    assert cycles == fold_cycles(rows, cols, length, folds)


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 9),
)
@settings(max_examples=25, deadline=None)
def test_gemm_cycles_equal_the_best_stepped_mapping(rows, cols, arrays, m, n, k):
    """The model's minimum is the least that stepped arrays take over its mappings."""
    rng = np.random.default_rng(m * 100 + n * 10 + k)
    a = rng.integers(-9, 9, (m, k)).astype(float)
    b = rng.integers(-9, 9, (k, n)).astype(float)
    taken = []
    for moving, still in ((a, b), (b.T, a.T)):
        pieces = 1
        while True:
            product, cycles = dealt_gemm(moving, still, rows, cols, arrays, pieces)
            np.testing.assert_array_equal(product, moving @ still)
            taken.append(cycles)
            pool = pieces * -(-still.shape[1] // cols)
            if -(-moving.shape[0] // pieces) <= rows or pool >= FULL_POOL * arrays:
                break
            pieces *= 2
    assert gemm_cycles(rows, cols, arrays, m, n, k) == min(taken)


def test_one_fold_is_the_published_count():
    """A single fold without overlap costs 2R + C + T - 2 cycles, the SCALE-Sim count."""
    # R = C = 128, T = 4096: 2 * 128 + 128 + 4096 - 2 = 4478
    assert fold_cycles(128, 128, 4096, 1) == 4478


def test_large_aligned_product_loses_only_the_fill():
    """8192^3 on one 128 x 128 array: 64 * 64 folds of 8192 rows, plus 382 cycles of fill and
    drain."""
    # 4096 folds * 8192 = 33,554,432; load 128 + skew 128 + 128 - 2 = 382
    assert gemm_cycles(128, 128, 1, 8192, 8192, 8192) == 33_554_432 + 382


@given(
    st.sampled_from([8, 16, 128]),
    st.sampled_from([8, 32, 128]),
    st.integers(1, 600),
    SIZE,
    SIZE,
    SIZE,
)
def test_more_arrays_are_never_slower(rows, cols, arrays, m, n, k):
    """At a fixed clock a further matrix unit never slows a product."""
    counts = np.arange(arrays, arrays + 40, dtype=float)
    cycles = gemm_cycles(rows, cols, counts, m, n, k)
    assert np.all(np.diff(cycles) <= 0)


@given(st.sampled_from([16, 128]), st.integers(1, 64), SIZE, SIZE, SIZE, st.integers(1, 8))
def test_no_product_beats_the_cells(rows, arrays, m, n, k, batch):
    """Cycles times cells is at least the multiplications."""
    cycles = gemm_cycles(rows, rows, arrays, m, n, k, batch)
    assert cycles * arrays * rows * rows >= m * n * k * batch


def test_designs_and_shapes_broadcast_like_scalars():
    """(H, S) at once equals each cell alone, whichever splits the other cells still try."""
    rows, cols = np.array([[16.0], [128.0], [256.0]]), np.array([[32.0], [128.0], [64.0]])
    arrays = np.array([[528.0], [8.0], [1.0]])
    m, n, k = (
        np.array([128.0, 8192, 77]),
        np.array([50_000.0, 128, 3]),
        np.array([512.0, 4096, 9000]),
    )
    together = gemm_cycles(rows, cols, arrays, m, n, k)
    for h in range(3):
        for s in range(3):
            alone = gemm_cycles(rows[h, 0], cols[h, 0], arrays[h, 0], m[s], n[s], k[s])
            assert together[h, s] == alone


def test_packed_products_extend_k():
    """Two fp8 products a cell and cycle halve the blocks along k."""
    # 8192 / 128 = 64 blocks in bf16, 32 in fp8: half the folds
    bf16 = gemm_cycles(128, 128, 1, 8192, 8192, 8192)
    assert gemm_cycles(128, 128, 1, 8192, 8192, 8192, packed=2) - 382 == (bf16 - 382) / 2


@given(
    st.integers(16, 30), st.sampled_from([16, 128]), SIZE, SIZE, SIZE, st.sampled_from([1.0, 2.0])
)
def test_traffic_keeps_the_io_lower_bound(power, depth, m, n, k, element):
    """No tiling moves less than any schedule must."""
    space = 2.0**power
    moved = traffic_bytes(space, depth, m, n, k, element_bytes=element)
    assert moved >= lower_bound_bytes(space, m, n, k, element_bytes=element) * (1 - 1e-12)


@given(st.sampled_from([16, 128]), SIZE, SIZE, SIZE)
def test_more_scratchpad_never_moves_more(depth, m, n, k):
    """Traffic falls, or stays, as the scratchpad grows."""
    space = np.geomspace(2.0**16, 2.0**31, 200)
    assert np.all(np.diff(traffic_bytes(space, depth, m, n, k)) <= 0)


def test_traffic_of_a_product_that_fits_is_compulsory():
    """With everything on chip each operand is read once and the result written once."""
    # 2 * (1024 * 512 + 512 * 2048 + 1024 * 2048) = 7,340,032
    assert traffic_bytes(1e9, 128, 1024, 2048, 512) == 7_340_032


def test_traffic_of_a_square_tile():
    """1 MiB and depth 128: tiles of 399 x 400, each operand read 21 times."""
    # stream 2 * 2 * 128 = 512; side (sqrt(512^2 + 4 * 2^20) - 512) / 4 = 399.9 -> 399;
    # other side (2^20 - 512 * 399) / (4 * 399 + 512) = 400.5 -> 400
    # reads k * (m ceil(n / 400) + n ceil(m / 399)) = 8192 * (8192 * 21 + 8192 * 21)
    expected = 2 * 8192 * (8192 * 21 + 8192 * 21) + 2 * 8192 * 8192
    assert traffic_bytes(2**20, 128, 8192, 8192, 8192) == expected
