"""Fit the levels of stacks to published runs, with priors, a family left out if asked.

The logarithm of a step time is linear enough in the logarithms of the factors around a point near
the answer. For every row three derivatives are taken there (compute, network, host); what is
fitted is a ridge regression in those,

    log(measured / predicted) = a (g_silicon + s_stack,silicon) + b n + c h + noise

with g the silicon's mean level, s the stack's own departure, n the network's and h the host's
factor. Each source counts the same, whatever its number of rows, so that a sweep of 720 does not
drown a table of 8. Priors carry what rows say nothing about.

Routed experts tell no level: their exchange between ranks was calibrated on nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

from dse.stacks import Stack
from dse.stacks.levels import POOLED, UNFITTED, Level, Levels
from dse.validate.predict import predict
from dse.validate.resolve import Case
from hwmodels.table import FloatArray

STEP = 0.05
"""Step of the derivatives in the logarithm of a factor."""
SOURCE_SD = 0.05
"""What is left of a row after its level: the structure's residual."""
SOURCE_ROWS = 4.0
"""Independent rows that one source counts as."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Mean and standard deviation of a logarithm."""

    mean: float
    sd: float


SILICON = {
    "gv100": Prior(0.0, 0.15),
    "ga100": Prior(0.0, 0.15),
    "gh100": Prior(0.10, 0.15),
    "gb100": Prior(0.10, 0.15),
}
OTHER_SILICON = Prior(0.10, 0.15)
"""Measured kernels leave out what a power limit takes: newer chips lose more to it than A100."""
STACK = Prior(0.0, 0.07)
"""Stacks on one chip differ by 7 % in the logarithm."""
NETWORK = Prior(np.log(1.5), 0.5)
"""Messages inside a job share links and start late; benchmarks run alone on an idle machine."""
HOST = Prior(np.log(2.5), 0.3)
"""Time per layer that does not shrink with the micro-batch, 2.2 to 4 ms for about 100 launches,
in Transformer-XL on A100 and V100 (NVIDIA DeepLearningExamples), which is fitted nowhere else."""


@dataclass(frozen=True, slots=True)
class Sensitivities:
    """Residuals and derivatives of N rows at a point.

    Args:
        residual: (N,) log(measured / predicted).
        slope: (N, 3) derivative of log predicted by log compute, network, host.
        at: (N, 3) the point: log factors of each row.
    """

    residual: FloatArray
    slope: FloatArray
    at: FloatArray


def sensitivities(
    cases: Sequence[Case], measured_s: FloatArray, levels: Levels
) -> Sensitivities:
    """Evaluate the rows at `levels`, and once more for each kind of factor."""
    stacks = [levels.apply(case.stack, case.generation) for case in cases]
    here = np.log(predict(cases, stacks).step_time_s)
    slope = np.empty((len(cases), 3))
    for column, name in enumerate(("compute_factor", "network_factor", "launch_s")):
        moved = [
            stack.model_copy(update={name: getattr(stack, name) * np.exp(STEP)})
            for stack in stacks
        ]
        slope[:, column] = (np.log(predict(cases, moved).step_time_s) - here) / STEP
    at = np.array(
        [
            [
                np.log(levels.of(case.stack.name, case.generation).value),
                np.log(levels.network),
                np.log(levels.host),
            ]
            for case in cases
        ]
    )
    return Sensitivities(np.log(measured_s) - here, slope, at)


