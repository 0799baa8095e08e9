"""Write the fitted parameters, their ranges and their sources into the calibration files."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from hwmodels.calibration import kernels, rows
from hwmodels.calibration.assumptions import (
    ASSUMPTIONS,
    DEFAULTS,
    EFFICIENCY_OVER_16_BIT,
    GENERIC_EFFICIENCY,
    SUSTAINED_UNKNOWN,
    SYSTOLIC_SHAPE,
)
from hwmodels.calibration.fit import Fit
from hwmodels.calibration.rows import Observation
from hwmodels.kernels import conv, parameters
from hwmodels.kernels.parameters import ASSUMED, MEASURED, TRANSFERRED, Parameter

UNITS = {
    "matmul_k0": "elements",
    "matmul_tile_half": "elements",
    "matmul_start_s": "s",
    "matmul_boost_s": "s",
    "attention_start_s": "s",
    "pointwise_start_s": "s",
    "attention_softmax_flop_per_pair": "FLOP",
    "attention_block_occupancy": "blocks per core",
    "attention_diagonal": "keys",
    "attention_cache_passes": "passes",
    "conv_start_s": "s",
    "conv_fill": "times matmul_k0",
    "conv_tile": "times matmul_tile_half",
}
NOTES = {
    "ga100": "A100, A800",
    "gh100": "H100, H200, H800, GH200",
    "gb100": "B200, GB200",
    "gv100": "V100",
    "vega10": "MI25, no matrix units",
    "mi300x": "MI300X, MI325X",
    "mi355x": "MI350X, MI355X",
    "gaudi2": "Gaudi 2",
    "gaudi3": "Gaudi 3",
    "nvidia": "NVIDIA silicons without a file: one fit to A100, H100, GB200 and V100",
    "amd": "AMD Instinct without a file: level of its best matmuls, NVIDIA's shape parameters",
    "systolic": "TPU, Trainium, Gaudi without a file: level of Gaudi's best matmuls",
    "generic": "makers without any row",
}
_FAMILY_MARGIN = 0.05  # beyond what the silicons of a family span
_CONV_MARGIN = 0.25  # from one silicon to another, and its library ten years on
_DIGITS = 4
_ZERO = 1e-8  # a fit that ends below it ends at its bound

File = dict[str, Parameter]


WRITER = "hwmodels.calibration.writer.fit_all; change the fit, not this file"


def fit_all(*, write: bool = True, folder: Path | None = None) -> dict[str, File]:
    """Fit every silicon and family, and write one file each.

    Args:
        write: Whether to write; the result is the same.
        folder: Where to; the package's own calibration folder by default.

    Returns:
        File name (without suffix) to its parameters.
    """
    observations, _ = rows.read()
    fits = {name: dict(found) for name, found in kernels.fit_silicons().items()}
    pooled = kernels.pooled_matmul(observations, kernels.NVIDIA)
    fits |= kernels.best_matmul_fits(observations, pooled)
    out = {name: _silicon_file(observations, name, found) for name, found in fits.items()}
    out["nvidia"] = _nvidia_file(observations, pooled, out)
    out["amd"] = _level_family(out, ("mi300x", "mi355x"), "AMD")
    out["systolic"] = _level_family(out, ("gaudi2", "gaudi3"), "Gaudi") | dict(SYSTOLIC_SHAPE)
    for silicon in ("gaudi2", "gaudi3"):
        out[silicon] |= SYSTOLIC_SHAPE
    out["generic"] = _generic_file(out["nvidia"])
    if write:
        target = folder or Path(__file__).parent
        for name, entries in out.items():
            _write(target / f"{name}.yaml", name, entries)
        parameters.load.cache_clear()
        _write_held_out(target / "data" / "held_out.csv", observations)
    return out


def held_out_rows(observations: Sequence[Observation]) -> dict[str, tuple[float, float]]:
    """Row to its seconds with its shapes left out of the fit, and with its silicon left out.

    NaN where a row has no such prediction.
    """
    out: dict[str, tuple[float, float]] = {}
    for silicon, found in kernels.fit_silicons().items():
        main = kernels.MATMUL_SILICONS[silicon]
        chosen = kernels.select(observations, "matmul", silicon, main)
        for o, second in zip(chosen, found["matmul"].held_out_s, strict=True):
            out[o.id] = (float(second), float("nan"))
        for part, dtype in (("matmul.fp8", "fp8"), ("matmul.fp32", "fp32")):
            if part in found:
                chosen = kernels.select(observations, "matmul", silicon, (dtype,))
                for o, second in zip(chosen, found[part].held_out_s, strict=True):
                    out[o.id] = (float(second), float("nan"))
        if silicon in kernels.CONV_SILICONS:
            for precision, direction in product(conv.PRECISIONS, conv.DIRECTIONS):
                chosen = kernels.conv_rows(observations, silicon, precision, direction)
                held_out_s = found[f"conv.{precision}.{direction}"].held_out_s
                for o, second in zip(chosen, held_out_s, strict=True):
                    out[o.id] = (float(second), float("nan"))
        if "attention" in found:
            chosen = kernels.attention_rows(observations, (silicon,))
            for o, second in zip(chosen, found["attention"].held_out_s, strict=True):
                out[o.id] = (float(second), float("nan"))
    without = [kernels.left_out_silicon(silicon) for silicon in kernels.NVIDIA]
    without += [kernels.left_out_attention(silicon) for silicon in kernels.ATTENTION_SILICONS]
    for chosen, predicted_s in without:
        for o, second in zip(chosen, predicted_s, strict=True):
            out[o.id] = (out[o.id][0], float(second))
    return out


def _silicon_file(
    observations: Sequence[Observation], silicon: str, fits: Mapping[str, Fit]
) -> File:
    entries: File = {}
    used = [o for o in observations if o.device.silicon == silicon and o.fits]
    for part, found in fits.items():
        kind, _, dtype = part.partition(".")
        kind = {"memory": "memory rate", "attention_relative_rate": "attention"}.get(kind, kind)
        chosen = [o for o in used if o.kind == kind and dtype in _parts(o)]
        if part == "matmul":
            chosen = [o for o in chosen if o.dtype in kernels.MATMUL_SILICONS[silicon]]
        source = "; ".join(sorted({o.source for o in chosen}))
        data = f"{found.rows} {kind} rows: " + ", ".join(sorted({o.prefix for o in chosen}))
        for name, value in found.values.items():
            entries[name] = _entry(
                name, value, found.low[name], found.high[name], MEASURED, source, data
            )
    for name in [n for n in entries if n.startswith("matmul_efficiency.")]:
        sustained = name.replace("efficiency", "sustained")
        if sustained not in entries:
            entries[sustained] = _same_clock(entries, silicon) or SUSTAINED_UNKNOWN
    return entries


def _parts(o: Observation) -> tuple[str, ...]:
    """What may follow the class in the name of a fit that the row has part in."""
    return ("", o.dtype, o.implementation, f"{o.dtype}.{o.direction}")


def _same_clock(entries: File, silicon: str) -> Parameter | None:
    """The power limit found for 16 bit, for another dtype of the silicon."""
    if silicon not in kernels.SUSTAINED_SILICONS:
        return None
    return replace(entries["matmul_sustained.bf16"], status=TRANSFERRED)


def _nvidia_file(
    observations: Sequence[Observation], pooled: Mapping[str, float], files: Mapping[str, File]
) -> File:
    known = {**DEFAULTS, **pooled, "memory_efficiency": _mean(files, "memory_efficiency")}
    together = kernels.attention_fit(observations, kernels.ATTENTION_SILICONS, known)
    values = dict(pooled) | dict(together.values)
    values["memory_efficiency"] = known["memory_efficiency"]
    source = "one fit to the silicons of the family together, each with the same weight"
    entries: File = {}
    for name, value in values.items():
        alone = [files[s][name] for s in kernels.NVIDIA if name in files[s]]
        alone = [entry for entry in alone if entry.status == MEASURED]
        spans = [value, *(e.low for e in alone), *(e.high for e in alone)]
        data = ", ".join(s for s in kernels.NVIDIA if name in files[s])
        low, high = min(spans) * (1 - _FAMILY_MARGIN), max(spans) * (1 + _FAMILY_MARGIN)
        entries[name] = _entry(name, value, low, high, TRANSFERRED, source, data)
    for name, entry in files["ga100"].items():
        if name.startswith("attention_relative_rate."):
            entries[name] = _entry(
                name,
                entry.value,
                0.85 * entry.low,
                1.15 * entry.high,
                TRANSFERRED,
                entry.source,
                entry.data,
            )
    entries |= _conv_family(files["gv100"])
    main = entries["matmul_efficiency.bf16"]
    for dtype, (ratio, low, high, why) in EFFICIENCY_OVER_16_BIT.items():
        name = f"matmul_efficiency.{dtype}"
        entries[name] = _entry(
            name, ratio * main.value, low * main.low, high * main.high, ASSUMED, why
        )
    fp32 = files["gv100"]["matmul_efficiency.fp32"]
    entries["matmul_efficiency.fp32"] = replace(
        fp32, status=TRANSFERRED, low=_rounded(0.8 * fp32.low)
    )
    for dtype in ("fp8", "fp4", "tf32", "fp32"):
        entries[f"matmul_sustained.{dtype}"] = replace(
            entries["matmul_sustained.bf16"], status=ASSUMED, source="as 16 bit"
        )
    return entries


def _conv_family(measured: File) -> File:
    """Convolutions of one silicon for its family, at a range for the step to another."""
    entries: File = {}
    for name, entry in measured.items():
        if name.startswith("conv_"):
            low, high = (1 - _CONV_MARGIN) * entry.low, (1 + _CONV_MARGIN) * entry.high
            source = "V100's, relative to the matmuls of each silicon; " + entry.source
            entries[name] = _entry(name, entry.value, low, high, TRANSFERRED, source, entry.data)
    return entries


def _level_family(files: Mapping[str, File], silicons: Sequence[str], maker: str) -> File:
    """Efficiency from a maker's best matmuls; all else comes from the generic file."""
    entries: File = {}
    for dtype in ("bf16", "fp16", "fp8", "tf32", "fp4", "fp32"):
        name = f"matmul_efficiency.{dtype}"
        own = [f[name] for f in (files[s] for s in silicons) if name in f]
        status = TRANSFERRED if own else ASSUMED
        own = own or [files[s]["matmul_efficiency.bf16"] for s in silicons]
        mean = sum(e.value for e in own) / len(own)
        low, high = min(e.low for e in own), max(e.high for e in own)
        source = f"mean of {maker}'s published best matmuls; " + own[0].source
        entries[name] = _entry(name, mean, low, high, status, source, ", ".join(silicons))
        entries[f"matmul_sustained.{dtype}"] = SUSTAINED_UNKNOWN
    return entries


