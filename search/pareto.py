"""Running selections over a stream of plans: the best few, and the front of time against memory.

Both are merges: what is kept so far together with a chunk's rows, selected again. Equal plans
rank by their canonical order (`dse.plan.AXES`), so the outcome does not depend on how the stream
was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.plan import AXES, PlanTable

FloatArray = NDArray[np.float64]
Index = NDArray[np.intp]


def canonical_rank(table: PlanTable) -> NDArray[np.int64]:
    """(P,) position of each plan in the canonical order of its space: codes read as one number."""
    rank = np.zeros(len(table), dtype=np.int64)
    for axis in AXES:
        count = len(table.values[axis])
        if count > 1:
            rank = rank * count + table.codes[axis]
    return rank


def front_rows(time_s: FloatArray, memory_bytes: FloatArray, rank: NDArray[np.int64]) -> Index:
    """Rows that no other row beats in one of time and memory without losing in the other.

    Of rows that are equal in both, the first in canonical order stands for all.

    Returns:
        (F,) row numbers, memory ascending and time descending.
    """
    order = np.lexsort((rank, time_s, memory_bytes))
    fastest_before = np.minimum.accumulate(np.concatenate(([np.inf], time_s[order][:-1])))
    return order[time_s[order] < fastest_before]


def best_rows(time_s: FloatArray, rank: NDArray[np.int64], count: int) -> Index:
    """(K,) the `count` fastest rows, fastest first, ties in canonical order."""
    return np.lexsort((rank, time_s))[:count]


@dataclass(frozen=True, slots=True)
class Priced:
    """Plans with what they cost.

    Args:
        table: P plans.
        time_s: (P,) step time.
        memory_bytes: (P,) peak of the worst stage.
    """

    table: PlanTable
    time_s: FloatArray
    memory_bytes: FloatArray

    def __len__(self) -> int:
        return len(self.time_s)

    def take(self, index: Index | NDArray[np.bool_]) -> Priced:
        """The rows that `index` selects."""
        return Priced(self.table.take(index), self.time_s[index], self.memory_bytes[index])

    @staticmethod
    def joined(parts: Sequence[Priced]) -> Priced:
        """All rows of `parts`, which share one dictionary of values."""
        codes = {axis: np.concatenate([p.table.codes[axis] for p in parts]) for axis in AXES}
        return Priced(
            PlanTable(parts[0].table.values, codes),
            np.concatenate([part.time_s for part in parts]),
            np.concatenate([part.memory_bytes for part in parts]),
        )


class Incumbents:
    """The best `count` plans and the front of all plans seen so far."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.best: Priced | None = None
        self.front: Priced | None = None

    @property
    def bar_s(self) -> float:
        """A plan slower than this cannot enter the best."""
        if self.best is None or len(self.best) < self.count:
            return np.inf
        return float(self.best.time_s[-1])

    def front_time_s(self, memory_bytes: FloatArray) -> FloatArray:
        """(P,) fastest time kept so far at no more than this memory; infinite where there is
        none.
        """
        if self.front is None:
            return np.full(len(memory_bytes), np.inf)
        place = np.searchsorted(self.front.memory_bytes, memory_bytes, side="right")
        return np.concatenate(([np.inf], self.front.time_s))[place]

    def may_enter(self, time_s: FloatArray, memory_bytes: FloatArray) -> NDArray[np.bool_]:
        """(P,) whether a plan that takes at least `time_s` could enter the best or the front.

        Equality passes: a tie may come first in canonical order.
        """
        return (time_s <= self.bar_s) | (time_s <= self.front_time_s(memory_bytes))

    def merge(self, fresh: Priced) -> None:
        """Let the rows of `fresh` compete with what is kept."""
        fresh = fresh.take(self.may_enter(fresh.time_s, fresh.memory_bytes))
        if not len(fresh):
            return
        pool = fresh if self.best is None else Priced.joined([self.best, fresh])
        self.best = pool.take(best_rows(pool.time_s, canonical_rank(pool.table), self.count))
        pool = fresh if self.front is None else Priced.joined([self.front, fresh])
        rank = canonical_rank(pool.table)
        self.front = pool.take(front_rows(pool.time_s, pool.memory_bytes, rank))
