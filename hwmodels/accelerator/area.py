"""Die area: cells, lanes, memory and interfaces, each with its own scaling between nodes.

Logic scales with the node's logic density, SRAM with its bit cell, and analogue PHYs do not scale
(the convention of LLMCompass). Useful area over the floor plan's efficiency is the die; the rest
is the part `unused`.
"""

from __future__ import annotations

from hwmodels.accelerator.design import DesignColumns
from hwmodels.accelerator.linear import Term, parts, total
from hwmodels.accelerator.priors import Constants
from hwmodels.table import FloatArray

LOGIC, SRAM = "logic_area", "sram_area"
MEGA, GIGA = 1e6, 1e9


def area_terms(design: DesignColumns) -> list[Term]:
    """The summands of useful area over all dies of a package, in mm2, of what is made (spares
    included)."""
    made = design.made()
    scaleup = made.scaleup_bytes_per_s_per_dir / GIGA
    return [
        Term("matrix", ("mac_area",), made.macs, LOGIC, in_core=True),
        Term("matrix", ("mac_area", "fp8_area"), made.macs * made.fp8, LOGIC, in_core=True),
        Term("matrix", ("edge_area",), made.arrays * (made.rows + made.cols), LOGIC, in_core=True),
        Term("vector", ("lane_area",), made.lanes, LOGIC, in_core=True),
        Term("vector", ("register_area",), made.register_bytes / MEGA, SRAM, in_core=True),
        Term("special", ("special_area",), made.specials_per_cycle, LOGIC, in_core=True),
        Term("scratchpad", ("sram_area",), made.scratchpad_bytes / MEGA, SRAM, in_core=True),
        Term("network_on_chip", ("core_area",), made.cores, LOGIC, in_core=True),
        Term("memory_interface", ("hbm_phy_area",), made.memory_stacks, "", "phy_area"),
        Term("memory_interface", ("hbm_controller_area",), made.memory_stacks, LOGIC, "phy_area"),
        Term("scaleup_links", ("link_phy_area",), scaleup),
        Term("scaleup_links", ("link_logic_area",), scaleup, LOGIC),
        Term("nic_link", ("nic_phy_area",), made.nic_bytes_per_s_per_dir / GIGA),
        Term("die_to_die", ("die_to_die_area",), made.die_to_die_bytes_per_s / GIGA),
        Term("host_and_control", ("misc_area",), made.dies, LOGIC),
    ]


def area_mm2(design: DesignColumns, constants: Constants) -> FloatArray:
    """(S, H) mm2 of all compute dies of a package."""
    return total(area_terms(design), design, constants) / _useful(constants)


def core_area_mm2(design: DesignColumns, constants: Constants) -> FloatArray:
    """(S, H) mm2 of what is repeated with the cores, all dies, with its share of the unused
    area."""
    terms = [term for term in area_terms(design) if term.in_core]
    return total(terms, design, constants) / _useful(constants)


def area_parts_mm2(design: DesignColumns, constants: Constants) -> dict[str, FloatArray]:
    """(S, H) mm2 of each part; they sum to `area_mm2`."""
    error = constants.values["area_model_error"][:, None]
    useful = {name: value * error for name, value in _useful_parts(design, constants).items()}
    unused = sum(useful.values()) * (1.0 / _floorplan(constants) - 1.0)
    return {**useful, "unused": unused}


def _useful_parts(design: DesignColumns, constants: Constants) -> dict[str, FloatArray]:
    return parts(area_terms(design), design, constants)


def _useful(constants: Constants) -> FloatArray:
    return _floorplan(constants) / constants.values["area_model_error"][:, None]


def _floorplan(constants: Constants) -> FloatArray:
    return constants.values["floorplan"].clip(max=1.0)[:, None]
