"""How wide a prediction of a published run is, towards fast and towards slow.

Variances of the logarithm add up: the level of the stack, what is left between plans of one
stack, and reasons for more. All are statements about a kind of run, none about a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dse.precision import LOW_PRECISIONS
from dse.stacks.levels import POOLED, Levels
from dse.validate.predict import Predictions
from dse.validate.resolve import Case
from hwmodels.table import FloatArray

HOST_SD = 0.156
"""20 % at 80 %: where launches bound the step, the host's law is known to a factor of 1.5."""
LOW_PRECISION_SD = 0.06
"""Quantising passes, whose fusion recipes do not say."""
NEW_SILICON_SD = 0.10
"""A silicon without a training run, towards slow alone: both newer chips were predicted too fast
from their kernels (H100 by 12 to 26 %, GB200 by 24 %)."""
EXPERT_SD = 0.20
"""Exchange between routed experts and grouped matmuls: no measured kernel or collective covers
them."""
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
    both, slow = np.empty(len(cases)), np.zeros(len(cases))
    for index, (case, fitted) in enumerate(zip(cases, levels, strict=True)):
        level = fitted.of(case.stack.name, case.generation)
        variance = sum(sd**2 for sd in fitted.spread(case.stack, case.generation))
        if _host_share(case, fitted) > 0.5 * _device_share(predictions, index):
            variance += HOST_SD**2
        if case.workload.precision in LOW_PRECISIONS:
            variance += LOW_PRECISION_SD**2
        if case.workload.config.is_moe:
            variance += EXPERT_SD**2
        if any(note.split(" ")[0] in _PLAN_FIELDS for note in case.assumed):
            variance += ASSUMED_PLAN_SD**2
        both[index] = variance
        if level.silicon == POOLED or not level.rows:
            slow[index] += NEW_SILICON_SD**2
        if case.plan.zero == 3 and case.cluster.num_chips > case.cluster.chips_per_node:
            exposed = predictions.parts["dp"][index] / predictions.step_time_s[index]
            slow[index] += np.log1p(exposed) ** 2
    return Widths(np.sqrt(both), np.sqrt(both + slow))


def _host_share(case: Case, levels: Levels) -> float:
    """Seconds that the host needs for the launches of a step."""
    stack, plan = case.stack, case.plan
    full = plan.recompute == "full"
    launches = stack.launches_forward * (2.0 if full else 1.0) + stack.launches_backward
    micro_batches = plan.global_batch_size // (plan.micro_batch_size * (plan.dp or 1))
    layers = -(-case.workload.config.layers // plan.pp)
    return launches * stack.launch_s * levels.host * micro_batches * layers


def _device_share(predictions: Predictions, index: int) -> float:
    """Seconds in which the device works or waits for messages of a layer."""
    return float(sum(predictions.parts[name][index] for name in ("compute", "tp", "cp", "ep")))
