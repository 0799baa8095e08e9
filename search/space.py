"""The named plan spaces, streamed as columns.

`compact` varies tp, pp, cp, dp, ep, etp, the micro-batch, vpp and recomputation; `full` adds
ZeRO 0-3, GPipe, sequence parallelism off and the mesh orders. A space is the product of its
axes, less what a rule of `dse.rules` refuses, and it has no duplicates: mesh orders that
coincide because a dimension is 1 are one plan, under the first name. The product grows axis by
axis, each rule applied as soon as the columns that it reads exist; axes that no rule reads are
multiplied in last, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from dse.plan import (
    AXES,
    MESH_ORDERS,
    OPTIONS,
    RECOMPUTE,
    SCHEDULES,
    CodeArray,
    IntArray,
    PlanTable,
)
from dse.rules import RULES, Job, Rule, divisors
from hwmodels.errors import ConfigError
from search.narrowing import Narrowing

CHUNK_ROWS = 65_536
GROWN_ROWS = 4_096
"""Rows that one growth step takes at a time: a step multiplies them by 5 to 100."""

LAYOUT = ("tp", "pp", "dp", "cp")
SETTINGS = ("optimizer", "grad_dtype", "master_dtype", "first_stage_layers", "last_stage_layers")
"""Axes that no space varies. A narrowing may set them to other values than a plan's defaults."""

ONE_F_ONE_B, INTERLEAVED, GPIPE = (SCHEDULES.index(s) for s in ("1f1b", "interleaved", "gpipe"))

Columns = dict[str, IntArray]


@dataclass(frozen=True, slots=True)
class SpaceSpec:
    """The values that the axes of a named space take, beyond what follows from model and chips.

    Args:
        name: What the user calls it.
        zero: ZeRO stages.
        gpipe: Whether GPipe stands beside 1F1B where there is a pipeline.
        sequence_parallel_off: Whether tp without sequence parallelism is in the space.
        mesh_orders: Positions in `MESH_ORDERS`.
    """

    name: str
    zero: tuple[int, ...]
    gpipe: bool
    sequence_parallel_off: bool
    mesh_orders: tuple[int, ...]


SPACES: Mapping[str, SpaceSpec] = {
    "compact": SpaceSpec("compact", (1,), False, False, (0,)),
    "full": SpaceSpec("full", (0, 1, 2, 3), True, True, tuple(range(len(MESH_ORDERS)))),
}


def named_space(name: str) -> SpaceSpec:
    """The space called `name`.

    Raises:
        ConfigError: No space has that name.
    """
    if name not in SPACES:
        raise ConfigError(
            f"no plan space is called {name!r}", field="space", value=name, allowed=list(SPACES)
        )
    return SPACES[name]


