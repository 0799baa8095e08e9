"""A chip file as a `Chip`: read, checked against itself, and completed by rules.

Only the name, one peak, the memory and its rate are required. What else the cost models need and
the file does not say is estimated (`estimates.yaml`, and the kernel parameters of the nearest
family), listed in `Chip.estimated`, with the rule as the source of the fact.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hwmodels.catalog import names, rules
from hwmodels.chip import Chip
from hwmodels.sourced import Section, Sourced, Status, estimated, load_document

if TYPE_CHECKING:
    from hwmodels.kernels.parameters import Parameter

DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "fp4")
LINKS = ("scaleup", "scaleout", "host")
QUANTITIES = {
    "vector_peak": ("vector_flop_per_s", "flop_per_s"),
    "memory": ("memory_bytes", "bytes"),
    "memory_rate": ("memory_bytes_per_s", "bytes_per_s"),
    "clock": ("clock_hz", "hz"),
    "l2": ("l2_bytes", "bytes"),
    "sram": ("sram_bytes", "bytes"),
    "tdp": ("tdp_w", "w"),
    "die_area": ("die_mm2", "mm2"),
    "price": ("price_usd", "usd"),
    "rental": ("rental_usd_per_hour", "usd_per_hour"),
}
"""Key of a chip file to its field of `Chip` and its dimension."""

REQUIRED = ("kind", "name", "peak", "memory", "memory_rate")
KEYS = (
    *REQUIRED,
    *(key for key in QUANTITIES if key not in REQUIRED),
    *("vendor", "silicon", "year", "source", "date", "status", "notes", "links", "cores"),
    *("memory_type", "memory_stacks", "memory_pin_rate", "matrix_units", "matrix_flop_per_clock"),
    *("scaleup_technology", "scaleup_size", "kernel"),
)
PINS_PER_STACK = 1024
MAX_SCALEUP = 10_000
_SLACK = 1.1
_KERNEL_STATUS = {"verified": "measured", "recalled": "assumed", "estimated": "assumed"}


def load_chip(name_or_path: str | Path, *, field: str = "chip") -> Chip:
    """A chip of the catalogue by name or alias, or one of your own by the path of its file.

    Args:
        name_or_path: Such as `h100`, `A100-SXM4-80GB`, or `mine.yaml`.
        field: Where the name was given, for the error.

    Raises:
        ConfigError: Unknown or ambiguous name, or a file that is wrong.
    """
    path = Path(name_or_path)
    if not names.is_path(name_or_path):
        path = names.find("chips", str(name_or_path), what="chip", field=field)
    return read_chip(load_document(path, kinds=("chip",)))


def read_chip(section: Section) -> Chip:
    """The chip of an open file."""
    section.only(KEYS, REQUIRED)
    facts = _stated(section)
    _refuse_impossible(section, facts)
    facts.update(_estimates(facts))
    rules.technology(section, "scaleup_technology", "other-scaleup")
    section.integer("scaleup_size", 1, maximum=MAX_SCALEUP)
    numbers = {name: fact.value for name, fact in facts.items() if "." not in name}
    chip = Chip(
        name=section.text("name"),
        vendor=section.text("vendor", ""),
        silicon=section.text("silicon", "").lower(),
        year=section.integer("year", minimum=1990, maximum=2100) if "year" in section else None,
        peak_flop_per_s=_group(facts, "peak_flop_per_s"),
        memory_type=section.text("memory_type", ""),
        **{**numbers, "num_cores": round(numbers["num_cores"])},
        kernel=_group(facts, "kernel"),
        kernel_status={
            name.removeprefix("kernel."): _KERNEL_STATUS[fact.status]
            for name, fact in facts.items()
            if name.startswith("kernel.")
        },
        facts=facts,
        notes=section.texts("notes"),
    )
    return attach_kernel_parameters(chip, section)


def attach_kernel_parameters(chip: Chip, section: Section | None = None) -> Chip:
    """The chip with every kernel parameter: its own, else those of its silicon or family.

    This is the one place where chips and `hwmodels.kernels.parameters` meet; it also sums up what
    is estimated.

    Raises:
        ConfigError: The chip's file states a kernel parameter that no model reads.
    """
    from hwmodels.kernels import parameters  # reads files, so only when a chip is loaded

    known = parameters.parameters_for(
        chip.silicon, vendor=chip.vendor, memory_bytes_per_s=chip.memory_bytes_per_s
    )
    values = parameters.columns_with_defaults(
        {name: entry.value for name, entry in known.items()}, chip.peak_flop_per_s
    )
    for name in chip.kernel:
        if name not in values and section is not None:
            near = difflib.get_close_matches(name[:60], values, n=1)
            (section.section("kernel") or section).refuse(
                name,
                "no kernel model reads this",
                allowed=sorted(values),
                hint=f"did you mean {near[0]!r}?" if near else None,
            )
        if "efficiency" in name and chip.kernel[name] > 1 and section is not None:
            (section.section("kernel") or section).refuse(
                name,
                f"{chip.kernel[name]:g} is above 1: no kernel beats the peak",
                value=chip.kernel[name],
                allowed="a share of the peak, up to 1",
            )
    status = {name: known[name].status if name in known else "assumed" for name in values}
    facts = dict(chip.facts)
    for name in sorted(values.keys() - chip.kernel.keys()):
        facts[f"kernel.{name}"] = _kernel_fact(values[name], known.get(name))
    status.update(chip.kernel_status)
    estimates = [name for name, fact in facts.items() if fact.status == "estimated"]
    return chip.model_copy(
        update={
            "kernel": {**values, **chip.kernel},
            "kernel_status": status,
            "facts": facts,
            "estimated": tuple(sorted(estimates)),
        }
    )


def _stated(section: Section) -> dict[str, Sourced]:
    facts: dict[str, Sourced | None] = {
        field: section.quantity(key, dimension) for key, (field, dimension) in QUANTITIES.items()
    }
    cores = facts["num_cores"] = section.ratio("cores", minimum=1, maximum=1e7)
    if cores is not None and not cores.value.is_integer():
        section.refuse("cores", f"{cores.written} is not a whole number", value=cores.value)
    peaks = section.section("peak")
    if peaks is None:
        section.refuse(None, "missing peak")
    peaks.only(DTYPES)
    for dtype in peaks:
        facts[f"peak_flop_per_s.{dtype}"] = peaks.quantity(dtype, "flop_per_s")
    if not list(peaks):
        section.refuse("peak", "states no rate", allowed=DTYPES)
    links = section.section("links")
    if links is not None:
        links.only(LINKS)
        for link in links:
            facts[f"{link}_bytes_per_s_per_dir"] = links.quantity(link, "bytes_per_s")
    kernel = section.section("kernel")
    for name in kernel or ():
        facts[f"kernel.{name}"] = None if kernel is None else kernel.ratio(name)
    return {name: fact for name, fact in facts.items() if fact is not None}


def _estimates(facts: Mapping[str, Sourced]) -> dict[str, Sourced]:
    """What the cost models need and the file leaves open."""
    filled: dict[str, Sourced] = {}
    vector, fp32 = facts.get("vector_flop_per_s"), facts.get("peak_flop_per_s.fp32")
    if vector is None and fp32 is not None:
        # Catalogued fp32 peaks are those of the vector units; the file said as much.
        vector = filled["vector_flop_per_s"] = replace(fp32, low=None, high=None)
    if vector is None:
        rule = rules.estimate("vector_per_matrix")
        peak = _main_peak(facts).value
        vector = filled["vector_flop_per_s"] = replace(
            estimated(peak * rule.value, "flop_per_s", rule.source),
            low=None if rule.low is None else peak * rule.low,
            high=None if rule.high is None else peak * rule.high,
        )
    if fp32 is None:
        reason = rules.estimate("fp32_per_vector")
        filled["peak_flop_per_s.fp32"] = estimated(
            vector.value * reason.value, "flop_per_s", reason.source
        )
    if "num_cores" not in facts:
        filled["num_cores"] = rules.estimate("cores")
    return filled


def _main_peak(facts: Mapping[str, Sourced]) -> Sourced:
    peaks = {name.split(".")[1]: f for name, f in facts.items() if name.startswith("peak_flop_")}
    return next(peaks[dtype] for dtype in DTYPES if dtype in peaks)


def _refuse_impossible(section: Section, facts: Mapping[str, Sourced]) -> None:
    """Refuse rates above what the file's own units, pins and clock can do.

    The commonest slips are a peak quoted with structured sparsity and a rate of both directions.
    """
    units = section.integer("matrix_units", 0)
    per_clock = section.number("matrix_flop_per_clock", 0.0)
    dense = units * per_clock * (facts["clock_hz"].value if "clock_hz" in facts else 0.0)
    for dtype in ("bf16", "fp16"):
        peak = facts.get(f"peak_flop_per_s.{dtype}")
        if dense and peak is not None and peak.value > _SLACK * dense:
            section.refuse(
                "peak",
                f"{dtype} {peak} is {peak.value / dense:.2f} times units x FLOP per clock x clock",
                value=peak.written,
                hint="peaks are dense: halve a figure quoted with structured sparsity",
            )
    pin_rate = section.quantity("memory_pin_rate", "bytes_per_s")
    pins = section.integer("memory_stacks", 0) * PINS_PER_STACK
    rate = facts["memory_bytes_per_s"]
    if pin_rate is not None and pins and rate.value > _SLACK * pins * pin_rate.value:
        times = rate.value / (pins * pin_rate.value)
        section.refuse("memory_rate", f"{rate} is {times:.2f} times what its stacks can do")


def _kernel_fact(value: float, entry: Parameter | None) -> Sourced:
    if entry is None:
        return Sourced(value, source="taken from the nearest dtype", status="estimated")
    status: Status = "verified" if entry.status == "measured" else "estimated"
    return Sourced(value, source=entry.source, low=entry.low, high=entry.high, status=status)


def _group(facts: Mapping[str, Sourced], stem: str) -> dict[str, float]:
    start = len(stem) + 1
    return {n[start:]: fact.value for n, fact in facts.items() if n.startswith(f"{stem}.")}
