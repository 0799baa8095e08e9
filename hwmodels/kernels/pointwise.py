"""Seconds of passes that only move bytes: norms, activations, residuals, casts, permutations.

    t = bytes / (W * eta_memory) + launches * start

Assumes that data comes from main memory; pessimistic for tensors that stay in a last-level
cache.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.kernels.parts import KernelParts, Values, is_systolic, parameter, shaped
from hwmodels.table import FloatArray, HardwareTable


def parts(hw: HardwareTable, nbytes: Values, launches: Values = 1) -> KernelParts:
    """The terms of a pass over `nbytes`, in `launches` kernels.

    Args:
        hw: H hardware rows.
        nbytes: Bytes read and written, broadcast to S.
        launches: Kernels that do it, broadcast to S.

    Returns:
        Terms of shape (H, *S), seconds; no compute term.
    """
    if is_systolic(hw):
        from hwmodels.accelerator import gemm  # it builds on this package

        return gemm.pointwise_parts(hw, nbytes, launches)
    (size, count), ndim = shaped(nbytes, launches)
    rate = hw.column("memory_bytes_per_s", ndim) * parameter(hw, "memory_efficiency", ndim)
    memory_s: FloatArray = size / rate
    start_s = count * parameter(hw, "pointwise_start_s", ndim)
    return KernelParts(compute_s=np.zeros_like(memory_s), memory_s=memory_s, start_s=start_s)


def seconds(hw: HardwareTable, nbytes: Values, launches: Values = 1) -> FloatArray:
    """(H, *S) seconds of a pass over `nbytes` in `launches` kernels."""
    return parts(hw, nbytes, launches).seconds


def bound(hw: HardwareTable, nbytes: Values, launches: Values = 1) -> NDArray[np.str_]:
    """(H, *S) what limits the pass: `memory` or `launch`."""
    return parts(hw, nbytes, launches).bound()


def roofline_seconds(hw: HardwareTable, nbytes: Values) -> FloatArray:
    """(H, *S) seconds at the nominal memory rate; no prediction beats it."""
    (size,), ndim = shaped(nbytes)
    fastest: FloatArray = size / hw.column("memory_bytes_per_s", ndim)
    return fastest
