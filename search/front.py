"""The designs of a front, solved again over the full plan space and explained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.evaluation import evaluate
from dse.plan import Plan
from dse.report import Report
from hwmodels.table import FloatArray, HardwareTable
from search.designs import Candidates
from search.inner import plan_of
from search.judge import Judge, Verdicts


@dataclass(frozen=True)
class Front:
    """Designs with a report for each model.

    Args:
        designs: F designs.
        rows: (F,) their rows among the verdicts.
        compact_s: (F, W) step times at the best compact plans.
        reports: For each design, a report a model, at the best plan known.
        calibration: Of the reports.
        verdicts: Of every design met.
    """

    designs: Candidates
    rows: NDArray[np.intp]
    compact_s: FloatArray
    reports: tuple[tuple[Report, ...], ...]
    calibration: str
    verdicts: Verdicts


def solve_front(judge: Judge, verdicts: Verdicts, rows: NDArray[np.intp], *, most: int) -> Front:
    """Report the best plan of every model on designs of a front.

    Args:
        judge: Of the study.
        verdicts: Of every design met.
        rows: The front's rows among them.
        most: How many designs, from the first, are solved over the full plan space.
    """
    space = judge.space
    designs = judge.candidates(verdicts.index[rows])
    compact_s = verdicts.step_time_s[rows]
    plans: list[list[Plan]] = [
        [plan_of(verdicts.plans[row, place]) for place in range(len(space.jobs))]
        for row in rows.tolist()
    ]
    chosen = np.zeros(len(designs), dtype=bool)
    chosen[:most] = True
    for members in designs.groups(chosen):
        hardware = designs.hardware(members)
        for place in range(len(space.jobs)):
            silicon = designs.silicon(members[0])
            found = full_plans(judge, place, hardware, silicon, compact_s[members, place])
            for design, plan in zip(members.tolist(), found, strict=True):
                plans[design][place] = plan
    reports = tuple(
        tuple(
            evaluate(
                job.workload.config,
                designs.cluster(design),
                plans[design][place],
                stack=space.stack_on(designs.silicon(design)),
                seq_length=job.workload.seq_length,
                precision=job.workload.precision,
                must_fit=False,
            )
            for place, job in enumerate(space.jobs)
        )
        for design in range(len(designs))
    )
    return Front(designs, rows, compact_s, reports, reports[0][0].calibration, verdicts)


def full_plans(
    judge: Judge,
    place: int,
    hardware: HardwareTable,
    silicon: str,
    at_most_s: FloatArray | None = None,
) -> list[Plan | None]:
    """The best plan of the full space for every row of hardware; None where nothing fits.

    Args:
        judge: Of the study.
        place: Which model.
        hardware: H rows.
        silicon: Whose level the stack takes.
        at_most_s: (H,) step times at the best compact plans, if they are known.
    """
    best = judge.solver(place, hardware.num_chips, silicon, "full").solve(hardware, at_most_s)
    return [
        plan_of(integers) if np.isfinite(time_s) else None
        for integers, time_s in zip(best.plans, best.step_time_s, strict=True)
    ]