def _generic_file(family: File) -> File:
    """NVIDIA's parameters with twice the doubt, and what nobody measured."""
    entries: File = dict(ASSUMPTIONS)
    for name, entry in family.items():
        if name.startswith("matmul_efficiency."):
            entries[name] = GENERIC_EFFICIENCY
        elif name.startswith("matmul_sustained."):
            entries[name] = SUSTAINED_UNKNOWN
        elif name not in ASSUMPTIONS:
            low, high = 2 * entry.low - entry.value, 2 * entry.high - entry.value
            source = "NVIDIA's, with twice the range"
            if name.startswith("conv_"):  # a range that is wide already would reach to nothing
                low, high = 0.5 * entry.low, 1.5 * entry.high
                source = "NVIDIA's, with half of its lower and 1.5 times its upper end"
            entries[name] = _entry(name, entry.value, low, high, ASSUMED, source)
    return entries


def _mean(files: Mapping[str, File], name: str) -> float:
    values = [files[s][name].value for s in kernels.ATTENTION_SILICONS]
    return sum(values) / len(values)


def _entry(
    name: str, value: float, low: float, high: float, status: str, source: str, data: str = ""
) -> Parameter:
    unit = UNITS.get(name.partition(".")[0], "1")
    value = _rounded(value)
    ceiling = 1.0 if unit == "1" else float("inf")
    return Parameter(
        value=value,
        low=min(value, max(0.0, _rounded(low))),
        high=max(value, min(ceiling, _rounded(high))),
        unit=unit,
        status=status,
        source=source,
        data=data,
    )


def _write_held_out(path: Path, observations: Sequence[Observation]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(("id", "shape_left_out_s", "silicon_left_out_s"))
        for row, (shape_s, silicon_s) in sorted(held_out_rows(observations).items()):
            cells = ("" if math.isnan(s) else f"{s:.5g}" for s in (shape_s, silicon_s))
            table.writerow((row, *cells))


def _rounded(value: float) -> float:
    return 0.0 if abs(value) < _ZERO else float(f"{value:.{_DIGITS}g}")


def _write(path: Path, name: str, entries: File) -> None:
    document: dict[str, object] = {"name": name, "note": NOTES[name], "written_by": WRITER}
    measured = [d for d in rows.devices().values() if d.silicon == name]
    if "memory_efficiency" in entries and measured:
        document["measured_memory_bytes_per_s"] = measured[0].memory_bytes_per_s
    ordered = sorted(entries)
    document["parameters"] = {
        key: {k: v for k, v in asdict(entries[key]).items() if v != ""} for key in ordered
    }
    # YAML in its JSON form: every command reads these files, and a JSON reader takes a hundredth
    # of the time.
    text = json.dumps(document, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
