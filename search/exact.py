"""Exact search of a plan space: nothing is dropped that could win.

A plan leaves the stream for one of two counted reasons. *memory*: its peak is above what a device
offers. *bound*: a lower bound on its time is above both the slowest plan still among the best
and the fastest plan of the front that needs no more memory. All others are priced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dse.plan import PlanTable
from search.pareto import Incumbents, Priced

FloatArray = NDArray[np.float64]

BOUND_SLACK = 1e-9
"""Relative; a bound and a time are sums in different orders, equal only to rounding."""

PROBE_ROWS = 2_048
"""The most promising rows of a chunk are priced first, so that the others meet a good
incumbent.
"""


class Memory(Protocol):
    """Peak memory of P plans, without the reserve."""

    @property
    def peak_bytes(self) -> FloatArray:
        """(P,) bytes of the stage that needs most."""
        ...

    @property
    def peak_stage(self) -> NDArray[np.integer]:
        """(P,) which stage that is, counted from 0."""
        ...


class Step(Protocol):
    """Step time of P plans on H machines."""

    @property
    def step_time_s(self) -> FloatArray:
        """(H, P) seconds."""
        ...


class Evaluator(Protocol):
    """What the search needs of the step model; row 0 of the hardware is searched."""

    @property
    def usable_bytes(self) -> FloatArray:
        """(H,) bytes that a device offers a plan after the reserve."""
        ...

    def memory(self, table: PlanTable) -> Memory:
        """What the plans need."""
        ...

    def bound_s(self, table: PlanTable) -> FloatArray:
        """(H, P) seconds that no step of the plan can beat."""
        ...

    def evaluate(self, table: PlanTable) -> Step:
        """What the plans take."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """One chunk of a search that prices every plan that fits.

    Args:
        table: P plans.
        fits: (P,) whether memory suffices.
        time_s: (P,) step time, NaN where the plan does not fit.
        memory_bytes: (P,) peak memory.
    """

    table: PlanTable
    fits: NDArray[np.bool_]
    time_s: FloatArray
    memory_bytes: FloatArray


@dataclass(frozen=True, slots=True)
class LeastDemanding:
    """The plan of smallest peak memory, for the message that nothing fits."""

    table: PlanTable
    peak_bytes: float
    stage: int


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of an exact search.

    Args:
        best: The fastest plans, fastest first; None where nothing fits.
        front: Step time against peak memory, memory ascending; None where nothing fits.
        enumerated: Plans of the space.
        evaluated: Plans priced; with `discarded` they sum to `enumerated`.
        discarded: Reason to number of plans.
        least: The least demanding plan; None where the space is empty.
    """

    best: Priced | None
    front: Priced | None
    enumerated: int
    evaluated: int
    discarded: dict[str, int]
    least: LeastDemanding | None


def exact_search(
    model: Evaluator,
    chunks: Iterable[PlanTable],
    *,
    top: int,
    headroom_bytes: float = 0.0,
    every: Callable[[Verdict], None] | None = None,
) -> Found:
    """Search all plans of `chunks`, which share one dictionary of values.

    Args:
        model: The evaluator.
        chunks: The space.
        top: How many of the fastest plans to keep.
        headroom_bytes: Memory to leave free beyond the reserve.
        every: Receives every chunk with all its plans that fit priced; bounds are then not used.
    """
    available_bytes = float(model.usable_bytes[0]) - headroom_bytes
    kept = Incumbents(top)
    enumerated = evaluated = too_large = bounded = 0
    least: LeastDemanding | None = None
    for table in chunks:
        enumerated += len(table)
        memory = model.memory(table)
        peak_bytes = np.asarray(memory.peak_bytes, dtype=float)
        smallest = int(np.argmin(peak_bytes))
        if least is None or peak_bytes[smallest] < least.peak_bytes:
            least = LeastDemanding(
                table.take(np.array([smallest])),
                float(peak_bytes[smallest]),
                int(memory.peak_stage[smallest]),
            )
        fits = peak_bytes <= available_bytes
        fitting = int(np.count_nonzero(fits))
        too_large += len(table) - fitting
        count = 0
        if every is None:
            for priced in _bounded(model, table, peak_bytes, fits, kept):
                kept.merge(priced)
                count += len(priced)
        else:
            priced = _price(model, table, np.flatnonzero(fits), peak_bytes)
            kept.merge(priced)
            count = fitting
            time_s = np.full(len(table), np.nan)
            time_s[fits] = priced.time_s
            every(Verdict(table, fits, time_s, peak_bytes))
        evaluated += count
        bounded += fitting - count
    discarded = {"memory": too_large, "bound": bounded}
    return Found(kept.best, kept.front, enumerated, evaluated, discarded, least)


def _bounded(
    model: Evaluator,
    table: PlanTable,
    peak_bytes: FloatArray,
    fits: NDArray[np.bool_],
    kept: Incumbents,
) -> Iterator[Priced]:
    """Price the rows that the bound cannot rule out, the most promising first.

    The caller merges what it receives into `kept` before it asks for more.
    """
    if not fits.any():
        return
    low_s = model.bound_s(table)[0] * (1.0 - BOUND_SLACK)
    left = np.flatnonzero(fits & kept.may_enter(low_s, peak_bytes))
    if np.isinf(kept.bar_s) and len(left) > 2 * PROBE_ROWS:
        first = np.argpartition(low_s[left], PROBE_ROWS)[:PROBE_ROWS]
        probe = np.sort(left[first])
        yield _price(model, table, probe, peak_bytes)
        left = np.setdiff1d(left, probe, assume_unique=True)
        left = left[kept.may_enter(low_s[left], peak_bytes[left])]
    if len(left):
        yield _price(model, table, left, peak_bytes)


def _price(
    model: Evaluator, table: PlanTable, rows: NDArray[np.intp], peak_bytes: FloatArray
) -> Priced:
    part = table if len(rows) == len(table) else table.take(rows)
    if not len(rows):
        return Priced(part, np.empty(0), np.empty(0))
    time_s = np.asarray(model.evaluate(part).step_time_s[0], dtype=float)
    return Priced(part, time_s, peak_bytes[rows])
