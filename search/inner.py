"""The best plan of every design, exactly, for many designs at once.

What does not depend on the hardware is worked out once for a job: the plans, their memory, and by
how much a plan multiplies the seconds of one layer. A batch of designs then needs, each, a small
table of layer costs; the product of the two is a lower bound on every plan's time. Plans that do
not fit a design's memory, and plans whose bound exceeds the time of a plan already priced, are
never priced. The rest are priced in one flat pass: (design, plan) pairs as one column.

Shapes: `H` designs, `P` plans, `N` pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dse.memory import Tables
from dse.plan import AXES, Plan, PlanTable
from dse.rules import Job
from dse.stacks import Stack
from dse.step import MemoryColumns, StepColumns, StepModel
from dse.workload import Workload
from hwmodels.table import FloatArray, HardwareTable, IntArray
from search.exact import BOUND_SLACK
from search.narrowing import Narrowing
from search.pareto import canonical_rank
from search.space import PlanSpace, named_space

DESIGNS_AT_ONCE = 64
"""Their tables and bounds stay in the second-level cache."""
PROBES = 8
"""Plans of the smallest bound that are priced first, to have a time to beat."""
PLANS_AT_ONCE = 1 << 18
PLANS_KEPT = 1 << 21
"""Larger spaces are gone through anew for each call; smaller ones take up to 120 MB."""
UNPRICED = np.inf

Places = NDArray[np.intp]
Table = TypeVar("Table")


@dataclass(frozen=True, slots=True)
class Prepared:
    """Plans that share one dictionary of values, and what of them no hardware changes.

    Args:
        plans: P plans.
        peak_bytes: (P,) peak memory.
        rank: (P,) place in the canonical order.
    """

    plans: PlanTable
    peak_bytes: FloatArray
    rank: IntArray

    def take(self, rows: Places | NDArray[np.bool_]) -> Prepared:
        """Some of the plans."""
        return Prepared(self.plans.take(rows), self.peak_bytes[rows], self.rank[rows])


@dataclass(frozen=True, slots=True)
class BestPlans:
    """The fastest plan of H designs.

    Args:
        step_time_s: (H,), infinite where nothing fits.
        plans: (H, axes) integers of each axis of `dse.plan.AXES`; where nothing fits, those of the
            plan that needs least memory (-1 where the space is empty).
        short_bytes: (H,) bytes that the least demanding plan lacks; negative where it fits.
        enumerated: Plans of the space.
        priced: (design, plan) pairs priced.
    """

    step_time_s: FloatArray
    plans: IntArray
    short_bytes: FloatArray
    enumerated: int
    priced: int


class PlanSolver:
    """The exact best plan, over a named space, of any design with a given number of chips.

    Args:
        workload: What is trained.
        stack: The software stack.
        num_chips: Devices of the job.
        global_batch_size: Sequences a step.
        space: `compact` or `full`.
        narrowing: What the plans may be.
    """

    def __init__(
        self,
        workload: Workload,
        stack: Stack,
        num_chips: int,
        global_batch_size: int,
        *,
        space: str = "compact",
        narrowing: Narrowing | None = None,
    ) -> None:
        self.workload = workload
        self.stack = stack
        self.headroom_bytes = narrowing.headroom_bytes if narrowing else 0.0
        job = Job(workload.config, workload.seq_length, num_chips)
        self._space = PlanSpace(named_space(space), job, global_batch_size, narrowing)
        self._prepared: list[Prepared] | None = None

    def solve(self, hardware: HardwareTable, at_most_s: FloatArray | None = None) -> BestPlans:
        """The fastest plan of every row.

        Args:
            hardware: H rows of the solver's number of chips.
            at_most_s: (H,) step times that the space is known to reach, if any.
        """
        usable = StepModel(self.workload, hardware, self.stack).usable_bytes - self.headroom_bytes
        best = _Best(len(hardware), at_most_s)
        enumerated = 0
        for prepared in self._chunks(hardware):
            enumerated += len(prepared.plans)
            best.offer_least(prepared)
            fitting = prepared.take(prepared.peak_bytes <= usable.max())
            if len(fitting.plans):
                for start in range(0, len(hardware), DESIGNS_AT_ONCE):
                    rows = np.arange(start, min(start + DESIGNS_AT_ONCE, len(hardware)))
                    model = _MetKeys(self.workload, _taken(hardware, rows), self.stack)
                    _solve_batch(model, fitting, usable[rows], rows, best)
        return best.found(usable, enumerated)

    def _chunks(self, hardware: HardwareTable) -> Iterable[Prepared]:
        if self._prepared is not None:
            return self._prepared
        kept: list[Prepared] = []
        chunks = self._prepare(hardware)
        for prepared in chunks:
            kept.append(prepared)
            if sum(len(some.plans) for some in kept) > PLANS_KEPT:
                return chain(kept, chunks)
        self._prepared = kept
        return kept

    def _prepare(self, hardware: HardwareTable) -> Iterator[Prepared]:
        """Memory of every plan: the same on all hardware, so that one row serves."""
        model = StepModel(self.workload, _taken(hardware, np.zeros(1, np.intp)), self.stack)
        for plans in self._space.chunks(PLANS_AT_ONCE):
            yield Prepared(plans, model.memory(plans).peak_bytes, canonical_rank(plans))


class _Best:
    """The fastest plan so far of each design, ties to the first in canonical order."""

    def __init__(self, count: int, at_most_s: FloatArray | None) -> None:
        self.time_s = np.full(count, UNPRICED)
        self.bar_s = np.full(count, UNPRICED) if at_most_s is None else at_most_s.copy()
        self.rank = np.full(count, np.iinfo(np.int64).max)
        self.plans = np.full((count, len(AXES)), -1, dtype=np.int64)
        self.least_bytes = UNPRICED
        self.least = np.full(len(AXES), -1, dtype=np.int64)
        self.priced = 0

    def offer_least(self, prepared: Prepared) -> None:
        """Remember the plan of smallest peak memory."""
        if not len(prepared.plans):
            return
        row = int(np.argmin(prepared.peak_bytes))
        if prepared.peak_bytes[row] < self.least_bytes:
            self.least_bytes = float(prepared.peak_bytes[row])
            self.least = _integers(prepared.plans, np.array([row]))[0]

    def offer(self, designs: Places, rows: Places, time_s: FloatArray, prepared: Prepared) -> None:
        """Let N priced pairs compete: (N,) design, (N,) plan row, (N,) seconds."""
        self.priced += len(designs)
        order = np.lexsort((prepared.rank[rows], time_s, designs))
        first = order[np.unique(designs[order], return_index=True)[1]]
        at, found_s, rank = designs[first], time_s[first], prepared.rank[rows[first]]
        ties = (found_s == self.time_s[at]) & (rank < self.rank[at])
        wins = (found_s < self.time_s[at]) | ties
        at, first = at[wins], first[wins]
        self.time_s[at], self.rank[at] = found_s[wins], rank[wins]
        self.bar_s[at] = np.minimum(self.bar_s[at], found_s[wins])
        self.plans[at] = _integers(prepared.plans, rows[first])

    def found(self, usable: FloatArray, enumerated: int) -> BestPlans:
        """The outcome, once all plans have been offered."""
        nothing = ~np.isfinite(self.time_s)
        self.plans[nothing] = self.least
        return BestPlans(
            step_time_s=self.time_s,
            plans=self.plans,
            short_bytes=self.least_bytes - usable,
            enumerated=enumerated,
            priced=self.priced,
        )


def _solve_batch(
    model: StepModel, prepared: Prepared, usable: FloatArray, at: Places, best: _Best
) -> None:
    tables = model.tables(prepared.plans)
    low_s = bound_s(tables) * (1.0 - BOUND_SLACK)
    low_s[prepared.peak_bytes[None, :] > usable[:, None]] = UNPRICED
    pairs = _Pairs(model, tables, prepared)
    count = min(PROBES, low_s.shape[1])
    probes = np.argpartition(low_s, count - 1, axis=1)[:, :count]
    designs = np.repeat(np.arange(len(at)), count)
    rows = probes.ravel()
    tried = low_s[designs, rows] <= best.bar_s[at][designs]
    tried &= np.isfinite(low_s[designs, rows])
    designs, rows = designs[tried], rows[tried]
    if len(rows):
        best.offer(at[designs], rows, pairs.step_time_s(designs, rows), prepared)
    low_s[designs, rows] = UNPRICED
    designs, rows = np.nonzero((low_s <= best.bar_s[at][:, None]) & np.isfinite(low_s))
    if len(rows):
        best.offer(at[designs], rows, pairs.step_time_s(designs, rows), prepared)


def bound_s(tables: Tables) -> FloatArray:
    """(H, P) a lower bound on the step time: every layer with its messages, and the optimizer.

    With F a layer's seconds and L a stage's layers, every stage works m L F, and the pipeline
    takes at least (m + (p-1)/v) times its emptiest stage; the step then waits for the optimizer.
    """
    layer, schedule, at = tables.layer, tables.schedule, tables.at_schedule
    forward = layer.forward_s + layer.forward_tp_s + layer.forward_ep_s
    backward = layer.backward_s + layer.backward_tp_s + layer.backward_ep_s
    busy = np.maximum(forward, layer.host_forward_s) + np.maximum(backward, layer.host_backward_s)
    layers = tables.sync.layers
    m = schedule.num_microbatches
    filled = m + (schedule.pp - 1) / schedule.vpp
    times = np.maximum(
        m[at] * layers.max(axis=0)[tables.at_sync],
        filled[at] * layers.min(axis=0)[tables.at_sync],
    )
    bound: FloatArray = np.take(busy, tables.at_layer, axis=1)
    bound *= times
    bound += np.take(tables.sync.optimizer_s, tables.at_sync, axis=1)
    return bound


class _MetKeys(StepModel):
    """Prices the keys of the plans at hand and no others: few plans of a space fit."""

    def __init__(self, workload: Workload, hardware: HardwareTable, stack: Stack) -> None:
        super().__init__(workload, hardware, stack)
        self._layer.free = self._ends.free = False


class _Pairs(StepModel):
    """Prices chosen (design, plan) pairs in one pass.

    The tables of H designs and K keys are read as those of one machine with H K keys, so that a
    pair is a column and the evaluator's formulas serve unchanged.
    """

    def __init__(self, model: StepModel, tables: Tables, prepared: Prepared) -> None:
        super().__init__(model.workload, model.hardware, model.stack)
        self._count = len(model.hardware)
        self._source = tables
        self._layer_flat = _flat(tables.layer, self._count)
        self._ends_flat = _flat(tables.ends, self._count)
        self._sync_flat = _flat(tables.sync, self._count)
        self._prepared = prepared
        self._chosen: Tables = tables
        self._peak_bytes: FloatArray = prepared.peak_bytes

    def step_time_s(self, designs: Places, rows: Places) -> FloatArray:
        """(N,) seconds of the pairs."""
        time_s: FloatArray = self.columns(designs, rows).step_time_s[0]
        return time_s

    def columns(self, designs: Places, rows: Places) -> StepColumns:
        """Costs of the pairs, as those of N plans on one machine."""
        source = self._source
        self._chosen = Tables(
            self._layer_flat,
            self._ends_flat,
            self._sync_flat,
            source.schedule,
            _place(source.layer.forward_s, designs, source.at_layer[rows]),
            _place(source.ends.head_forward_s, designs, source.at_ends[rows]),
            _place(source.sync.reduce_s, designs, source.at_sync[rows]),
            source.at_schedule[rows],
        )
        self._peak_bytes = self._prepared.peak_bytes[rows]
        return self.evaluate(self._prepared.plans)

    def tables(self, plans: PlanTable) -> Tables:
        """The tables of the pairs chosen last."""
        return self._chosen

    def memory(self, plans: PlanTable) -> MemoryColumns:
        """Known since the plans were prepared."""
        return MemoryColumns(self._peak_bytes, np.zeros(len(self._peak_bytes), dtype=np.int64))


def _place(column: FloatArray, designs: Places, keys: Places) -> Places:
    place: Places = designs * column.shape[1] + keys
    return place


def _flat(table: Table, count: int) -> Table:
    """(H, K) columns as (1, H K); those that hold for all designs repeat."""
    kind: Any = type(table)
    flat: dict[str, Any] = {}
    for entry in fields(kind):
        column: FloatArray = getattr(table, entry.name)
        per_design = column.ndim == 2 and column.shape[0] == count and entry.name.endswith(_TIMES)
        if per_design:
            flat[entry.name] = column.reshape(1, -1)
        else:
            flat[entry.name] = np.tile(column, (1,) * (column.ndim - 1) + (count,))
    return kind(**flat)  # type: ignore[no-any-return]


_TIMES = ("_s", "_s_per_byte")


def _taken(hardware: HardwareTable, rows: Places) -> HardwareTable:
    return HardwareTable(
        names=tuple(hardware.names[row] for row in rows),
        num_chips=hardware.num_chips,
        chip={name: column[rows] for name, column in hardware.chip.items()},
        level_kinds=hardware.level_kinds,
        level_size=hardware.level_size[rows],
        level={name: column[rows] for name, column in hardware.level.items()},
        level_reduces=hardware.level_reduces,
        chips_per_node=hardware.chips_per_node[rows],
    )


def _integers(plans: PlanTable, rows: Places) -> IntArray:
    """(N, axes) integers of some plans, axes in canonical order."""
    return np.stack([plans.values[axis][plans.codes[axis][rows]] for axis in AXES], axis=1)


def plan_of(integers: IntArray) -> Plan:
    """The plan that (axes,) integers stand for."""
    columns = {axis: integers[i : i + 1] for i, axis in enumerate(AXES)}
    return PlanTable.from_columns(columns).plan(0)
