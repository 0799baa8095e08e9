"""A design as a chip: the columns that the kernel models and the evaluator read.

Kernel parameters are those of the systolic family, with one difference: the clock does not sag
under load, because the TDP is priced at the peak rates.
"""

from __future__ import annotations

import numpy as np

from hwmodels.accelerator.conditioning import nominal_constants
from hwmodels.accelerator.design import FP8_PACKED, DesignColumns
from hwmodels.accelerator.gemm import COLUMNS
from hwmodels.accelerator.silicon import SiliconColumns, evaluate_silicon
from hwmodels.accelerator.template import Systolic
from hwmodels.chip import Chip
from hwmodels.kernels import parameters
from hwmodels.table import FloatArray

FAMILY = "systolic"
_KERNEL = "kernel."


def to_chip_columns(designs: DesignColumns) -> dict[str, FloatArray]:
    """Chip columns of H designs for a `HardwareTable`, each (H,).

    fp8 has a column only where all designs have fp8 units: a table with a design that lacks them
    refuses fp8 rather than guess.
    """
    peak = designs.peak_bf16_flop_per_s
    columns = {
        "memory_bytes": designs.memory_bytes,
        "memory_bytes_per_s": designs.memory_bytes_per_s,
        "vector_flop_per_s": designs.vector_flop_per_s,
        "num_cores": designs.cores,
        "peak_flop_per_s.bf16": peak,
    }
    if np.all(designs.fp8):
        columns["peak_flop_per_s.fp8"] = FP8_PACKED * peak
    own = {
        "systolic_rows": designs.rows,
        "systolic_cols": designs.cols,
        "systolic_arrays": designs.arrays,
        "scratchpad_bytes": designs.scratchpad_bytes,
        "special_op_per_s": designs.specials_per_cycle * designs.clock_hz,
    }
    shared = {
        name: np.full(len(designs), value) for name, value in _family_parameters()[0].items()
    }
    kernel = {**shared, **{name: own[name] for name in COLUMNS}}
    return {**columns, **{f"{_KERNEL}{name}": value for name, value in kernel.items()}}


def to_chip(design: Systolic, silicon: SiliconColumns | None = None, *, row: int = 0) -> Chip:
    """A design as a `Chip`, with median area, TDP and price to make.

    Args:
        design: The design.
        silicon: Its evaluation, if there is one; else the conditioned medians of the constants are
            used.
        row: The design's row in `silicon`.
    """
    columns = DesignColumns.of([design])
    if silicon is None:
        silicon = evaluate_silicon(
            columns, rng=np.random.default_rng(0), constants=nominal_constants()
        )
    values = {name: float(column[0]) for name, column in to_chip_columns(columns).items()}
    kernel = {
        name.removeprefix(_KERNEL): value
        for name, value in values.items()
        if name.startswith(_KERNEL)
    }
    status = dict.fromkeys(kernel, "assumed") | _family_parameters()[1]
    prefix = "peak_flop_per_s."
    return Chip(
        name=design.name,
        vendor="template",
        peak_flop_per_s={
            name.removeprefix(prefix): value
            for name, value in values.items()
            if name.startswith(prefix)
        },
        vector_flop_per_s=values["vector_flop_per_s"],
        memory_bytes=values["memory_bytes"],
        memory_bytes_per_s=values["memory_bytes_per_s"],
        memory_type=design.memory,
        num_cores=design.cores,
        scaleup_bytes_per_s_per_dir=design.scaleup_bytes_per_s_per_dir,
        scaleout_bytes_per_s_per_dir=design.nic_bytes_per_s_per_dir,
        host_bytes_per_s_per_dir=design.nic_bytes_per_s_per_dir,
        clock_hz=design.clock_hz,
        sram_bytes=float((columns.scratchpad_bytes + columns.register_bytes)[0]),
        tdp_w=float(silicon.tdp_w.median[row]),
        die_mm2=float(silicon.area_mm2.median[row]),
        price_usd=float(silicon.price_usd.median[row]),
        kernel=kernel,
        kernel_status=status,
        estimated=("tdp_w", "die_mm2", "price_usd", *(f"kernel.{name}" for name in kernel)),
    )


def _family_parameters() -> tuple[dict[str, float], dict[str, str]]:
    values, status = parameters.for_silicon("", family=FAMILY)
    held = {name: 1.0 for name in values if name.startswith("matmul_sustained.")}
    return {**values, **held}, status
