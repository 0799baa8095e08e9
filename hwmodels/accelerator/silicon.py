"""Area, TDP and price of many designs, each with its interval.

Shapes: S draws of the constants, H designs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hwmodels.accelerator.area import area_mm2, area_parts_mm2, core_area_mm2
from hwmodels.accelerator.conditioning import conditioned
from hwmodels.accelerator.design import DesignColumns
from hwmodels.accelerator.power import tdp_parts_w, tdp_w
from hwmodels.accelerator.price import DEFAULT_VOLUME, price_parts_usd
from hwmodels.accelerator.priors import Constants
from hwmodels.table import FloatArray

DEFAULT_SAMPLES = 128
CHUNK = 512


@dataclass(frozen=True, slots=True)
class Interval:
    """Median and central 80 % of H quantities, each (H,)."""

    median: FloatArray
    low: FloatArray
    high: FloatArray

    @classmethod
    def of(cls, draws: FloatArray) -> Interval:
        """From (S, H) draws; quantiles are draws themselves, the nearest in rank."""
        last = len(draws) - 1
        ranks = [round(share * last) for share in (0.1, 0.5, 0.9)]
        ordered = np.partition(draws, sorted(set(ranks)), axis=0)
        low, median, high = (ordered[rank] for rank in ranks)
        return cls(median=median, low=low, high=high)


@dataclass(frozen=True, slots=True)
class SiliconColumns:
    """What H designs need: intervals, joint draws, and the parts at the median constants.

    Args:
        area_mm2: Compute dies of a package.
        tdp_w: Package at its peak rates.
        price_usd: One package on its board, made (no margin, no design effort).
        area_draws_mm2: (S, H); row s of the three uses the same constants.
        tdp_draws_w: (S, H).
        price_draws_usd: (S, H).
        area_parts_mm2: Part to (H,); they sum to the area at the median constants, which need not
            be the median area.
        tdp_parts_w: Part to (H,).
        price_parts_usd: Part to (H,).
    """

    area_mm2: Interval
    tdp_w: Interval
    price_usd: Interval
    area_draws_mm2: FloatArray
    tdp_draws_w: FloatArray
    price_draws_usd: FloatArray
    area_parts_mm2: Mapping[str, FloatArray]
    tdp_parts_w: Mapping[str, FloatArray]
    price_parts_usd: Mapping[str, FloatArray]


def evaluate_silicon(
    designs: DesignColumns,
    *,
    samples: int = DEFAULT_SAMPLES,
    rng: np.random.Generator,
    constants: Constants | None = None,
    volume: float = DEFAULT_VOLUME,
) -> SiliconColumns:
    """Area, TDP and price of each design.

    Args:
        designs: H designs.
        samples: Draws of the constants, S; not used if `constants` is given.
        rng: Source of the draws.
        constants: Draws to use instead, so that calls can share them.
        volume: Packages that share a mask set.

    Returns:
        Intervals and draws; designs of one call share their draws, so P(A is cheaper than B) can
        be read from them.
    """
    if constants is None:
        constants = conditioned(samples, rng)
    area, tdp, price = (np.empty((len(constants), len(designs))) for _ in range(3))
    for start in range(0, len(designs), CHUNK):
        piece = slice(start, start + CHUNK)
        some = designs.take(piece)
        area[:, piece] = area_mm2(some, constants)
        tdp[:, piece] = tdp_w(some, constants)
        costs = price_parts_usd(
            some,
            constants,
            area_mm2=area[:, piece],
            core_mm2=core_area_mm2(some, constants),
            tdp_w=tdp[:, piece],
            volume=volume,
        )
        price[:, piece] = sum(costs.values())
    return SiliconColumns(
        area_mm2=Interval.of(area),
        tdp_w=Interval.of(tdp),
        price_usd=Interval.of(price),
        area_draws_mm2=area,
        tdp_draws_w=tdp,
        price_draws_usd=price,
        **_parts_at_medians(designs, constants, volume),
    )


def _parts_at_medians(
    designs: DesignColumns, constants: Constants, volume: float
) -> dict[str, dict[str, FloatArray]]:
    middle = constants.medians()
    costs = price_parts_usd(
        designs,
        middle,
        area_mm2=area_mm2(designs, middle),
        core_mm2=core_area_mm2(designs, middle),
        tdp_w=tdp_w(designs, middle),
        volume=volume,
    )
    return {
        "area_parts_mm2": _one_row(area_parts_mm2(designs, middle), len(designs)),
        "tdp_parts_w": _one_row(tdp_parts_w(designs, middle), len(designs)),
        "price_parts_usd": _one_row(costs, len(designs)),
    }


def _one_row(parts: Mapping[str, FloatArray], count: int) -> dict[str, FloatArray]:
    return {name: np.broadcast_to(value[0], (count,)) for name, value in parts.items()}
