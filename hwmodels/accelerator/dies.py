"""Good dies from a wafer: how many fit, how many work, and how many can be sold with some cores
off.

References:
    [Stapper1983] C. Stapper et al., "Integrated circuit yield statistics", Proc. IEEE 71(4): the
        negative binomial law, a Poisson count whose density is gamma distributed over dies.
    [deVries2005] D. de Vries, "Investigation of gross die per wafer formulas", IEEE TSM 18(1):
        N = pi (d/2)^2 / A - pi d / sqrt(2 A).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.table import FloatArray


def dies_per_wafer(die_mm2: ArrayLike, wafer_diameter_mm: float) -> FloatArray:
    """Whole dies on a wafer [deVries2005]; at least one, so that absurd dies stay finite."""
    area = np.asarray(die_mm2, dtype=float)
    count = np.pi * (wafer_diameter_mm / 2.0) ** 2 / area
    count = count - np.pi * wafer_diameter_mm / np.sqrt(2.0 * area)
    return np.maximum(count, 1.0)


def yield_with_harvesting(
    die_mm2: ArrayLike,
    core_mm2: ArrayLike,
    spare_cores: ArrayLike,
    defects_per_mm2: ArrayLike,
    clustering: ArrayLike,
) -> FloatArray:
    """Share of dies with no defect outside the cores and at most `spare_cores` defects inside.

    With gamma-distributed density, P(no defect outside, j inside) = Gamma(a + j) / (Gamma(a) j!) *
    (x_c / a)^j / (1 + x / a)^(a + j), where x is the mean count on the die and x_c on its cores
    [Stapper1983]. j = 0 is the negative binomial yield. Each defect is taken to cost a core of its
    own: slightly pessimistic.

    Args:
        die_mm2: Die area, broadcastable with the rest.
        core_mm2: Area of all cores of the die, spares included.
        spare_cores: Cores of the die that may fail; a fraction is rounded down.
        defects_per_mm2: Mean density.
        clustering: a of the negative binomial.

    Returns:
        Yields in (0, 1].
    """
    die, core, spare, density, alpha = np.broadcast_arrays(
        *(
            np.asarray(value, dtype=float)
            for value in (die_mm2, core_mm2, spare_cores, defects_per_mm2, clustering)
        )
    )
    spare = np.floor(spare)
    term = (1.0 + die * density / alpha) ** -alpha
    ratio = core * density / (alpha + die * density)
    result: FloatArray = term.copy()
    for defects in range(int(spare.max(initial=0))):
        term = term * ratio * ((alpha + defects) / (defects + 1.0))
        result += np.where(defects < spare, term, 0.0)
    return result
