"""The one line that a step-time model has to beat, and a fair version of it.

    baseline = hardware FLOP / (chips * peak * efficiency) * (1 + (pp - 1) / (micro-batches * vpp))

with efficiency 0.5. It knows nothing of communication. The fair baseline takes the efficiency of
each silicon and width of arithmetic from the published rows of all *other* families: the median
over their sources of each one's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from dse.precision import LOW_PRECISIONS
from dse.validate.resolve import Case
from dse.workload.counts import hardware_flop
from hwmodels.table import FloatArray

EFFICIENCY = 0.5
_Kind = tuple[str, bool]


def baseline_s(cases: Sequence[Case]) -> FloatArray:
    """(N,) seconds of a step by the one-line baseline."""
    return np.array([_line_s(case) / EFFICIENCY for case in cases])


def _line_s(case: Case) -> float:
    plan, workload = case.plan, case.workload
    flop = hardware_flop(
        workload.config,
        workload.seq_length,
        sequences=plan.global_batch_size,
        recompute=plan.recompute,
        convention="full",
    )
    peak = case.cluster.chip.peak_flop_per_s[workload.precision] * case.cluster.num_chips
    num_microbatches = plan.global_batch_size // (plan.micro_batch_size * (plan.dp or 1))
    return flop / peak * (1.0 + (plan.pp - 1) / (num_microbatches * plan.vpp))


def fair_baseline_s(
    cases: Sequence[Case], measured_s: FloatArray, usable: Sequence[bool]
) -> FloatArray:
    """(N,) seconds by the line with the efficiency that other families reached.

    Args:
        cases: The cases.
        measured_s: (N,) their published times.
        usable: (N,) whether a row may tell an efficiency; suspect rows may not.
    """
    line_s = np.array([_line_s(case) for case in cases])
    log_efficiency = np.log(line_s / measured_s)
    of_source: dict[tuple[_Kind, str, str], list[float]] = defaultdict(list)
    for case, value, use in zip(cases, log_efficiency, usable, strict=True):
        if use:
            of_source[_kind(case), case.family, case.row.source].append(float(value))
    medians = {key: float(np.median(values)) for key, values in of_source.items()}
    found = np.empty(len(cases))
    for index, case in enumerate(cases):
        others = [
            (kind, value) for (kind, family, _), value in medians.items() if family != case.family
        ]
        alike = [value for kind, value in others if kind == _kind(case)]
        told = alike or [value for _, value in others]
        found[index] = line_s[index] / (np.exp(np.median(told)) if told else EFFICIENCY)
    return found


def _kind(case: Case) -> _Kind:
    return case.generation, case.workload.precision in LOW_PRECISIONS
