"""Kernel parameters that no measured row supports, with the reason and a wide range for each."""

from __future__ import annotations

from collections.abc import Mapping

from hwmodels.kernels.parameters import ASSUMED, Parameter

_LIBRARY_GUIDE = (
    "NVIDIA Matrix Multiplication Background User's Guide: 16-byte alignment advised; no row"
)
_FA2 = "Dao, arXiv 2307.08691: block of 128 queries; estimate"


def _assumed(value: float, low: float, high: float, unit: str, source: str) -> Parameter:
    return Parameter(value=value, low=low, high=high, unit=unit, status=ASSUMED, source=source)


ASSUMPTIONS: Mapping[str, Parameter] = {
    "matmul_misaligned_efficiency": _assumed(
        1.0, 0.7, 1.0, "1", "rows of V100 and MI25 with odd sizes show no loss; newer chips no row"
    ),
    "matmul_misaligned_batched_efficiency": _assumed(0.4, 0.2, 0.9, "1", _LIBRARY_GUIDE),
    "matmul_boost_s": _assumed(1.0, 1e-4, 1.0, "s", "no loss of clock within one kernel"),
    "attention_backward_ratio": _assumed(0.95, 0.75, 1.0, "1", _FA2),
    "attention_cache_passes": _assumed(
        2.0, 1.0, 3.0, "passes", "one read and one write of k and v"
    ),
    "conv_grouped_efficiency": _assumed(
        0.4, 0.15, 0.8, "1", "of the vector rate; depthwise kernels reuse little; no row"
    ),
    "memory_efficiency": _assumed(
        0.82, 0.4, 0.92, "1", "streams reach 0.8 to 0.9 on A100, H100; eager passes less on MI210"
    ),
    "optimizer_memory_efficiency": _assumed(
        0.8, 0.55, 0.9, "1", "as other passes, with more streams at once; no row"
    ),
    "pointwise_start_s": _assumed(3e-6, 1.5e-6, 8e-6, "s", "start on the device; no row"),
}
# Low precision and matrix units of 32 bit without a row of their own, relative to 16 bit.
EFFICIENCY_OVER_16_BIT: Mapping[str, tuple[float, float, float, str]] = {
    "fp8": (1.0, 0.85, 1.1, "as 16 bit; on H100 and GB200 0.94 to 1.07 of it"),
    "tf32": (1.0, 0.85, 1.1, "as 16 bit; no row"),
    "fp4": (0.85, 0.55, 1.0, "below fp8, scales are more frequent; no row"),
}
GENERIC_EFFICIENCY = _assumed(
    0.7, 0.45, 0.95, "1", "best published matmuls of nine chips span 0.51 to 0.97 of peak"
)
# What a file states for the sustained clock where no row tells it apart.
SUSTAINED_UNKNOWN = _assumed(
    1.0, 0.78, 1.0, "1", "rows do not tell burst from sustained; A100 0.90 and H100 0.80 do"
)

# Matrix units fed by a compiler's schedule: little to fill, no waves of blocks, no reload
# penalty of small tiles that published best matmuls would show.
SYSTOLIC_SHAPE: Mapping[str, Parameter] = {
    "matmul_k0": _assumed(
        32.0, 0.0, 256.0, "elements", "Gaudi 2 reaches 0.97 of peak at k = 2048; no other row"
    ),
    "matmul_tile_half": _assumed(0.0, 0.0, 64.0, "elements", "operands are staged ahead; no row"),
    "matmul_wave_exposure": _assumed(0.0, 0.0, 1.0, "1", "one or two cores; no row"),
}

DEFAULTS: Mapping[str, float] = {name: entry.value for name, entry in ASSUMPTIONS.items()}
