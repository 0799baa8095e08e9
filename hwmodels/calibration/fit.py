"""Robust least squares of log errors, with the spread of each parameter and held-out errors.

A fit minimises a soft-L1 loss of `ln(predicted / measured)`. Parameters stay inside bounds. The
spread is a delete-one-group jackknife over groups of shapes (Efron and Tibshirani 1993, chapter
11); the same refits give the errors of the shapes left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import least_squares

from hwmodels.calibration import predict
from hwmodels.calibration.rows import Observation
from hwmodels.table import FloatArray, IntArray

FOLDS = 5
_LOSS_SCALE = 0.05  # log errors beyond 5 % weigh linearly
_STEP = 1e-2  # of the finite differences: predictions are piecewise smooth in the parameters
_BOUND_SPREAD = 0.02  # of the search range: a fit at a bound says nothing of its spread
_ONE_SHAPE_SPREAD = 0.10  # a single shape says nothing of its own spread
_NORMAL_80 = 1.2816  # quantile of the central 80 %

# Lower bound, upper bound and starting values of everything that may be fitted.
SEARCH: Mapping[str, tuple[float, float, tuple[float, ...]]] = {
    "matmul_efficiency": (0.2, 1.0, (0.9, 0.94)),
    "matmul_sustained": (0.5, 1.0, (0.9, 0.8)),
    "matmul_k0": (0.0, 2000.0, (150.0, 300.0)),
    "matmul_tile_half": (0.0, 300.0, (20.0, 70.0)),
    "matmul_wave_exposure": (0.0, 1.0, (0.6, 0.3)),
    "matmul_memory_efficiency": (0.2, 1.0, (0.8, 0.7)),
    "matmul_misaligned_efficiency": (0.2, 1.0, (0.9, 0.9)),
    "matmul_start_s": (2e-7, 3e-5, (3e-6, 3e-6)),
    "matmul_boost_s": (2e-5, 1.0, (5e-4, 5e-2)),
    "attention_efficiency": (0.2, 1.0, (0.75, 0.75)),
    "attention_softmax_flop_per_pair": (0.01, 40.0, (8.0, 14.0)),
    "attention_start_s": (1e-6, 6e-5, (1.2e-5, 5e-6)),
    "attention_block_occupancy": (0.0, 3.0, (0.5, 1.0)),
    "attention_diagonal": (0.0, 1000.0, (64.0, 200.0)),
    "attention_backward_ratio": (0.4, 1.0, (0.9, 0.95)),
    "attention_cache_passes": (0.0, 8.0, (2.0, 2.0)),
    "attention_relative_rate": (0.02, 1.0, (0.5, 0.5)),
    "conv_rate": (0.2, 1.0, (0.85, 0.7)),
    "conv_strided_rate": (0.2, 1.0, (0.8, 0.6)),
    "conv_misaligned_rate": (0.05, 1.0, (0.4, 0.3)),
    "conv_winograd_rate": (0.2, 1.0, (0.8, 0.6)),
    "conv_pointwise_rate": (0.2, 1.0, (0.9, 0.7)),
    "conv_fill": (0.0, 2.0, (0.2, 0.6)),
    "conv_tile": (0.0, 3.0, (0.6, 1.0)),
    "conv_memory_efficiency": (0.2, 1.0, (0.75, 0.9)),
    "conv_start_s": (5e-7, 6e-5, (8e-6, 1.6e-5)),
    "memory_efficiency": (0.3, 1.0, (0.85, 0.85)),
}
_LOGARITHMIC = ("matmul_boost_s",)


@dataclass(frozen=True, slots=True)
class Fit:
    """What a set of rows says about some parameters.

    Args:
        values: Fitted parameter to value.
        low: Lower end of its central 80 %.
        high: Upper end.
        predicted_s: (n,) seconds of the fitted rows, in sample.
        held_out_s: (n,) seconds of each row by the fit that left its shapes out; empty if there is
            one shape only.
        rows: Number of rows fitted.
    """

    values: Mapping[str, float]
    low: Mapping[str, float] = field(default_factory=dict)
    high: Mapping[str, float] = field(default_factory=dict)
    predicted_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    held_out_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    rows: int = 0


def bounds(name: str) -> tuple[float, float, tuple[float, ...]]:
    """Bounds and starting values of a parameter; what follows a dot shares its stem's."""
    return SEARCH[name.partition(".")[0]]


