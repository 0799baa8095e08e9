"""How good a design is: throughput, and throughput for its power, its money and its energy.

With several models throughput is aggregated first: the weighted geometric mean of each model's
tokens a second, or the worst regret, which is how much slower than the best design found for that
model a design is at worst. The other objectives follow from each model's in the same way.

Shapes: `H` designs, `W` models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hwmodels.table import FloatArray
from search.study_space import StudySpace

J_PER_KWH = 3.6e6

DIRECTIONS: Mapping[str, str] = {
    "throughput": "maximize",
    "throughput_per_w": "maximize",
    "throughput_per_usd": "maximize",
    "energy_per_token": "minimize",
}
UNITS: Mapping[str, str] = {
    "throughput": "tokens/s",
    "throughput_per_w": "tokens/s/W",
    "throughput_per_usd": "tokens/USD",
    "energy_per_token": "J/token",
}


@dataclass(frozen=True, slots=True)
class Bills:
    """What running and owning H clusters costs; each (H,), or (S, H) for draws.

    Args:
        chips: Chips of the cluster.
        tdp_w: A chip's TDP.
        network_w: The network's power, a chip.
        chip_usd: A chip as made.
        network_usd: The network's price, a chip.
        switched_share: Share of the TDP that follows the matrix units' use.
    """

    chips: FloatArray
    tdp_w: FloatArray
    network_w: FloatArray
    chip_usd: FloatArray
    network_usd: FloatArray
    switched_share: FloatArray


def metrics(
    space: StudySpace, tokens_per_s: FloatArray, hfu: FloatArray, bills: Bills
) -> dict[str, FloatArray]:
    """Every objective of every model, (..., H, W).

    Power while training is the TDP less what idle matrix units save; the energy bill is that over
    the life, at the building's PUE. Capital is chips at their markup and the network as bought.

    Args:
        space: Where prices of energy and time stand.
        tokens_per_s: (..., H, W) of the whole cluster.
        hfu: (..., H, W) share of the matrix peak that is used.
        bills: Costs, broadcast against H.
    """
    economics = space.economics
    used = np.clip(hfu, 0.0, 1.0)
    tdp, network, share, chips = (
        np.asarray(column)[..., None]
        for column in (bills.tdp_w, bills.network_w, bills.switched_share, bills.chips)
    )
    peak_w = chips * (tdp + network)
    running_w = chips * (tdp * (1.0 - share * (1.0 - used)) + network) * economics.pue
    capital_usd = chips * (
        economics.markup * np.asarray(bills.chip_usd)[..., None]
        + np.asarray(bills.network_usd)[..., None]
    )
    life_s = economics.life_s * economics.utilisation
    energy_usd = running_w * life_s / J_PER_KWH * economics.usd_per_kwh
    with np.errstate(divide="ignore"):
        energy_per_token = np.where(tokens_per_s > 0, running_w / tokens_per_s, np.inf)
    return {
        "throughput": tokens_per_s,
        "throughput_per_w": tokens_per_s / peak_w,
        "throughput_per_usd": tokens_per_s * life_s / (capital_usd + energy_usd),
        "energy_per_token": energy_per_token,
    }


def aggregated(
    space: StudySpace, objective: str, values: FloatArray, best: FloatArray
) -> FloatArray:
    """(..., H) one number a design of (..., H, W).

    Args:
        space: Weights and how to aggregate.
        objective: Of `OBJECTIVES`.
        values: That objective of every model.
        best: (W,) what is best known of each model, for the regret.

    Returns:
        The weighted geometric mean, in the objective's unit; or, for the worst regret, the worst
        model's value over the best known (at most 1; for what is minimised, at least 1).
    """
    if values.shape[-1] == 1 and space.aggregate == "geometric-mean":
        return values[..., 0]
    if space.aggregate == "worst-regret":
        ratio = values / best
        worst: FloatArray = ratio.min(axis=-1) if _maximised(objective) else ratio.max(axis=-1)
        return worst
    weights = np.array([job.weight for job in space.jobs])
    with np.errstate(divide="ignore"):
        logs = np.log(values)
    mean: FloatArray = np.exp((logs * weights).sum(axis=-1) / weights.sum())
    return mean


def best_known(objective: str, values: FloatArray) -> FloatArray:
    """(W,) the best of each model over (H, W) feasible designs; 1 where there is none."""
    if not len(values):
        return np.ones(values.shape[-1])
    best: FloatArray = values.max(axis=0) if _maximised(objective) else values.min(axis=0)
    return best


def scores(objective: str, values: FloatArray) -> FloatArray:
    """Larger is better, whatever the direction."""
    return values if _maximised(objective) else -values


def front_rows(values: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Rows of (H, objectives) scores that no other row beats in one without losing in another.

    Of rows equal in all, the first stands for them. Rows are returned by the first objective, the
    best first.
    """
    order = np.lexsort(tuple(-values[:, i] for i in reversed(range(values.shape[1]))))
    kept: list[int] = []
    for row in order.tolist():
        others = values[kept]
        if len(kept) and np.any(np.all(others >= values[row], axis=1)):
            continue
        kept.append(row)
    return np.array(kept, dtype=np.intp)


def _maximised(objective: str) -> bool:
    return DIRECTIONS[objective] == "maximize"
