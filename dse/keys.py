"""Distinct combinations of a few plan axes, found without sorting the plans.

A block's cost depends on tp, cp, the micro-batch and a few more axes: hundreds of combinations
under a million plans. Each combination packs into one integer by the axes' codes; a table over
all packed values (which are few, because codes are dense) marks those that occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.plan import IntArray, PlanTable

DENSE_LIMIT = 1 << 22
"""Packed values up to this many are counted in a dense table (4 MiB of flags); above, they are
sorted.
"""


@dataclass(frozen=True, slots=True)
class Keys:
    """K distinct combinations.

    Args:
        columns: Axis to (K,) integers.
        inverse: (P,) position of each plan's combination.
    """

    columns: dict[str, IntArray]
    inverse: NDArray[np.intp]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def distinct(table: PlanTable, axes: Sequence[str]) -> Keys:
    """The distinct combinations of `axes` in `table`, in ascending packed order."""
    packed = np.zeros(len(table), dtype=np.int64)
    size = 1
    for axis in axes:
        count = len(table.values[axis])
        if count > 1:
            packed *= count
            packed += table.codes[axis]
            size *= count
    if size <= DENSE_LIMIT:
        seen = np.zeros(size, dtype=bool)
        seen[packed] = True
        found = np.flatnonzero(seen)
        position = np.zeros(size, dtype=np.intp)
        position[found] = np.arange(len(found))
        inverse = position[packed]
    else:
        found, inverse = np.unique(packed, return_inverse=True)
    columns: dict[str, IntArray] = {}
    rest = found.astype(np.int64)
    for axis in reversed(axes):
        count = len(table.values[axis])
        columns[axis] = table.values[axis][rest % count]
        rest = rest // count
    return Keys(columns, inverse)
