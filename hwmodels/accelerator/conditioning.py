"""The constants, given what is known of real dies.

Draws of the priors are moved towards those that reproduce the published area, TDP and area shares
of known silicon. One *silicon* is one piece of evidence, however many products it is sold
as, and is what `leave_one_out` leaves out.

Bounds count as bounds: a die published as below 400 mm2 only speaks against draws that make it
larger.

References:
    [DelMoral2006] P. Del Moral, A. Doucet, A. Jasra, "Sequential Monte Carlo samplers", JRSS B
        68(3).
    [Cotter2013] S. Cotter et al., "MCMC methods for functions", Statistical Science 28(3): pCN
        proposals.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwmodels.accelerator.area import area_mm2, area_parts_mm2
from hwmodels.accelerator.design import DesignColumns
from hwmodels.accelerator.known import Bound, KnownSilicon, Published, load_known_silicon
from hwmodels.accelerator.power import tdp_w
from hwmodels.accelerator.priors import Z_90, Constants, constants_at, deviates, load_priors
from hwmodels.table import FloatArray

PARTICLES = 2_000
"""Draws that are carried from the priors to the conditioned constants."""
MOVES = 5
"""Metropolis moves after each step of the likelihood's exponent."""
STEP = 0.35
_SEED = 20_240_607


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One published figure, and what the model says of it without having seen the silicon.

    Args:
        silicon: Name of the die.
        quantity: `area_mm2` or `tdp_w`.
        published: The figure.
        bound: Whether it is exact or a bound.
        low: 10 % quantile of the prediction, model error included.
        median: 50 % quantile.
        high: 90 % quantile.
        inside: For an exact figure, whether it lies in low..high; for a bound, whether some of
            low..high satisfies it.
    """

    silicon: str
    quantity: str
    published: float
    bound: Bound
    low: float
    median: float
    high: float
    inside: bool


def conditioned(
    samples: int, rng: np.random.Generator, *, without: Collection[str] = ()
) -> Constants:
    """`samples` joint draws of the constants, conditioned on the known dies.

    Args:
        samples: S.
        rng: Source of randomness.
        without: Names of silicons to leave out.
    """
    pool = _pool(frozenset(without))
    return pool.take(rng.choice(len(pool), size=samples, replace=samples > len(pool)))


@lru_cache(maxsize=1)
def nominal_constants() -> Constants:
    """One draw: the conditioned median of each constant."""
    return _pool(frozenset()).medians().without_model_error()


def leave_one_out(samples: int, rng: np.random.Generator) -> tuple[LeftOut, ...]:
    """Predict each known die's area and TDP from the others."""
    rows: list[LeftOut] = []
    for known in load_known_silicon():
        constants = conditioned(samples, rng, without=(known.name,))
        die = _joined((known,))
        for quantity, published, draws in (
            ("area_mm2", known.area_mm2, area_mm2(die, constants)),
            ("tdp_w", known.tdp_w, tdp_w(die, constants)),
        ):
            low, median, high = (float(np.quantile(draws, share)) for share in (0.1, 0.5, 0.9))
            rows.append(
                LeftOut(
                    silicon=known.name,
                    quantity=quantity,
                    published=published.value,
                    bound=published.bound,
                    low=low,
                    median=median,
                    high=high,
                    inside=_inside(published, low, high),
                )
            )
    return tuple(rows)


def _inside(published: Published, low: float, high: float) -> bool:
    above = published.bound == "lower" or low <= published.value
    below = published.bound == "upper" or published.value <= high
    return above and below


@lru_cache(maxsize=16)
def _pool(without: frozenset[str]) -> Constants:
    """(PARTICLES,) conditioned draws; the fixed seed makes them a constant of the package.

    Sequential Monte Carlo over deviates that are standard normal before conditioning
    [DelMoral2006], with proposals that keep that distribution [Cotter2013].
    """
    rng = np.random.default_rng(_SEED)
    table = load_priors()
    known = tuple(entry for entry in load_known_silicon() if entry.name not in without)
    dies = _joined(known)

    def log_likelihood(z: FloatArray) -> FloatArray:
        return _log_likelihood(known, dies, constants_at(z, table).without_model_error())

    z = rng.standard_normal((PARTICLES, deviates(table)))
    level, fit = 0.0, log_likelihood(z)
    while level < 1.0:
        step = _next_step(fit, 1.0 - level)
        level += step
        chosen = _resampled(step * fit, rng)
        z, fit = z[chosen], fit[chosen]
        for _ in range(MOVES):
            proposal = np.sqrt(1.0 - STEP**2) * z + STEP * rng.standard_normal(z.shape)
            proposed = log_likelihood(proposal)
            better = np.log(rng.random(PARTICLES)) < level * (proposed - fit)
            z, fit = np.where(better[:, None], proposal, z), np.where(better, proposed, fit)
    # Constants that no figure bears on come afresh: resampling would only thin them out.
    size = z.shape[1]
    base, moved = log_likelihood(np.zeros((1, size))), log_likelihood(np.eye(size))
    silent = np.isclose(moved, base, rtol=1e-9, atol=0.0)
    z[:, silent] = rng.standard_normal((len(z), int(silent.sum())))
    return constants_at(z, table)


def _next_step(fit: FloatArray, remaining: float) -> float:
    """The largest rise of the exponent that leaves half of the draws effective."""

    def effective(step: float) -> float:
        weights = np.exp(step * (fit - fit.max()))
        return float(weights.sum() ** 2 / np.sum(weights**2))

    if effective(remaining) >= 0.5 * len(fit):
        return remaining
    low, high = 0.0, remaining
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if effective(middle) >= 0.5 * len(fit) else (low, middle)
    return high


def _resampled(log_weight: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """Indices drawn by weight: one uniform number, evenly spaced positions."""
    weights = np.exp(log_weight - log_weight.max())
    positions = (np.arange(len(weights)) + rng.random()) / len(weights)
    index = np.searchsorted(np.cumsum(weights / weights.sum()), positions)
    return index.clip(max=len(weights) - 1)


def _joined(known: tuple[KnownSilicon, ...]) -> DesignColumns:
    return DesignColumns.of([entry.design for entry in known])


def _log_likelihood(
    known: tuple[KnownSilicon, ...], dies: DesignColumns, constants: Constants
) -> FloatArray:
    """(S,) log likelihood of the figures; each is off by the model's own error, independently."""
    area_sigma, power_sigma = _sigma("area_model_error"), _sigma("power_model_error")
    area, power = area_mm2(dies, constants), tdp_w(dies, constants)
    result = np.zeros(len(constants))
    for index, entry in enumerate(known):
        result += _log_density(area[:, index], entry.area_mm2, area_sigma)
        result += _log_density(power[:, index], entry.tdp_w, power_sigma)
        if entry.shares:
            parts = area_parts_mm2(dies.take(slice(index, index + 1)), constants)
            for part, share in entry.shares:
                predicted = parts[part][:, 0] / area[:, index]
                result += _log_density(predicted, Published(share, "exact"), area_sigma)
    return result


def _log_density(predicted: FloatArray, published: Published, sigma: float) -> FloatArray:
    """(S,) log likelihood up to a constant; a bound that is kept costs nothing."""
    z = np.log(predicted / published.value) / sigma
    if published.bound == "upper":
        z = np.maximum(z, 0.0)
    elif published.bound == "lower":
        z = np.minimum(z, 0.0)
    return -0.5 * z**2


def _sigma(name: str) -> float:
    prior = load_priors().constants[name]
    return float(np.log(prior.high / prior.low) / (2.0 * Z_90))