class PlanSpace:
    """One named space for one job, narrowed.

    Args:
        spec: The named space.
        job: Model, sequence length and chips.
        global_batch_size: Sequences a step.
        narrowing: What the user lets pass.

    Attributes:
        values: Axis to the values that all chunks share, ascending: a superset of what occurs.
        refused: Reason to how many partial choices a rule ended in the latest pass over the space.

    Raises:
        ConfigError: The narrowing asks for values that only another space holds.
    """

    def __init__(
        self,
        spec: SpaceSpec,
        job: Job,
        global_batch_size: int,
        narrowing: Narrowing | None = None,
    ) -> None:
        self.spec = spec
        self.job = job
        self.global_batch_size = global_batch_size
        self.narrowing = narrowing or Narrowing()
        self._refuse_values_outside()
        self._reads = {rule.reason: _columns_read(rule, job) for rule in RULES}
        read = frozenset().union(*self._reads.values())
        choices = self._choices()
        self._free = {axis: values for axis, values in choices.items() if axis not in read}
        self._bound = {axis: values for axis, values in choices.items() if axis in read}
        self.refused: dict[str, int] = {}
        self._layouts = self._valid_layouts()
        self._refused_layouts = dict(self.refused)
        self.values = self._values()
        self._steps: tuple[Callable[[Columns], Columns], ...] = (
            self._with_chunks,
            self._with_micro_batches,
            self._with_sequence_parallel,
            self._with_experts,
            self._with_mesh_orders,
        )

    @property
    def axes(self) -> dict[str, list[object]]:
        """Axis to the values it may take here, in words: what `exact` is claimed over."""
        return {
            axis: [_word(axis, int(value)) for value in values[self.narrowing.keeps(axis, values)]]
            for axis, values in self.values.items()
        }

    def chunks(self, rows: int = CHUNK_ROWS) -> Iterator[PlanTable]:
        """The plans of the space, at most `rows` a table, all tables sharing `values`."""
        values = self.values
        held_axes = [axis for axis in AXES if axis not in self._free]
        free = _product({axis: np.arange(len(values[axis])) for axis in self._free})
        slot = max(1, rows // len(next(iter(free.values()))))
        held = {axis: np.empty(0, dtype=np.uint16) for axis in held_axes}
        for columns in self._grown():
            for axis in held_axes:
                codes = np.searchsorted(values[axis], columns[axis]).astype(np.uint16)
                held[axis] = np.concatenate([held[axis], codes])
            count = len(held["tp"])
            for start in range(0, count - slot + 1, slot):
                yield _times(values, held, free, slice(start, start + slot))
            held = {axis: codes[count - count % slot :] for axis, codes in held.items()}
        if len(held["tp"]):
            yield _times(values, held, free, slice(None))

    def count(self) -> int:
        """How many plans the space holds."""
        times = int(np.prod([len(values) for values in self._free.values()]))
        return times * sum(len(columns["tp"]) for columns in self._grown())

    def _grown(self) -> Iterator[Columns]:
        """Every valid choice of the axes that rules read."""
        self.refused = dict(self._refused_layouts)
        yield from self._grow_from(self._layouts, 0)

    def _grow_from(self, columns: Columns, step: int) -> Iterator[Columns]:
        if step == len(self._steps):
            if _rows(columns):
                yield columns
            return
        for start in range(0, _rows(columns), GROWN_ROWS):
            part = {axis: values[start : start + GROWN_ROWS] for axis, values in columns.items()}
            grown = self._steps[step](part)
            yield from self._grow_from(self._sieved(grown, set(columns)), step + 1)

    def _sieved(self, columns: Columns, before: set[str]) -> Columns:
        """The rows that the narrowing of the new columns and the rules that now apply let pass."""
        keep = np.ones(_rows(columns), dtype=bool)
        for axis in columns.keys() - before - {"mesh_order"}:
            keep &= self.narrowing.keeps(axis, columns[axis])
        for rule in RULES:
            read = self._reads[rule.reason]
            if read <= columns.keys() and not read <= before:
                broken = rule.broken(columns, self.job) & keep
                count = int(np.count_nonzero(broken))
                if count:
                    self.refused[rule.reason] = self.refused.get(rule.reason, 0) + count
                    keep &= ~broken
        return columns if keep.all() else {axis: values[keep] for axis, values in columns.items()}

    def _valid_layouts(self) -> Columns:
        """Degrees that some plan completes.

        One chunk and one sequence a micro-batch divide whatever any others do, so a layout that is
        refused with them is refused with all.
        """
        columns = self._sieved(self._raw_layouts(), set())
        for axis, values in self._bound.items():
            columns = _grow(columns, np.zeros(_rows(columns), dtype=np.intp), [{axis: values}])
        one = np.ones(_rows(columns), dtype=np.int64)
        least = {"vpp": one, "micro_batch_size": one, "schedule": one * ONE_F_ONE_B}
        unnarrowed = {"vpp", "micro_batch_size", "schedule"}
        kept = self._sieved({**columns, **least}, unnarrowed)
        return {axis: kept[axis] for axis in columns}

    def _raw_layouts(self) -> Columns:
        chips = self.job.num_chips
        rows = [
            (tp, pp, dp, chips // (tp * pp * dp))
            for tp in divisors(chips)
            for pp in divisors(chips // tp)
            for dp in divisors(chips // (tp * pp))
        ]
        table = np.array(rows, dtype=np.int64).T
        columns = dict(zip(LAYOUT, table, strict=True))
        columns["global_batch_size"] = np.full(len(rows), self.global_batch_size)
        return columns

    def _with_chunks(self, columns: Columns) -> Columns:
        """vpp and the schedule: 1F1B, GPipe where the space has it, or interleaving by a
        divisor.
        """
        options = {}
        for pp in np.unique(columns["pp"]).tolist():
            layers = self.job.model.layers // pp if self.job.model.layers % pp == 0 else 1
            chunks = [v for v in divisors(layers) if v > 1] if pp > 1 else []
            plain = [ONE_F_ONE_B, GPIPE] if self.spec.gpipe and pp > 1 else [ONE_F_ONE_B]
            options[pp] = {
                "vpp": [1] * len(plain) + chunks,
                "schedule": plain + [INTERLEAVED] * len(chunks),
            }
        return _grow(columns, columns["pp"], options)

    def _with_micro_batches(self, columns: Columns) -> Columns:
        batch = self.global_batch_size
        options = {
            dp: {"micro_batch_size": divisors(batch // dp)}
            for dp in np.unique(columns["dp"]).tolist()
        }
        grown = _grow(columns, columns["dp"], options)
        grown["num_microbatches"] = batch // (grown["dp"] * grown["micro_batch_size"])
        return grown

    def _with_sequence_parallel(self, columns: Columns) -> Columns:
        with_tp = [0, 1] if self.spec.sequence_parallel_off else [1]
        options = {0: {"sequence_parallel": [0]}, 1: {"sequence_parallel": with_tp}}
        return _grow(columns, (columns["tp"] > 1).astype(np.intp), options)

    def _with_experts(self, columns: Columns) -> Columns:
        model = self.job.model
        ranks = columns["tp"] * columns["cp"] * columns["dp"]
        options = {}
        for size in np.unique(ranks).tolist():
            pairs = [
                (ep, etp)
                for ep in divisors(gcd(model.experts, size) if model.experts else 1)
                for etp in divisors(gcd(model.expert_ffn, size // ep) if model.experts else 1)
            ]
            options[size] = {"ep": [ep for ep, _ in pairs], "etp": [etp for _, etp in pairs]}
        return _grow(columns, ranks, options)

    def _with_mesh_orders(self, columns: Columns) -> Columns:
        shape = sum((columns[axis] > 1) << bit for bit, axis in enumerate(("cp", "dp", "pp")))
        options = {
            bits: {"mesh_order": self._distinct_orders(bits)} for bits in np.unique(shape).tolist()
        }
        return _grow(columns, np.asarray(shape), options)

    def _distinct_orders(self, bits: int) -> list[int]:
        """The first of each set of orders that coincide where only some dimensions exceed 1.

        A narrowing keeps an order if it allows any name of it, so that what the user asked for
        is found under the name that the space gives it.
        """
        present = {"tp"} | {axis for bit, axis in enumerate(("cp", "dp", "pp")) if bits >> bit & 1}
        names: dict[Hashable, list[int]] = {}
        for order in self.spec.mesh_orders:
            seen = tuple(dim for dim in MESH_ORDERS[order].split("-") if dim in present)
            names.setdefault(seen, []).append(order)
        allowed = set(self.narrowing.allowed.get("mesh_order", self.spec.mesh_orders))
        return [orders[0] for orders in names.values() if allowed & set(orders)]

    def _choices(self) -> dict[str, list[int]]:
        """Values of the axes that depend on nothing else, narrowed."""
        narrowed = self.narrowing.allowed
        choices: dict[str, Sequence[int]] = {
            "zero": self.spec.zero,
            "recompute": range(len(RECOMPUTE)),
            **{axis: narrowed.get(axis, (0,)) for axis in SETTINGS},
        }
        return {
            axis: [value for value in values if value in narrowed.get(axis, values)]
            for axis, values in choices.items()
        }

    def _values(self) -> dict[str, IntArray]:
        model, batch = self.job.model, self.global_batch_size
        micro, chunks = {1}, {1}
        for dp in np.unique(self._layouts["dp"]).tolist():
            micro.update(divisors(batch // dp))
        for pp in np.unique(self._layouts["pp"]).tolist():
            chunks.update(
                divisors(model.layers // pp) if model.layers % pp == 0 and pp > 1 else []
            )
        moe = model.experts > 0
        found: dict[str, Sequence[int] | IntArray] = {
            **{axis: np.unique(self._layouts[axis]) for axis in LAYOUT},
            "ep": divisors(gcd(model.experts, self.job.num_chips)) if moe else [1],
            "etp": divisors(gcd(model.expert_ffn, self.job.num_chips)) if moe else [1],
            "vpp": sorted(chunks),
            "micro_batch_size": sorted(micro),
            "global_batch_size": [batch],
            "sequence_parallel": [0, 1],
            "schedule": [ONE_F_ONE_B, INTERLEAVED, *([GPIPE] if self.spec.gpipe else [])],
            "mesh_order": self.spec.mesh_orders,
            **self._choices(),
        }
        return {axis: np.asarray(found[axis], dtype=np.int64) for axis in AXES}

    def _refuse_values_outside(self) -> None:
        schedules = (ONE_F_ONE_B, INTERLEAVED, *((GPIPE,) if self.spec.gpipe else ()))
        inside = {
            "zero": self.spec.zero,
            "schedule": schedules,
            "mesh_order": self.spec.mesh_orders,
        }
        for axis, allowed in self.narrowing.allowed.items():
            if axis in inside and not set(allowed) & set(inside[axis]):
                raise ConfigError(
                    f"space {self.spec.name} holds no plan with {axis} = "
                    + ", ".join(str(_word(axis, value)) for value in allowed),
                    field=axis,
                    value=[_word(axis, value) for value in allowed],
                    allowed=[_word(axis, value) for value in inside[axis]],
                    hint="space full varies it" if self.spec.name != "full" else None,
                )


class _Recorder(dict[str, IntArray]):
    """Columns that remember which of them were read."""

    def __init__(self) -> None:
        super().__init__({axis: np.ones(1, dtype=np.int64) for axis in AXES})
        self.read: set[str] = set()

    def __getitem__(self, axis: str) -> IntArray:
        self.read.add(axis)
        return super().__getitem__(axis)


def _columns_read(rule: Rule, job: Job) -> frozenset[str]:
    recorder = _Recorder()
    rule.broken(recorder, job)
    return frozenset(recorder.read)


def _rows(columns: Columns) -> int:
    return len(columns["tp"])


def _grow(
    columns: Columns,
    group: NDArray[np.integer],
    options: Mapping[int, Mapping[str, Sequence[int]]] | Sequence[Mapping[str, Sequence[int]]],
) -> Columns:
    """Repeat each row once an option of its group, with the option's values as new columns.

    Args:
        columns: Axis to (n,) values.
        group: (n,) key into `options`.
        options: Key to new axes with their values, all of one length a key.
    """
    keys = np.arange(len(options)) if isinstance(options, Sequence) else np.array([*options])
    order = np.argsort(keys)
    entries = [options[int(keys[i])] for i in order]
    axes = list(entries[0]) if entries else []
    lengths = np.array([len(entry[axes[0]]) for entry in entries], dtype=np.intp)
    starts = np.cumsum(lengths) - lengths
    place = np.searchsorted(keys[order], group)
    times = lengths[place]
    total = int(times.sum())
    source = np.repeat(np.arange(len(group)), times)
    within = np.arange(total) - np.repeat(np.cumsum(times) - times, times)
    grown = {axis: values[source] for axis, values in columns.items()}
    position = starts[place][source] + within
    for axis in axes:
        flat = np.array([value for entry in entries for value in entry[axis]], dtype=np.int64)
        grown[axis] = flat[position]
    return grown


def _product(choices: Mapping[str, NDArray[np.intp]]) -> dict[str, CodeArray]:
    grids = np.meshgrid(*choices.values(), indexing="ij")
    return {
        axis: grid.ravel().astype(np.uint16) for axis, grid in zip(choices, grids, strict=True)
    }


def _times(
    values: Mapping[str, IntArray],
    held: Mapping[str, CodeArray],
    free: Mapping[str, CodeArray],
    rows: slice,
) -> PlanTable:
    """Each held row once a free choice. A column of one value is one zero, broadcast."""
    count = len(held["tp"][rows])
    times = len(next(iter(free.values())))
    zero = np.broadcast_to(np.zeros(1, dtype=np.uint16), (count * times,))
    codes: dict[str, CodeArray] = {}
    for axis in AXES:
        if len(values[axis]) == 1:
            codes[axis] = zero
        elif axis in free:
            codes[axis] = np.tile(free[axis], count)
        else:
            codes[axis] = np.repeat(held[axis][rows], times)
    return PlanTable(values, codes)


def _word(axis: str, value: int) -> object:
    if axis == "sequence_parallel":
        return bool(value)
    return OPTIONS[axis][value] if axis in OPTIONS else value
