"""Fit the levels of stacks to published runs, with priors, a family left out if asked.

The logarithm of a step time is linear enough in the logarithms of the factors around a point near
the answer. For every row three derivatives are taken there (compute, network, host); what is
fitted is a ridge regression in those,

    log(measured / predicted) = a (g_silicon + s_stack,silicon) + b n + c h + noise

with g the silicon's level (that of its era and its own departure), s the stack's own departure, n
the network's and h the host's factor. Each source counts the same, whatever its number of rows, so
that a sweep of 720 does not drown a table of 8. Priors carry what rows say nothing about.

Routed experts tell no level: their exchange between ranks was calibrated on nothing. Where every
launch blocks, its cost cannot be told from the stack's own level, so such rows do not tell h.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import lsq_linear

from dse.stacks.levels import POOLED, UNFITTED, Level, Levels
from dse.validate.predict import predict
from dse.validate.resolve import Case
from hwmodels.chip import Chip
from hwmodels.kernels.parameters import ASSUMED
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


ERAS = {"gv100": "to 2021", "ga100": "to 2021"}
"""Silicons whose power limit leaves dense matmuls near their full clock; all others are later."""
LATER = "later"
ERA = {"to 2021": Prior(0.0, 0.15), LATER: Prior(0.10, 0.15)}
"""Measured kernels leave out most of what a power limit takes in a step; later chips lose more."""
SILICON_SD = 0.07
TYPICAL_SUSTAINED = 0.85
"""Share of a short matmul's rate that a power limit leaves in a long run: 0.90 measured on A100,
0.80 on H100. A silicon whose rows tell nothing of it gets this from its prior."""
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


def sensitivities(cases: Sequence[Case], measured_s: FloatArray, levels: Levels) -> Sensitivities:
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
) -> Levels:
    """The levels that the rows of all families but `without` tell.

    Args:
        cases: N rows.
        near: Their derivatives at a point near the answer.
        without: Families whose rows are not used.
    """
    used = [index for index, case in enumerate(cases) if case.family not in without]
    silicons = sorted({*ERAS, *(case.generation for case in cases)})
    pairs = sorted({(cases[index].stack.name, cases[index].generation) for index in used})
    names: list[tuple[str, ...]] = [("network",), ("host",)]
    names += [("era", era) for era in ERA]
    names += [("silicon", silicon) for silicon in silicons]
    names += [("pair", *pair) for pair in pairs]
    column = {name: position for position, name in enumerate(names)}
    weights = _weights(cases, used)

    matrix = np.zeros((len(used), len(names)))
    target = np.empty(len(used))
    for row, index in enumerate(used):
        case = cases[index]
        slope = near.slope[index] * (1.0, 1.0, 0.0 if case.stack.blocking_launches else 1.0)
        matrix[row, column["era", ERAS.get(case.generation, LATER)]] = slope[0]
        matrix[row, column["silicon", case.generation]] = slope[0]
        matrix[row, column["pair", case.stack.name, case.generation]] = slope[0]
        matrix[row, column["network",]] = slope[1]
        matrix[row, column["host",]] = slope[2]
        target[row] = near.residual[index] + float(slope @ near.at[index])
    unsettled = {case.generation: _unsettled(case.cluster.chip) for case in cases}
    priors = [_prior(name, unsettled) for name in names]
    ridge = np.diag([1.0 / prior.sd for prior in priors])
    stacked = np.vstack([matrix * weights[:, None], ridge])
    aim = np.concatenate([target * weights, [prior.mean / prior.sd for prior in priors]])
    answer = lsq_linear(stacked, aim).x
    covariance = np.linalg.inv(stacked.T @ stacked)
    return _levels(cases, used, column, answer, covariance)


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


def _prior(name: tuple[str, ...], unsettled: Mapping[str, float]) -> Prior:
    if name[0] == "era":
        return ERA[name[1]]
    if name[0] == "silicon":
        return Prior(unsettled.get(name[1], 0.0), SILICON_SD)
    return {"network": NETWORK, "host": HOST, "pair": STACK}[name[0]]


def _unsettled(chip: Chip) -> float:
    """Logarithm by which matmuls slow down in a long run, where no measured row says so."""
    name = "matmul_sustained.bf16"
    if chip.kernel_status.get(name, ASSUMED) != ASSUMED:
        return 0.0
    return float(np.log(max(1.0, chip.kernel.get(name, 1.0) / TYPICAL_SUSTAINED)))


def _levels(
    cases: Sequence[Case],
    used: Sequence[int],
    column: Mapping[tuple[str, ...], int],
    answer: FloatArray,
    covariance: FloatArray,
) -> Levels:
    found: dict[tuple[str, str], Level] = {}

    def add(stack: str, silicon: str, terms: list[int]) -> None:
        told = [
            index
            for index in used
            if silicon in (POOLED, cases[index].generation)
            and stack in (POOLED, cases[index].stack.name)
        ]
        variance = covariance[np.ix_(terms, terms)].sum()
        if silicon == POOLED:
            variance += SILICON_SD**2
        found[stack, silicon] = Level(
            stack=stack,
            silicon=silicon,
            value=float(np.exp(answer[terms].sum())),
            log_sd=float(np.sqrt(variance)),
            rows=len(told),
            families=tuple(sorted({cases[index].family for index in told})),
        )

    add(POOLED, POOLED, [column["era", LATER]])
    for name, position in column.items():
        if name[0] == "silicon":
            era = column["era", ERAS.get(name[1], LATER)]
            add(POOLED, name[1], [era, position])
        if name[0] == "pair":
            era = column["era", ERAS.get(name[2], LATER)]
            add(name[1], name[2], [era, column["silicon", name[2]], position])
    return Levels(
        found,
        network=float(np.exp(answer[column["network",]])),
        host=float(np.exp(answer[column["host",]])),
        fitted_on=tuple(sorted({cases[index].family for index in used})),
    )


def fit_all(
    cases: Sequence[Case], measured_s: FloatArray, *, rounds: int = 3
) -> tuple[Levels, dict[str, Levels]]:
    """Fit on every family, and without each, taking derivatives anew at each answer.

    Args:
        cases: N rows, every one of which may tell a level.
        measured_s: (N,) their published times.
        rounds: How often to move the point at which derivatives are taken.

    Returns:
        The levels of all families, and by family those of the others.
    """
    levels = UNFITTED
    for _ in range(rounds):
        near = sensitivities(cases, measured_s, levels)
        levels = fit(cases, near)
    families = sorted({case.family for case in cases})
    without = {family: fit(cases, near, without=(family,)) for family in families}
    stacks = [without[case.family].apply(case.stack, case.generation) for case in cases]
    residual = np.log(measured_s / predict(cases, stacks).step_time_s)
    for family in families:
        others = [index for index, case in enumerate(cases) if case.family != family]
        without[family] = _with_spread(without[family], cases, residual, others)
    return _with_spread(levels, cases, residual, range(len(cases))), without


def _with_spread(
    levels: Levels, cases: Sequence[Case], residual: FloatArray, rows: Iterable[int]
) -> Levels:
    """The levels, with how far sources lay from those fitted without them, each source alike.

    Args:
        levels: Levels without spreads.
        cases: N rows.
        residual: (N,) log(measured / predicted) by the levels fitted without the row's family.
        rows: Which rows may tell.
    """
    by_source: dict[tuple[str, str], list[float]] = defaultdict(list)
    for index in rows:
        by_source[cases[index].row.source, cases[index].cluster.chip.name].append(residual[index])
    means = [np.mean(values) for values in by_source.values()]
    within = [np.var(values) for values in by_source.values()]
    return replace(
        levels,
        level_sd=float(np.sqrt(np.mean(np.square(means)))),
        structure_sd=float(np.sqrt(np.mean(within))),
    )
