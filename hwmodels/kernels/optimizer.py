"""Seconds of a fused (multi-tensor) optimizer step on one chip.

    t = bytes / (W * eta_optimizer) + start

No published row times one; its rate is assumed near that of other passes, with a wide range.
Eager loops over tensors are bound by the host, not by this.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.kernels.parts import KernelParts, Values, parameter, shaped
from hwmodels.kernels.pointwise import roofline_seconds
from hwmodels.table import FloatArray, HardwareTable

__all__ = ["bound", "parts", "roofline_seconds", "seconds"]


def parts(hw: HardwareTable, nbytes: Values) -> KernelParts:
    """The terms of an update that moves `nbytes` (broadcast to S): (H, *S) seconds."""
    (size,), ndim = shaped(nbytes)
    efficiency = parameter(hw, "optimizer_memory_efficiency", ndim)
    memory_s: FloatArray = size / (hw.column("memory_bytes_per_s", ndim) * efficiency)
    start_s = np.broadcast_to(parameter(hw, "pointwise_start_s", ndim), memory_s.shape)
    return KernelParts(compute_s=np.zeros_like(memory_s), memory_s=memory_s, start_s=start_s)


def seconds(hw: HardwareTable, nbytes: Values) -> FloatArray:
    """(H, *S) seconds of an update that moves `nbytes`."""
    return parts(hw, nbytes).seconds


def bound(hw: HardwareTable, nbytes: Values) -> NDArray[np.str_]:
    """(H, *S) what limits the update: `memory` or `launch`."""
    return parts(hw, nbytes).bound()