def solve(
    observations: Sequence[Observation],
    free: Mapping[str, Sequence[str]],
    fixed: Mapping[str, float],
    weights: FloatArray,
) -> dict[str, float]:
    """The free parameters that fit the observations best.

    Args:
        observations: Rows to fit.
        free: Parameter to the names that take its value (itself, and those tied to it).
        fixed: All other parameters that the predictions need.
        weights: (n,) weights of the log errors.
    """
    groups = predict.grouped(observations)
    measured = np.array([o.measured_s for o in observations])
    stems = list(free)
    limits = np.array([bounds(name)[:2] for name in stems], dtype=float)
    scaled = np.array([name in _LOGARITHMIC for name in stems])
    limits[scaled] = np.log(limits[scaled])
    low, width = limits[:, 0], limits[:, 1] - limits[:, 0]

    def parameters(point: FloatArray) -> dict[str, float]:
        values = low + width / (1.0 + np.exp(-point))
        values = np.where(scaled, np.exp(np.where(scaled, values, 0.0)), values)
        merged = dict(fixed)
        for stem, value in zip(stems, values, strict=True):
            merged.update(dict.fromkeys(free[stem], float(value)))
        return merged

    def residuals(point: FloatArray) -> FloatArray:
        error: FloatArray = np.log(predict.seconds(groups, parameters(point)) / measured)
        return error * weights

    lowest_cost, best = np.inf, np.zeros(len(stems))
    for choice in range(len(SEARCH["matmul_k0"][2])):
        start = np.array([bounds(name)[2][choice] for name in stems])
        start = np.where(scaled, np.log(start), start)
        share = np.clip((start - low) / width, 1e-3, 1 - 1e-3)
        found = least_squares(
            residuals,
            np.log(share / (1.0 - share)),
            loss="soft_l1",
            f_scale=_LOSS_SCALE,
            diff_step=_STEP,
        )
        if found.cost < lowest_cost:
            lowest_cost, best = float(found.cost), found.x
    solved = parameters(best)
    return {name: solved[name] for names in free.values() for name in names}


def fit(
    observations: Sequence[Observation],
    free: Mapping[str, Sequence[str]],
    fixed: Mapping[str, float],
    weights: FloatArray | None = None,
    *,
    folds: int = FOLDS,
) -> Fit:
    """Fit, spread by jackknife over shape groups, and the predictions of the groups left out."""
    weight = np.ones(len(observations)) if weights is None else weights
    values = solve(observations, free, fixed, weight)
    groups = predict.grouped(observations)
    fold = shape_folds(observations, folds)
    if fold.max() == 0:
        return Fit(
            values=values,
            low={name: value * (1.0 - _ONE_SHAPE_SPREAD) for name, value in values.items()},
            high={name: value * (1.0 + _ONE_SHAPE_SPREAD) for name, value in values.items()},
            predicted_s=predict.seconds(groups, {**fixed, **values}),
            rows=len(observations),
        )
    held_out = np.zeros(len(observations))
    refits: list[dict[str, float]] = []
    for number in range(int(fold.max()) + 1):
        rest = [o for o, f in zip(observations, fold, strict=True) if f != number]
        refit = solve(rest, free, fixed, weight[fold != number])
        refits.append(refit)
        held_out[fold == number] = predict.seconds(groups, {**fixed, **refit})[fold == number]
    low, high = {}, {}
    for name, value in values.items():
        spread = np.array([refit[name] for refit in refits])
        deviation = np.sqrt((len(spread) - 1) * np.mean((spread - spread.mean()) ** 2))
        lower, upper, _ = bounds(name)
        margin = _NORMAL_80 * float(deviation)
        if min(value - lower, upper - value) < 1e-3 * (upper - lower):
            margin = max(margin, _BOUND_SPREAD * (upper - lower))
        low[name] = max(lower, value - margin)
        high[name] = min(upper, value + margin)
    return Fit(
        values=values,
        low=low,
        high=high,
        predicted_s=predict.seconds(groups, {**fixed, **values}),
        held_out_s=held_out,
        rows=len(observations),
    )


def shape_folds(observations: Sequence[Observation], folds: int) -> IntArray:
    """(n,) fold of each row: rows of one weight shape, or one sequence length, stay together."""
    shapes = [_shape(o) for o in observations]
    distinct = sorted(set(shapes))
    order = np.random.default_rng(0).permutation(len(distinct))
    number = {shape: int(order[i]) % min(folds, len(distinct)) for i, shape in enumerate(distinct)}
    return np.array([number[shape] for shape in shapes], dtype=np.int64)


def _shape(o: Observation) -> tuple[float, ...]:
    if o.kind == "matmul":
        return o.sizes[1:3]
    if o.kind == "conv":
        return o.sizes[1:]
    if o.kind in ("attention", "unfused attention"):
        return (o.sizes[3],)
    return (float(o.measured_s),)
