"""Distinct combinations of a few plan axes, found without sorting the plans, and tables over them.

A block's cost depends on tp, cp, the micro-batch and a few more axes: hundreds of combinations
under a million plans. Each combination packs into one integer by the axes' codes; a table over all
packed values (which are few, because codes are dense) says which have been met and where their
costs are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dse.plan import IntArray, PlanTable

DENSE_LIMIT = 1 << 24
"""Packed values up to this many are looked up in a dense table; above, they are sorted."""

UNKNOWN = -1

Table = TypeVar("Table")


def packed(table: PlanTable, axes: Sequence[str]) -> tuple[NDArray[np.int64], int]:
    """(P,) one integer a combination of `axes`, and how many there could be."""
    code = np.zeros(len(table), dtype=np.int64)
    size = 1
    for axis in axes:
        count = len(table.values[axis])
        if count > 1:
            code *= count
            code += table.codes[axis]
            size *= count
    return code, size


def unpacked(
    found: NDArray[np.int64], values: Mapping[str, IntArray], axes: Sequence[str]
) -> dict[str, IntArray]:
    """Axis to (K,) values of packed combinations."""
    columns: dict[str, IntArray] = {}
    rest = found
    for axis in reversed(axes):
        count = len(values[axis])
        columns[axis] = values[axis][rest % count]
        rest = rest // count
    return columns


class KeyedTable(Generic[Table]):
    """A table of costs over the combinations met so far, growing as plans bring new ones.


    Args:
        axes: Plan axes that the costs depend on.
        build: (K,) columns of those axes to a dataclass of arrays whose last axis is K.
        free: Whether every combination of the axes' values makes sense. If so, and where they are
            few beside the plans at hand, all are priced at first sight: one pass over many keys
            costs less than many passes over few.
    """

    def __init__(
        self,
        axes: Sequence[str],
        build: Callable[[dict[str, IntArray]], Table],
        *,
        free: bool = False,
    ) -> None:
        self.axes = tuple(axes)
        self.build = build
        self.free = free
        self._values: Mapping[str, IntArray] | None = None
        self._position: NDArray[np.intp] | None = None
        self._count = 0
        self._table: Table | None = None

    def lookup(self, plans: PlanTable) -> tuple[Table, NDArray[np.intp]]:
        """The table, and the (P,) place of each plan's combination in it."""
        code, size = packed(plans, self.axes)
        if self._values is not plans.values:
            # Codes of another dictionary of values mean other combinations.
            self._values = plans.values
            self._count = 0
            self._table = None
            dense = size <= DENSE_LIMIT
            self._position = np.full(size, UNKNOWN, dtype=np.intp) if dense else None
        if self._position is None:
            return self._sorted(plans, code)
        places = self._position[code]
        if self._table is None or places.min(initial=0) == UNKNOWN:
            fresh = np.zeros(size, dtype=bool)
            fresh[code[places == UNKNOWN]] = True
            if self.free and size <= len(plans):
                fresh = self._position == UNKNOWN
            found = np.flatnonzero(fresh).astype(np.int64)
            part = self.build(unpacked(found, plans.values, self.axes))
            self._table = part if self._table is None else joined(self._table, part)
            self._position[found] = self._count + np.arange(len(found))
            self._count += len(found)
            places = self._position[code]
        return self._table, places

    def _sorted(self, plans: PlanTable, code: NDArray[np.int64]) -> tuple[Table, NDArray[np.intp]]:
        found, places = np.unique(code, return_inverse=True)
        return self.build(unpacked(found, plans.values, self.axes)), places


def joined(table: Table, part: Table) -> Table:
    """Two tables of one kind, one after the other along their last axis."""
    kind: Any = type(table)
    return kind(  # type: ignore[no-any-return]
        **{
            field.name: np.concatenate(
                [getattr(table, field.name), getattr(part, field.name)], axis=-1
            )
            for field in fields(kind)
        }
    )
