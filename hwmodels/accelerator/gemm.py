"""Seconds of matrix products, attention and element-wise passes on a systolic chip.

The same questions, arguments and results as `hwmodels.kernels.matmul`, `.attention` and
`.pointwise`, for rows of a hardware table that bring the columns of `COLUMNS`. The clock is not a
column: it is the bf16 peak over 2 R C arrays, so that a perturbed peak is a perturbed clock.

References:
    [Dao2023] T. Dao, "FlashAttention-2", arXiv:2307.08691: 2 products forward, 5 backward.
    [Shah2024] J. Shah et al., "FlashAttention-3", arXiv:2407.08608: exponentials are a rate of
        their own.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from hwmodels.accelerator.systolic import gemm_cycles
from hwmodels.accelerator.tiling import traffic_bytes
from hwmodels.distinct import distinct
from hwmodels.errors import UnsupportedError
from hwmodels.kernels.attention import UNFUSED_PASS_BYTES
from hwmodels.kernels.parts import KernelParts, Values, element_bytes, parameter, peak, shaped
from hwmodels.table import FloatArray, HardwareTable

COLUMNS = (
    "systolic_rows",
    "systolic_cols",
    "systolic_arrays",
    "scratchpad_bytes",
    "special_op_per_s",
)
"""Kernel parameters that make a row of a hardware table a systolic chip."""

MANY_SHAPES = 64
"""Shapes from which on it pays to look for those that repeat."""
_BASE_DTYPE = "bf16"
_OUTPUT_BYTES = 2.0
_SUM_BYTES = 4.0
# Vector work of a typical pass for each byte moved: a layer norm makes about 8 FLOP and a tanh
# GELU 10 FLOP and one exponential for 4 bytes read and written; a residual sum far less.
_PASS_FLOP_PER_BYTE = 2.0
_PASS_SPECIAL_PER_BYTE = 0.1


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
    """The terms of `batch` products of (m, k) by (k, n); arguments as in `kernels.matmul.parts`.

    Returns:
        Terms of shape (H, *S), seconds.

    Raises:
        UnsupportedError: A chip of the table has no units for `dtype`.
    """
    (m_, n_, k_, batch_, extra), ndim = shaped(m, n, k, batch, extra_bytes)
    if ndim == 2 and len(m_) >= MANY_SHAPES:
        columns = (m_, n_, k_, batch_, extra)
        first, places = distinct(columns)
        if len(first) < len(places):
            m_, n_, k_, batch_, extra = (column[first] for column in columns)
            once = parts(hw, m_, n_, k_, batch_, dtype=dtype, extra_bytes=extra, burst=burst)
            return once.take(places)
    compute_s = _matrix_seconds(hw, m_, n_, k_, batch_, dtype, ndim)
    if burst:
        compute_s = compute_s * parameter(hw, f"matmul_sustained.{dtype}", ndim)
    size = element_bytes(dtype)
    nbytes = extra + traffic_bytes(
        parameter(hw, "scratchpad_bytes", ndim),
        parameter(hw, "systolic_rows", ndim),
        m_,
        n_,
        k_,
        batch_,
        element_bytes=size,
        output_bytes=max(size, _OUTPUT_BYTES),
    )
    memory_s = nbytes / _memory_rate(hw, "matmul_memory_efficiency", ndim)
    start_s = np.broadcast_to(parameter(hw, "matmul_start_s", ndim), compute_s.shape)
    return KernelParts(compute_s=compute_s, memory_s=memory_s, start_s=start_s)


def attention_parts(
    hw: HardwareTable,
    batch: Values,
    heads: Values,
    kv_heads: Values,
    seq_q: Values,
    seq_kv: Values,
    head_dim: Values,
    *,
    pairs_fraction: Values,
    dtype: str,
    direction: Literal["forward", "backward"] = "forward",
) -> KernelParts:
    """The terms of attention, fused where a block fits a core's scratchpad and with stored scores
    elsewhere.

    Fused, a core holds R or more queries with their sums, two buffers of C keys and values, and
    one block of scores; keys and values are read once for each block of queries in flight.
    Unfused, the full square is computed and the scores pass through memory. Products and softmax
    are not overlapped: pessimistic for chips whose compiler pipelines them [Shah2024].

    Arguments and errors as in `kernels.attention.parts`.
    """
    if direction not in UNFUSED_PASS_BYTES:
        raise UnsupportedError(
            f"unknown direction {direction!r}",
            field="direction",
            value=direction,
            allowed=list(UNFUSED_PASS_BYTES),
        )
    (b, a, kv, sq, skv, d, fraction), ndim = shaped(
        batch, heads, kv_heads, seq_q, seq_kv, head_dim, pairs_fraction
    )
    size = element_bytes(dtype)
    rows, cols = parameter(hw, "systolic_rows", ndim), parameter(hw, "systolic_cols", ndim)
    cores = hw.column("num_cores", ndim)
    queries = _queries_on_chip(parameter(hw, "scratchpad_bytes", ndim) / cores, cols, d, size)
    fused = queries >= np.minimum(rows, sq)

    inner = [(sq, skv, d), (sq, d, skv)]  # scores; weighted values [Dao2023]
    if direction == "backward":
        inner += [(sq, skv, d), (skv, d, sq), (skv, d, sq)]
    square_s = sum(
        (_matrix_seconds(hw, m, n, k, b * a, dtype, ndim) for m, n, k in inner),
        start=np.zeros(()),
    )
    # A block on the diagonal of a mask is computed whole.
    kept = np.minimum(1.0, fraction + 0.5 * np.minimum(rows, sq) / skv)
    pairs = b * a * sq * skv * np.where(fused, kept, 1.0)
    softmax_s = np.maximum(
        pairs
        * parameter(hw, "attention_softmax_flop_per_pair", ndim)
        / hw.column("vector_flop_per_s", ndim),
        pairs / parameter(hw, "special_op_per_s", ndim),
    )
    compute_s = square_s * np.where(fused, kept, 1.0) + softmax_s

    tensors = 1.0 if direction == "forward" else 2.5
    cores_a_head = np.maximum(1.0, np.floor(cores / (b * a)))
    rereads = np.ceil(sq / (np.maximum(queries, 1.0) * cores_a_head))
    fused_bytes = size * tensors * 2.0 * b * d * (sq * a + skv * kv * rereads)
    stored_bytes = size * tensors * 2.0 * b * d * (sq * a + skv * a)
    stored_bytes = stored_bytes + b * a * sq * skv * UNFUSED_PASS_BYTES[direction]
    memory_s = np.where(fused, fused_bytes, stored_bytes) / _memory_rate(
        hw, "memory_efficiency", ndim
    )
    start_s = np.broadcast_to(parameter(hw, "attention_start_s", ndim), compute_s.shape)
    return KernelParts(compute_s=compute_s, memory_s=memory_s, start_s=start_s)


def pointwise_parts(hw: HardwareTable, nbytes: Values, launches: Values = 1) -> KernelParts:
    """The terms of an element-wise pass: bytes moved, or the vector and special units behind them.

    Arguments as in `kernels.pointwise.parts`; the work a byte is that of a typical pass (2 FLOP
    and 0.1 exponentials).
    """
    (size, count), ndim = shaped(nbytes, launches)
    memory_s: FloatArray = size / _memory_rate(hw, "memory_efficiency", ndim)
    compute_s = np.maximum(
        size * _PASS_FLOP_PER_BYTE / hw.column("vector_flop_per_s", ndim),
        size * _PASS_SPECIAL_PER_BYTE / parameter(hw, "special_op_per_s", ndim),
    )
    return KernelParts(
        compute_s=compute_s,
        memory_s=memory_s,
        start_s=count * parameter(hw, "pointwise_start_s", ndim),
    )


def _matrix_seconds(
    hw: HardwareTable,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    batch: FloatArray,
    dtype: str,
    ndim: int,
) -> FloatArray:
    if ndim == 2 and len(m) >= MANY_SHAPES:
        columns = (m, n, k, batch)
        first, places = distinct(columns)
        if len(first) < len(places):
            m, n, k, batch = (column[first] for column in columns)
            return _matrix_seconds(hw, m, n, k, batch, dtype, ndim)[:, places]
    rows, cols = parameter(hw, "systolic_rows", ndim), parameter(hw, "systolic_cols", ndim)
    arrays = parameter(hw, "systolic_arrays", ndim)
    base = peak(hw, _BASE_DTYPE, ndim)
    packed = peak(hw, dtype, ndim) / base
    cycles = gemm_cycles(rows, cols, arrays, m, n, k, batch, packed=packed)
    clock_hz = base / (2.0 * rows * cols * arrays)
    clock_hz = clock_hz * parameter(hw, f"matmul_efficiency.{dtype}", ndim)
    clock_hz = clock_hz * parameter(hw, f"matmul_sustained.{dtype}", ndim)
    seconds: FloatArray = cycles / clock_hz
    return seconds


def _memory_rate(hw: HardwareTable, efficiency: str, ndim: int) -> FloatArray:
    rate: FloatArray = hw.column("memory_bytes_per_s", ndim) * parameter(hw, efficiency, ndim)
    return rate


def _queries_on_chip(
    core_bytes: FloatArray, cols: FloatArray, d: FloatArray, size: float
) -> FloatArray:
    """Queries of one head that a core's scratchpad holds beside the blocks they meet; may be
    negative."""
    keys_and_values = 2.0 * (2.0 * cols * d * size)
    a_query = size * d + _SUM_BYTES * d + _SUM_BYTES * cols
    return np.floor((core_bytes - keys_and_values) / a_query)