def fit(
    cases: Sequence[Case],
    near: Sensitivities,
    *,
    without: Collection[str] = (),
    usable: Sequence[bool],
) -> Levels:
    """The levels that the rows of all families but `without` tell.

    Args:
        cases: N rows.
        near: Their derivatives at a point near the answer.
        without: Families whose rows are not used.
        usable: (N,) whether a row may tell a level; suspect rows and experts may not.
    """
    used = [
        index
        for index, case in enumerate(cases)
        if usable[index] and case.family not in without
    ]
    silicons = sorted({cases[index].generation for index in used})
    pairs = sorted({(cases[index].stack.name, cases[index].generation) for index in used})
    names: list[tuple[str, ...]] = [("network",), ("host",)]
    names += [("silicon", silicon) for silicon in silicons]
    names += [("pair", *pair) for pair in pairs]
    column = {name: position for position, name in enumerate(names)}
    weights = _weights(cases, used)

    matrix = np.zeros((len(used), len(names)))
    target = np.empty(len(used))
    for row, index in enumerate(used):
        case, slope = cases[index], near.slope[index]
        matrix[row, column["silicon", case.generation]] = slope[0]
        matrix[row, column["pair", case.stack.name, case.generation]] = slope[0]
        matrix[row, column["network",]] = slope[1]
        matrix[row, column["host",]] = slope[2]
        target[row] = near.residual[index] + float(slope @ near.at[index])
    priors = [_prior(name) for name in names]
    ridge = np.diag([1.0 / prior.sd for prior in priors])
    stacked = np.vstack([matrix * weights[:, None], ridge])
    aim = np.concatenate([target * weights, [prior.mean / prior.sd for prior in priors]])
    answer = lsq_linear(stacked, aim).x
    spread = np.sqrt(np.diag(np.linalg.inv(stacked.T @ stacked)))
    return _levels(cases, used, column, answer, spread)


def _weights(cases: Sequence[Case], used: Sequence[int]) -> FloatArray:
    """(N,) one over the standard deviation of each used row."""
    sizes: Mapping[str, int] = defaultdict(int)
    for index in used:
        sizes[cases[index].row.source] += 1  # type: ignore[index]
    return np.array(
        [
            np.sqrt(min(1.0, SOURCE_ROWS / sizes[cases[index].row.source])) / SOURCE_SD
            for index in used
        ]
    )


def _prior(name: tuple[str, ...]) -> Prior:
    if name[0] == "silicon":
        return SILICON.get(name[1], OTHER_SILICON)
    return {"network": NETWORK, "host": HOST, "pair": STACK}[name[0]]


def _levels(
    cases: Sequence[Case],
    used: Sequence[int],
    column: Mapping[tuple[str, ...], int],
    answer: FloatArray,
    spread: FloatArray,
) -> Levels:
    found: dict[tuple[str, str], Level] = {}

    def add(stack: str, silicon: str, value: float, log_sd: float, rows: list[int]) -> None:
        families = tuple(sorted({cases[index].family for index in rows}))
        found[stack, silicon] = Level(
            stack=stack,
            silicon=silicon,
            value=float(np.exp(value)),
            log_sd=float(log_sd),
            rows=len(rows),
            families=families,
        )

    silicons = [name[1] for name in column if name[0] == "silicon"]
    means = {silicon: float(answer[column["silicon", silicon]]) for silicon in silicons}
    every = float(np.mean(list(means.values()))) if means else OTHER_SILICON.mean
    add(POOLED, POOLED, every, OTHER_SILICON.sd, list(used))
    for silicon in silicons:
        rows = [index for index in used if cases[index].generation == silicon]
        sd = np.hypot(spread[column["silicon", silicon]], STACK.sd)
        add(POOLED, silicon, means[silicon], float(sd), rows)
    for name, position in column.items():
        if name[0] == "pair":
            _, stack, silicon = name
            rows = [
                index
                for index in used
                if (cases[index].stack.name, cases[index].generation) == (stack, silicon)
            ]
            sd = float(spread[position])
            add(stack, silicon, means[silicon] + float(answer[position]), sd, rows)
    return Levels(
        found,
        network=float(np.exp(answer[column["network",]])),
        host=float(np.exp(answer[column["host",]])),
        fitted_on=tuple(sorted({cases[index].family for index in used})),
    )


def fit_all(
    cases: Sequence[Case], measured_s: FloatArray, usable: Sequence[bool], *, rounds: int = 3
) -> tuple[Levels, Sensitivities]:
    """Fit on every family, taking derivatives anew at each answer.

    Returns:
        The levels, and the derivatives at them, from which families are left out one at a time.
    """
    levels = UNFITTED
    for _ in range(rounds):
        near = sensitivities(cases, measured_s, levels)
        levels = fit(cases, near, usable=usable)
    return levels, sensitivities(cases, measured_s, levels)


def scaled(case: Case, levels: Levels) -> Stack:
    """A case's stack with its fitted factors."""
    return levels.apply(case.stack, case.generation)
