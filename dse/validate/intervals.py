"""How wide a prediction of a published run is, towards fast and towards slow.

Reasons of `dse.uncertainty` add up, and a layout that was not printed adds to them. All are
statements about a kind of run, none about a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dse.stacks.levels import Levels
from dse.uncertainty import Run, reasons, spread
from dse.validate.predict import Predictions
from dse.validate.resolve import Case
from hwmodels.table import FloatArray

ASSUMED_PLAN_SD = 0.05
"""A layout of which a degree, the micro-batch or recomputation was not printed."""
_PLAN_FIELDS = ("micro_batch", "vpp", "recompute", "tp", "pp")


@dataclass(frozen=True, slots=True)
class Widths:
    """(N,) standard deviations of the logarithm, towards fast and towards slow."""

    low: FloatArray
    high: FloatArray


def widths(cases: Sequence[Case], levels: Sequence[Levels], predictions: Predictions) -> Widths:
    """The widths of N predictions, each made with its own levels."""
    low, high = np.empty(len(cases)), np.empty(len(cases))
    for index, (case, fitted) in enumerate(zip(cases, levels, strict=True)):
        stack = fitted.apply(case.stack, case.generation)
        run = Run(case.workload, case.cluster, stack, case.plan)
        parts_s = {name: float(values[index]) for name, values in predictions.parts.items()}
        level = fitted.of(case.stack.name, case.generation)
        step_time_s = float(predictions.step_time_s[index])
        own_low, own_high = spread(reasons(run, parts_s, step_time_s, level=level))
        printed = not any(note.split(" ")[0] in _PLAN_FIELDS for note in case.assumed)
        unknown = 0.0 if printed else ASSUMED_PLAN_SD
        low[index], high[index] = np.hypot(own_low, unknown), np.hypot(own_high, unknown)
    return Widths(low, high)
