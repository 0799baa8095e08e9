"""How much faster one per cent more of each resource makes a step: one call of the evaluator.

A row of the hardware table a resource, each one per cent better than the first. The elasticity is
d ln(time) / d ln(resource) at that step: -1 means that time falls as fast as the resource grows, 0
that it does not matter. At a fixed plan the elasticities of all rates sum to about -1; at each
row's own best plan they can only be larger in size.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dse.plan import Plan, PlanTable
from dse.stacks import Stack
from dse.step import StepModel
from dse.workload import Workload
from hwmodels.table import FloatArray, HardwareTable
from search.inner import PlanSolver

STEP = 0.01
CHIP_RATES = ("memory_bytes_per_s", "vector_flop_per_s", "kernel.special_op_per_s")
CHIP_SIZES = ("kernel.scratchpad_bytes",)
STARTS = ("kernel.matmul_start_s", "kernel.attention_start_s", "kernel.pointwise_start_s")


def resources(table: HardwareTable, precision: str) -> dict[str, tuple[str, ...]]:
    """Resource to the columns that one per cent more of it scales, of those the table has.

    A level's rate and latency go by `level.N.bytes_per_s`, counted from the chip outwards.
    """
    peaks = sorted(name for name in table.chip if name.startswith("peak_flop_per_s."))
    found: dict[str, tuple[str, ...]] = {"peak_flop_per_s": tuple(peaks)}
    for name in (*CHIP_RATES, *CHIP_SIZES):
        if name in table.chip:
            found[name.removeprefix("kernel.")] = (name,)
    starts = tuple(name for name in STARTS if name in table.chip)
    if starts:
        found["kernel_start_s"] = starts
    for level in range(len(table.level_kinds)):
        if np.any(table.level_size[:, level] > 1):
            found[f"level.{level}.bytes_per_s"] = (f"{level}",)
            found[f"level.{level}.latency_s"] = (f"{level}",)
    return found


def perturbed(table: HardwareTable, precision: str, step: float = STEP) -> HardwareTable:
    """One row and, below it, a row a resource, that resource larger by `step`.

    Args:
        table: One row.
        precision: Of the training.
        step: Relative.
    """
    names = resources(table, precision)
    rows = 1 + len(names)

    def repeated(values: FloatArray) -> FloatArray:
        return np.repeat(values, rows, axis=0)

    chip = {name: repeated(column) for name, column in table.chip.items()}
    level = {name: repeated(column) for name, column in table.level.items()}
    for row, (name, columns) in enumerate(names.items(), start=1):
        if name.startswith("level."):
            _, place, column = name.split(".")
            level[column][row, int(place)] *= 1.0 + step
            continue
        for column in columns:
            chip[column][row] *= 1.0 + step
    return replace(
        table,
        names=(table.names[0], *names),
        chip=chip,
        level=level,
        level_size=np.repeat(table.level_size, rows, axis=0),
        chips_per_node=np.repeat(table.chips_per_node, rows),
    )


def elasticities(
    workload: Workload, stack: Stack, table: HardwareTable, plan: Plan, *, step: float = STEP
) -> dict[str, float]:
    """Resource to d ln(step time) / d ln(resource) at a fixed plan.

    Args:
        workload: What is trained.
        stack: The software stack.
        table: One hardware row.
        plan: A resolved plan.
        step: Relative size of the perturbation.
    """
    rows = perturbed(table, workload.precision, step)
    model = StepModel(workload, rows, stack)
    time_s = model.evaluate(PlanTable.from_plans([plan])).step_time_s[:, 0]
    return _slopes(rows, time_s, step)


def elasticities_replanned(
    solver: PlanSolver, table: HardwareTable, *, step: float = STEP
) -> dict[str, float]:
    """The same with each row at its own best plan.

    Args:
        solver: Of the job.
        table: One hardware row.
        step: Relative size of the perturbation.
    """
    rows = perturbed(table, solver.workload.precision, step)
    return _slopes(rows, solver.solve(rows).step_time_s, step)


def _slopes(rows: HardwareTable, time_s: FloatArray, step: float) -> dict[str, float]:
    slopes = np.log(time_s[1:] / time_s[0]) / np.log1p(step)
    return {name: float(slope) for name, slope in zip(rows.names[1:], slopes, strict=True)}
