"""What physics allows: every limit as an amount by which a design exceeds it.

A violation is a value, positive where a limit is broken, so that a search can treat it as a
constraint; the template refuses the same values by name. Area comes from the medians of the
conditioned constants, so a design near the reticle is judged by its middle, and `silicon` tells
how likely it is to fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwmodels.accelerator.area import area_mm2
from hwmodels.accelerator.conditioning import nominal_constants
from hwmodels.accelerator.design import DesignColumns
from hwmodels.accelerator.linear import node_values
from hwmodels.accelerator.power import tdp_w
from hwmodels.accelerator.priors import Constants, load_priors
from hwmodels.table import FloatArray

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Violation:
    """One limit over H designs.

    Args:
        field: The template's field to blame.
        unit: Of all amounts.
        needed: (H,) what the design asks for.
        allowed: (H,) what there is.
    """

    field: str
    unit: str
    needed: FloatArray
    allowed: FloatArray

    @property
    def excess(self) -> FloatArray:
        """(H,) by how much the limit is broken; zero or negative where it holds."""
        over: FloatArray = self.needed - self.allowed
        return over


def violations(designs: DesignColumns, constants: Constants | None = None) -> dict[str, Violation]:
    """Every limit that depends on the silicon: clock, memory, reticle, beachfront, power density.

    Args:
        designs: H designs.
        constants: One draw; the conditioned medians if None.

    Returns:
        Name of the limit to its amounts.
    """
    constants = constants or nominal_constants()
    table = load_priors()
    die_mm2 = np.broadcast_to(area_mm2(designs, constants)[0] / designs.dies, (len(designs),))
    side_mm = np.sqrt(die_mm2)
    stack_mm = _of_memory("edge", designs, constants)
    memory_mm = designs.memory_stacks / designs.dies * stack_mm
    link_gb = designs.scaleup_bytes_per_s_per_dir + designs.nic_bytes_per_s_per_dir
    links_mm = link_gb / GIGA / designs.dies * table.limit("link_edge", "mm/(GB/s)")
    # One side of each die faces the next one.
    free_sides = np.where(designs.dies > 1, 3.0, 4.0)
    watts = np.broadcast_to(tdp_w(designs, constants)[0], (len(designs),))
    density = np.full(len(designs), table.limit("power_density", "W/mm2"))
    return {
        "clock": Violation(
            "clock_hz",
            "GHz",
            designs.clock_hz / GIGA,
            np.broadcast_to(node_values("max_clock", designs, constants)[0], (len(designs),)),
        ),
        "memory rate": Violation(
            "memory_bytes_per_s_per_stack",
            "GB/s",
            designs.memory_bytes_per_s_per_stack / GIGA,
            _of_memory("rate", designs, constants),
        ),
        "memory capacity": Violation(
            "memory_bytes_per_stack",
            "GB",
            designs.memory_bytes_per_stack / GIGA,
            _of_memory("capacity", designs, constants),
        ),
        "reticle": Violation(
            "dies", "mm2", die_mm2, np.full(len(designs), table.limit("reticle", "mm2"))
        ),
        # Stacks sit along two opposite sides; everything shares the free perimeter.
        "memory beachfront": Violation("memory_stacks", "mm", memory_mm, 2.0 * side_mm),
        "beachfront": Violation(
            "scaleup_bytes_per_s_per_dir", "mm", memory_mm + links_mm, free_sides * side_mm
        ),
        "power density": Violation("clock_hz", "W/mm2", watts / (die_mm2 * designs.dies), density),
    }


def _of_memory(name: str, designs: DesignColumns, constants: Constants) -> FloatArray:
    values: FloatArray = constants.by_memory[name][0][designs.memory]
    return values
