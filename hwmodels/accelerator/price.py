"""What one packaged, tested chip on its board costs to make, in dollars, by part.

Dies at a wafer's price over good dies, stacks of memory, interposer and substrate, what assembly
loses, test, board, and the mask sets over a production volume. Design effort and margin are not
included: market prices of accelerators are 5 to 10 times these costs.
"""

from __future__ import annotations

from hwmodels.accelerator.design import DesignColumns
from hwmodels.accelerator.dies import dies_per_wafer, yield_with_harvesting
from hwmodels.accelerator.linear import memory_values, node_values
from hwmodels.accelerator.priors import Constants, PriorTable, load_priors
from hwmodels.table import FloatArray

GIGA = 1e9
INTERPOSER_MARGIN = 1.1
"""Interposer area over that of the dies and stacks on it (Chiplet Cloud)."""
DEFAULT_VOLUME = 100_000
"""Packages that share one mask set: a decision, not an uncertainty."""


def price_parts_usd(
    design: DesignColumns,
    constants: Constants,
    *,
    area_mm2: FloatArray,
    core_mm2: FloatArray,
    tdp_w: FloatArray,
    volume: float = DEFAULT_VOLUME,
    table: PriorTable | None = None,
) -> dict[str, FloatArray]:
    """Parts of the price of one package.

    Args:
        design: H designs.
        constants: S draws.
        area_mm2: (S, H) of all dies of a package.
        core_mm2: (S, H) of their cores.
        tdp_w: (S, H).
        volume: Packages that share the masks.
        table: Where the wafer's diameter stands; the package's priors if None.

    Returns:
        `die, memory, packaging, assembly_loss, test, board, masks`, each (S, H) dollars.
    """
    table = table or load_priors()
    error = _column(constants, "price_model_error")
    good = good_dies_per_wafer(
        design, constants, area_mm2=area_mm2, core_mm2=core_mm2, table=table
    )
    die = design.dies * node_values("wafer_price", design, constants) / good
    memory = memory_values("price", design, constants) * (design.memory_bytes / GIGA)
    stacks_mm2 = _column(constants, "hbm_footprint") * design.memory_stacks
    packaging = _column(constants, "substrate_price") + (
        _column(constants, "interposer_price") * INTERPOSER_MARGIN * (area_mm2 + stacks_mm2)
    )
    content = die + memory + packaging
    yielded = _column(constants, "assembly_yield").clip(max=1.0)
    test = _column(constants, "test_share") * content
    board = _column(constants, "board_price") + _column(constants, "board_price_per_w") * tdp_w
    masks = node_values("mask_price", design, constants) / volume
    values = {
        "die": die,
        "memory": memory,
        "packaging": packaging,
        "assembly_loss": content * (1.0 / yielded - 1.0),
        "test": test,
        "board": board,
        "masks": masks,
    }
    return {name: value * error for name, value in values.items()}


def good_dies_per_wafer(
    design: DesignColumns,
    constants: Constants,
    *,
    area_mm2: FloatArray,
    core_mm2: FloatArray,
    table: PriorTable | None = None,
) -> FloatArray:
    """(S, H) dies of a wafer that can be sold, those with spare cores off included."""
    table = table or load_priors()
    die_mm2 = area_mm2 / design.dies
    yielded = yield_with_harvesting(
        die_mm2,
        core_mm2 / design.dies,
        design.spare_cores / design.dies,
        node_values("defect_density", design, constants),
        _column(constants, "defect_clustering"),
    )
    good: FloatArray = dies_per_wafer(die_mm2, table.limit("wafer_diameter", "mm")) * yielded
    return good


def _column(constants: Constants, name: str) -> FloatArray:
    return constants.values[name][:, None]
