"""A chip as the frameworks count devices: one GPU, one GCD of an MI250X, one TPU chip."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from hwmodels.sourced import Sourced


class Chip(BaseModel):
    """One device. Rates are dense, one direction, SI.

    `peak_flop_per_s` maps a dtype (`bf16`, `fp16`, `fp32`, `tf32`, `fp8`, `fp4`) to the dense peak
    at the clock that the source states; `vector_flop_per_s` is the fp32 rate outside the matrix
    units. Link rates are the chip's own, all its links of a kind together. `kernel` holds the
    parameters of the kernel models by name, `kernel_status` says of each whether it was measured
    on this silicon, transferred from its family, or assumed.

    `facts` keeps the provenance of every number by dotted field name. `estimated` names the fields
    that the file left open and a rule filled; the rule is the `source` of their facts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    vendor: str = ""
    silicon: str = ""
    year: int | None = None
    peak_flop_per_s: Mapping[str, float]
    vector_flop_per_s: float = Field(gt=0)
    memory_bytes: float = Field(gt=0)
    memory_bytes_per_s: float = Field(gt=0)
    memory_type: str = ""
    num_cores: int = Field(ge=1)
    scaleup_bytes_per_s_per_dir: float | None = None
    scaleout_bytes_per_s_per_dir: float | None = None
    host_bytes_per_s_per_dir: float | None = None
    clock_hz: float | None = None
    l2_bytes: float | None = None
    sram_bytes: float | None = None
    tdp_w: float | None = None
    die_mm2: float | None = None
    price_usd: float | None = None
    rental_usd_per_hour: float | None = None
    kernel: Mapping[str, float] = Field(default_factory=dict)
    kernel_status: Mapping[str, str] = Field(default_factory=dict)
    estimated: tuple[str, ...] = ()
    facts: Mapping[str, Sourced] = Field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    def columns(self) -> dict[str, float]:
        """The numbers that the cost models read, by column name of a hardware table."""
        return {
            "memory_bytes": self.memory_bytes,
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "vector_flop_per_s": self.vector_flop_per_s,
            "num_cores": float(self.num_cores),
            **{f"peak_flop_per_s.{dtype}": peak for dtype, peak in self.peak_flop_per_s.items()},
            **{f"kernel.{name}": value for name, value in self.kernel.items()},
        }
