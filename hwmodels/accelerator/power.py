"""Power at peak rates: the TDP that a design needs, and its parts.

Energy of an event x events a second, summed, plus static power as a share of the total. Logic and
SRAM energies scale with the node and with the square of the voltage, which follows the clock;
links and memory do neither. All rates are taken at their peak at once, so this is a power that
cooling must stand, not the power of a training step: pessimistic for chips whose TDP is a throttle
point.

Reference: DeepFlow technology files: V = V_threshold + (V_nominal - V_threshold) f / f_nominal,
floor V_threshold + margin.
"""

from __future__ import annotations

import numpy as np

from hwmodels.accelerator.design import FP8_PACKED, DesignColumns
from hwmodels.accelerator.linear import Term, node_values, parts, total
from hwmodels.accelerator.priors import Constants, PriorTable, load_priors
from hwmodels.table import FloatArray

ENERGY = "energy"
PICO = 1e-12
BITS = 8.0
MEGA, GIGA = 1e6, 1e9


def power_terms(design: DesignColumns) -> tuple[list[Term], list[Term]]:
    """The summands of dynamic power in W: those that follow the voltage, and those that do not."""
    fma_per_s = design.macs * design.clock_hz * PICO
    switched = [
        Term("matrix", ("mac_energy",), fma_per_s, ENERGY),
        Term("matrix_operands", ("sram_energy",), design.array_bytes_per_s * PICO, ENERGY),
        Term("vector", ("lane_energy",), design.lanes * design.clock_hz * PICO, ENERGY),
        Term(
            "special",
            ("special_energy",),
            design.specials_per_cycle * design.clock_hz * PICO,
            ENERGY,
        ),
    ]
    fixed = [
        Term("scratchpad_leakage", ("sram_leakage",), design.scratchpad_bytes / MEGA),
        Term("memory", (), design.memory_bytes_per_s * PICO, "", "energy"),
        Term("scaleup_links", ("link_energy",), design.scaleup_bytes_per_s_per_dir * BITS * PICO),
        Term("nic_link", ("nic_energy",), design.nic_bytes_per_s_per_dir * BITS * PICO),
        Term("die_to_die", ("die_to_die_energy",), design.die_to_die_bytes_per_s * BITS * PICO),
    ]
    return switched, fixed


def voltage_squared(
    design: DesignColumns, constants: Constants, table: PriorTable | None = None
) -> FloatArray:
    """(S, H) square of the voltage that the clock needs, over that of the nominal voltage."""
    table = table or load_priors()
    threshold, nominal = table.limit("voltage_threshold", "V"), table.limit("voltage_nominal", "V")
    lowest = threshold + table.limit("voltage_margin", "V")
    ratio = design.clock_hz / GIGA / node_values("nominal_clock", design, constants)
    volts = np.maximum(threshold + (nominal - threshold) * ratio, lowest)
    squared: FloatArray = (volts / nominal) ** 2
    return squared


def tdp_w(design: DesignColumns, constants: Constants) -> FloatArray:
    """(S, H) W of a package at its peak rates, memory included."""
    switched, fixed = power_terms(design)
    dynamic = total(switched, design, constants) * voltage_squared(design, constants)
    dynamic += total(fixed, design, constants)
    dynamic += _fp8_extra(design, constants)
    watts: FloatArray = dynamic * _gross(constants)
    return watts


def tdp_parts_w(design: DesignColumns, constants: Constants) -> dict[str, FloatArray]:
    """(S, H) W of each part; they sum to `tdp_w`."""
    switched, fixed = power_terms(design)
    squared = voltage_squared(design, constants)
    dynamic = {name: value * squared for name, value in parts(switched, design, constants).items()}
    dynamic["matrix"] = dynamic["matrix"] + _fp8_extra(design, constants)
    dynamic |= parts(fixed, design, constants)
    error = constants.values["power_model_error"][:, None]
    dynamic = {name: value * error for name, value in dynamic.items()}
    dynamic["static"] = sum(dynamic.values()) * (_gross(constants) / error - 1.0)
    return dynamic


def _fp8_extra(design: DesignColumns, constants: Constants) -> FloatArray:
    """(S, H) W by which two fp8 products a cycle exceed one bf16 product, where they do."""
    over = np.maximum(FP8_PACKED * constants.values["fp8_energy"] - 1.0, 0.0)
    each = (over * constants.values["mac_energy"])[:, None] * node_values(
        ENERGY, design, constants
    )
    watts: FloatArray = each * (design.macs * design.clock_hz * design.fp8 * PICO)
    return watts * voltage_squared(design, constants)


def _gross(constants: Constants) -> FloatArray:
    share = constants.values["static_share"].clip(max=0.9)
    gross: FloatArray = (constants.values["power_model_error"] / (1.0 - share))[:, None]
    return gross
