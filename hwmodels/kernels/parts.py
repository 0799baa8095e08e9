"""What every kernel model returns, and how it reads a hardware row.

A kernel's time is `max(compute, memory) + start`: the arithmetic and the traffic overlap, the
launch does not. Shapes: operator arguments broadcast to `S`, results are (H, *S).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import UnsupportedError
from hwmodels.table import FloatArray, HardwareTable, IntArray

Values: TypeAlias = float | int | FloatArray | IntArray

# Bytes of a stored element. Low precision is read as stored and written back in 16 bit.
ELEMENT_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5}
LIMITS = ("compute", "memory", "launch")


@dataclass(frozen=True, slots=True)
class KernelParts:
    """The terms of a kernel's time, each (H, *S) seconds."""

    compute_s: FloatArray
    memory_s: FloatArray
    start_s: FloatArray

    @property
    def seconds(self) -> FloatArray:
        """(H, *S) seconds of the kernel."""
        total: FloatArray = np.maximum(self.compute_s, self.memory_s) + self.start_s
        return total

    def take(self, places: NDArray[np.intp]) -> KernelParts:
        """The same terms for operators picked by `places` along the last axis."""
        return KernelParts(
            self.compute_s[..., places], self.memory_s[..., places], self.start_s[..., places]
        )

    def bound(self) -> NDArray[np.str_]:
        """(H, *S) the largest term: `compute`, `memory` or `launch`."""
        largest = np.argmax(np.stack([self.compute_s, self.memory_s, self.start_s]), axis=0)
        named: NDArray[np.str_] = np.asarray(LIMITS)[largest]
        return named


def is_systolic(hw: HardwareTable) -> bool:
    """Whether the rows are systolic designs, which bring a cycle model of their own."""
    return "kernel.systolic_rows" in hw.chip


def parameter(hw: HardwareTable, name: str, ndim: int) -> FloatArray:
    """The kernel parameter `name` of every row, shaped (H, 1, ..., 1) with `ndim` axes.

    Raises:
        UnsupportedError: A row of the table brings no such parameter.
    """
    column = f"kernel.{name}"
    if column not in hw.chip:
        raise UnsupportedError(f"no kernel parameter {name!r} in the hardware table", field=column)
    return hw.column(column, ndim)


def peak(hw: HardwareTable, dtype: str, ndim: int) -> FloatArray:
    """The dense peak of `dtype`, FLOP/s, shaped (H, 1, ..., 1) with `ndim` axes.

    Raises:
        UnsupportedError: A chip of the table has no matrix unit for `dtype`.
    """
    column = f"peak_flop_per_s.{dtype}"
    if column not in hw.chip:
        known = sorted(c.partition(".")[2] for c in hw.chip if c.startswith("peak_flop_per_s."))
        raise UnsupportedError(
            f"no peak for {dtype} in the hardware table", field=column, value=dtype, allowed=known
        )
    return hw.column(column, ndim)


def element_bytes(dtype: str) -> float:
    """Bytes of a stored element of `dtype`.

    Raises:
        UnsupportedError: The kernel models do not know the dtype.
    """
    if dtype not in ELEMENT_BYTES:
        raise UnsupportedError(
            f"unknown dtype {dtype!r}", field="dtype", value=dtype, allowed=list(ELEMENT_BYTES)
        )
    return ELEMENT_BYTES[dtype]


def shaped(*arguments: Values) -> tuple[list[FloatArray], int]:
    """The arguments as float arrays of their common shape S, and the axes of a result (H, *S)."""
    arrays = np.broadcast_arrays(*(np.asarray(argument, dtype=float) for argument in arguments))
    return list(arrays), arrays[0].ndim + 1
