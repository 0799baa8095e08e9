"""Seconds of the attention core on one chip: fused (flash), and unfused with stored scores.

Fused, per head and per pair of query and key that a mask leaves [1, 2]:

    matrix work  4 d FLOP forward, 10 d backward (the scores are computed again)
    softmax      a number of vector operations a pair, of which the exponential is the slowest
    t = max(matrix + softmax, bytes / (W * eta_memory)) / occupancy + start

Blocks of 128 queries of one head are spread over the cores. Few blocks leave cores idle:
occupancy is `1 / (1 + o / (blocks per core))`. A causal mask still computes the whole of a block
on the diagonal, which adds `diagonal` keys to every query. Head sizes are padded to a multiple
of 32. Older implementations do the same work at a lower rate, `attention_relative_rate.<name>`.

Not covered: learned sparsity, paged caches, decoding with one query.

References: [1] Dao, FlashAttention-2, arXiv 2307.08691; [2] Shah et al., FlashAttention-3, arXiv
2407.08608 (exponential throughput); [3] Korthikanti et al., arXiv 2205.05198 (unfused scores).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import UnsupportedError
from hwmodels.kernels import matmul
from hwmodels.kernels.parts import (
    KernelParts,
    Values,
    element_bytes,
    is_systolic,
    parameter,
    peak,
    shaped,
)
from hwmodels.table import FloatArray, HardwareTable

Direction = Literal["forward", "backward"]

CURRENT = "current"
QUERY_BLOCK = 128.0
_HEAD_MULTIPLE = 32.0
_FLOP_PER_PAIR = {"forward": 4.0, "backward": 10.0}  # times head size; backward has 5 products
# Backward reads q, k, v, o and the output's gradient, and writes three gradients.
_TENSOR_PASSES = {"forward": 1.0, "backward": 2.5}
# Bytes a score and direction of scale, mask, softmax and dropout with stored fp16 scores.
UNFUSED_PASS_BYTES = {"forward": 13.0, "backward": 19.0}


def parts(
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
    direction: Direction = "forward",
    implementation: str = CURRENT,
) -> KernelParts:
    """The terms of fused attention.

    Args:
        hw: H hardware rows.
        batch: Sequences, broadcast to S; so are all sizes.
        heads: Query heads on this chip.
        kv_heads: Key and value heads on this chip.
        seq_q: Queries a sequence.
        seq_kv: Keys a sequence.
        head_dim: Head size.
        pairs_fraction: Share of the seq_q x seq_kv pairs that the mask keeps: about one half for
            causal, less for a window, 1 without a mask.
        dtype: Element type, a key of the chip's peaks.
        direction: `forward` or `backward`.
        implementation: `current` (the fused kernel that the parameters were fitted on), or an
            older one that the chip states a relative rate for: `flash1`, `triton`, `xformers`.

    Returns:
        Terms of shape (H, *S), seconds.

    Raises:
        UnsupportedError: Unknown dtype or direction, or a chip without a peak for the dtype.
    """
    _check_direction(direction)
    if is_systolic(hw):
        from hwmodels.accelerator import gemm  # it builds on this package

        return gemm.attention_parts(
            hw,
            batch,
            heads,
            kv_heads,
            seq_q,
            seq_kv,
            head_dim,
            pairs_fraction=pairs_fraction,
            dtype=dtype,
            direction=direction,
        )
    (b, a, kv, sq, skv, d, fraction), ndim = shaped(
        batch, heads, kv_heads, seq_q, seq_kv, head_dim, pairs_fraction
    )
    rate = peak(hw, dtype, ndim) * parameter(hw, "attention_efficiency", ndim)
    softmax_flop = parameter(hw, "attention_softmax_flop_per_pair", ndim)
    if direction == "backward":
        ratio = parameter(hw, "attention_backward_ratio", ndim)
        rate, softmax_flop = rate * ratio, softmax_flop / ratio
    diagonal = parameter(hw, "attention_diagonal", ndim)
    computed = b * a * sq * skv * np.minimum(1.0, fraction + diagonal / skv)
    padded = np.ceil(d / _HEAD_MULTIPLE) * _HEAD_MULTIPLE
    matrix_s = computed * _FLOP_PER_PAIR[direction] * padded / rate
    softmax_s = computed * softmax_flop / hw.column("vector_flop_per_s", ndim)

    blocks = b * a * np.ceil(sq / QUERY_BLOCK)
    idle = parameter(hw, "attention_block_occupancy", ndim) * hw.column("num_cores", ndim) / blocks
    compute_s = (matrix_s + softmax_s) * (1.0 + idle)
    if implementation != CURRENT:
        compute_s = compute_s / parameter(hw, f"attention_relative_rate.{implementation}", ndim)

    memory_rate = hw.column("memory_bytes_per_s", ndim) * parameter(hw, "memory_efficiency", ndim)
    nbytes = _tensor_bytes(b, a, kv, sq, skv, d, dtype=dtype, direction=direction)
    memory_s = np.broadcast_to(nbytes / memory_rate, compute_s.shape)
    start_s = np.broadcast_to(parameter(hw, "attention_start_s", ndim), compute_s.shape)
    return KernelParts(compute_s=compute_s, memory_s=memory_s, start_s=start_s)


def seconds(
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
    direction: Direction = "forward",
    implementation: str = CURRENT,
) -> FloatArray:
    """(H, *S) seconds of fused attention in one direction; arguments as in `parts`."""
    return parts(
        hw,
        batch,
        heads,
        kv_heads,
        seq_q,
        seq_kv,
        head_dim,
        pairs_fraction=pairs_fraction,
        dtype=dtype,
        direction=direction,
        implementation=implementation,
    ).seconds


def bound(
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
    direction: Direction = "forward",
    implementation: str = CURRENT,
) -> NDArray[np.str_]:
    """(H, *S) what limits fused attention: `compute`, `memory` or `launch`."""
    return parts(
        hw,
        batch,
        heads,
        kv_heads,
        seq_q,
        seq_kv,
        head_dim,
        pairs_fraction=pairs_fraction,
        dtype=dtype,
        direction=direction,
        implementation=implementation,
    ).bound()


def roofline_seconds(
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
    direction: Direction = "forward",
) -> FloatArray:
    """(H, *S) seconds at the dense peak and the nominal memory rate; no prediction beats it."""
    _check_direction(direction)
    (b, a, kv, sq, skv, d, fraction), ndim = shaped(
        batch, heads, kv_heads, seq_q, seq_kv, head_dim, pairs_fraction
    )
    flop = b * a * sq * skv * fraction * d * _FLOP_PER_PAIR[direction]
    nbytes = _tensor_bytes(b, a, kv, sq, skv, d, dtype=dtype, direction=direction)
    fastest: FloatArray = np.maximum(
        flop / peak(hw, dtype, ndim), nbytes / hw.column("memory_bytes_per_s", ndim)
    )
    return fastest


def unfused_seconds(
    hw: HardwareTable,
    batch: Values,
    heads: Values,
    kv_heads: Values,
    seq_q: Values,
    seq_kv: Values,
    head_dim: Values,
    *,
    dtype: str,
    direction: Direction = "forward",
    pass_bytes_per_score: float | None = None,
    pass_launches: float = 1.0,
) -> FloatArray:
    """(H, *S) seconds of attention that stores its scores [3].

    The full square is computed whatever the mask: batched products and passes over the scores.
    Keys and values are repeated to all query heads, as unfused code does, so that `kv_heads` only
    says what is repeated.

    Args:
        hw: H hardware rows.
        batch: Sequences, broadcast to S; so are all sizes.
        heads: Query heads on this chip.
        kv_heads: Key and value heads on this chip.
        seq_q: Queries a sequence.
        seq_kv: Keys a sequence.
        head_dim: Head size.
        dtype: Element type, a key of the chip's peaks.
        direction: `forward` or `backward`.
        pass_bytes_per_score: Traffic of the passes between the products; the direction's
            `UNFUSED_PASS_BYTES` if None.
        pass_launches: Kernels that make these passes.

    Raises:
        UnsupportedError: Unknown dtype or direction, or a chip without a peak for the dtype.
    """
    _check_direction(direction)
    (b, a, _, sq, skv, d), ndim = shaped(batch, heads, kv_heads, seq_q, seq_kv, head_dim)
    if direction == "forward":
        products = [(sq, skv, d), (sq, d, skv)]
    else:
        products = [(sq, skv, d), (sq, d, skv), (skv, d, sq), (skv, d, sq)]
    total = sum(matmul.seconds(hw, m, n, k, b * a, dtype=dtype) for m, n, k in products)
    per_score = UNFUSED_PASS_BYTES[direction]
    if pass_bytes_per_score is not None:
        per_score = pass_bytes_per_score
    memory_rate = hw.column("memory_bytes_per_s", ndim) * parameter(hw, "memory_efficiency", ndim)
    passes_s = b * a * sq * skv * per_score / memory_rate
    return total + passes_s + pass_launches * parameter(hw, "pointwise_start_s", ndim)


def _check_direction(direction: str) -> None:
    if direction not in _FLOP_PER_PAIR:
        raise UnsupportedError(
            f"unknown direction {direction!r}",
            field="direction",
            value=direction,
            allowed=list(_FLOP_PER_PAIR),
        )


def _tensor_bytes(
    b: FloatArray,
    a: FloatArray,
    kv: FloatArray,
    sq: FloatArray,
    skv: FloatArray,
    d: FloatArray,
    *,
    dtype: str,
    direction: Direction,
) -> FloatArray:
    """(*S,) bytes of queries, outputs, keys and values, once forward and 2.5 times backward."""
    tensors = 2.0 * b * sq * a * d + 2.0 * b * skv * kv * d
    return element_bytes(dtype) * _TENSOR_PASSES[direction] * tensors
