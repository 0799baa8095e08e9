"""What a catalogued chip costs, on the same footing as a design.

Shape: `S` draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwmodels.accelerator.design import DesignColumns
from hwmodels.accelerator.known import load_known_silicon
from hwmodels.accelerator.priors import Constants
from hwmodels.accelerator.silicon import evaluate_silicon
from hwmodels.chip import Chip
from hwmodels.errors import ConfigError
from hwmodels.table import FloatArray


@dataclass(frozen=True, slots=True)
class CataloguedCosts:
    """Costs of one catalogued chip: (S,) draws, published figures repeated."""

    area_draws_mm2: FloatArray
    tdp_draws_w: FloatArray
    price_draws_usd: FloatArray
    switched_share: float
    price_basis: str


def catalogued(chip: Chip, constants: Constants) -> CataloguedCosts:
    """Published area and TDP, and the price to make where the die is described, else the market's.

    Raises:
        ConfigError: Neither is known.
    """
    samples = len(constants)
    known = {entry.name.lower(): entry for entry in load_known_silicon()}
    entry = known.get(chip.silicon.lower())
    share, area, tdp = 0.5, chip.die_mm2, chip.tdp_w
    if entry is not None:
        # One die is sold with different memories, whose capacity is priced.
        held_bytes = chip.memory_bytes / entry.design.memory_stacks
        design = entry.design.model_copy(update={"memory_bytes_per_stack": held_bytes})
        silicon = evaluate_silicon(
            DesignColumns.of([design]), rng=np.random.default_rng(0), constants=constants
        )
        price, basis = silicon.price_draws_usd[:, 0], "made, by the silicon model"
        parts = silicon.tdp_parts_w
        switched = (parts["matrix"] + parts["matrix_operands"]) / sum(parts.values())
        share = float(np.ravel(switched)[0])
        area = area or float(silicon.area_mm2.median[0])
        tdp = tdp or float(silicon.tdp_w.median[0])
    elif chip.price_usd is not None:
        price, basis = np.full(samples, chip.price_usd), "market price"
    else:
        raise ConfigError(
            f"{chip.name} has neither a price nor a described die", field="chip", value=chip.name
        )
    if tdp is None:
        raise ConfigError(f"{chip.name} has no TDP", field="chip", value=chip.name)
    return CataloguedCosts(
        area_draws_mm2=np.full(samples, np.nan if area is None else area),
        tdp_draws_w=np.full(samples, tdp),
        price_draws_usd=np.asarray(price, dtype=float),
        switched_share=share,
        price_basis=basis,
    )
