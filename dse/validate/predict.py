"""Step times of many resolved cases, the cases of one job type in one call of the evaluator.

Cases share a call where model, sequence length, precision, machine and stack agree; their plans
are the rows of one table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dse.plan import PlanTable
from dse.stacks import Stack
from dse.step import PARTS, StepModel
from dse.validate.resolve import Case
from hwmodels.table import FloatArray, HardwareTable


@dataclass(frozen=True, slots=True)
class Predictions:
    """Costs of N cases, in their order.

    Args:
        step_time_s: (N,) seconds of a step.
        parts: Part of the ledger to (N,) seconds.
        sharded_exposed_s: (N,) exposed dp seconds of plans under ZeRO-3, else 0.
        fits: (N,) whether the plan fits the memory that tensors may fill.
    """

    step_time_s: FloatArray
    parts: Mapping[str, FloatArray]
    fits: FloatArray


def predict(cases: Sequence[Case], stacks: Sequence[Stack] | None = None) -> Predictions:
    """Evaluate every case.

    Args:
        cases: What to price.
        stacks: One stack a case, in place of the case's own: with fitted factors.
    """
    chosen = [case.stack for case in cases] if stacks is None else stacks
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, (case, stack) in enumerate(zip(cases, chosen, strict=True)):
        groups[_key(case, stack)].append(index)
    time_s = np.zeros(len(cases))
    fits = np.zeros(len(cases))
    parts = {name: np.zeros(len(cases)) for name in PARTS}
    for members in groups.values():
        first = cases[members[0]]
        model = StepModel(first.workload, HardwareTable.of([first.cluster]), chosen[members[0]])
        table = PlanTable.from_plans([cases[index].plan for index in members])
        columns = model.evaluate(table)
        time_s[members] = columns.step_time_s[0]
        fits[members] = columns.peak_memory_bytes <= model.usable_bytes[0]
        for name in PARTS:
            parts[name][members] = columns.parts[name][0]
    return Predictions(time_s, parts, fits)


def _key(case: Case, stack: Stack) -> tuple[object, ...]:
    # Clusters of one name and size differ only in the links that a row states.
    links = tuple(level.bytes_per_s_per_chip_per_dir for level in case.cluster.levels)
    return (
        case.workload,
        case.cluster.name,
        case.cluster.chip.name,
        case.cluster.num_chips,
        links,
        stack,
    )
