"""Judge the shipped kernel parameters against every measured row.

A row is predicted with the parameters that its silicon ships, in the conditions in which it was
measured. Errors are stated four ways: over all rows, over rows that no fit has seen, with a
row's shapes left out of the fit, and with its whole silicon left out. Suspect rows are predicted
and shown, and stay outside every mean but `with_suspect`. The baseline is the roofline at peak.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from hwmodels.calibration import predict, rows
from hwmodels.calibration.rows import Observation, Refused
from hwmodels.kernels import attention, conv, matmul, parameters, pointwise
from hwmodels.table import FloatArray

# Prefixes of the parameters that each class reads.
_READS: Mapping[str, tuple[str, ...]] = {
    "matmul": ("matmul_",),
    "conv": ("matmul_", "conv_"),
    "attention": ("attention_", "memory_efficiency"),
    "unfused attention": ("matmul_", "memory_efficiency", "pointwise_start_s"),
    "pass": ("memory_efficiency", "pointwise_start_s"),
    "memory rate": ("memory_efficiency", "pointwise_start_s"),
}
# Half-widths (natural log) at 50, 80 and 95 % where no left-out row tells them.
_ASSUMED_WIDTHS = (0.25, 0.7, 1.1)
_LEVELS = (50, 80, 95)
# Kernels of a training step that no row times.
UNMEASURED = (
    ("optimizer", "update"),
    ("embedding and gather", "both"),
    ("grouped matmul", "both"),
    ("matmul in fp4", "both"),
    ("attention backward, except on the A100", "backward"),
    ("convolution, except on the V100", "all"),
    ("grouped and depthwise convolution", "all"),
    ("softmax, norm and activation backward", "backward"),
)


def validate_kernels(path: Path | None = None) -> dict[str, Any]:
    """The report of the kernel models against a CSV of measured rows (the bundled one by default).

    Returns:
        Plain data: counts, refusals by reason, errors in per cent (all, by source, chip, class),
        `unseen` (rows of no fit), `held_out` (shapes left out, silicon left out), `coverage` (rows
        by class, chip and direction), interval coverage, and one record a row.

    Raises:
        ConfigError: The file cannot be read or lacks columns.
    """
    observations, refused = rows.read(path)
    groups = predict.grouped(observations)
    predicted_s, baseline_s = _shipped(groups, len(observations))
    measured_s = np.array([o.measured_s for o in observations])
    error = predicted_s / measured_s - 1.0
    baseline = baseline_s / measured_s - 1.0
    clean = np.array([o.suspect is None for o in observations], dtype=bool)
    unseen = np.array([not o.fits for o in observations], dtype=bool)
    widths = np.array([_half_widths(o) for o in observations]).reshape(-1, len(_LEVELS))

    # A fitted row judges the interval by the prediction that left its shapes out.
    blind_s = np.array([_held_out().get(o.id, (None, None))[0] or np.nan for o in observations])
    blind_s = np.where(unseen | np.isnan(blind_s), predicted_s, blind_s)
    inside = np.abs(np.log(blind_s / measured_s))[:, None] <= widths

    def table(key: Callable[[Observation], str]) -> dict[str, Any]:
        names = sorted({key(o) for o in observations})
        chosen = {name: np.array([key(o) == name for o in observations]) & clean for name in names}
        return {
            name: _summary(error[mask], baseline[mask], inside[mask])
            for name, mask in chosen.items()
            if mask.any()
        }

    by_source = table(lambda o: o.source)
    report: dict[str, Any] = {
        **_summary(error[clean], baseline[clean], inside[clean]),
        "rows": len(observations) + len(refused),
        "evaluated": len(observations),
        "evaluated_share": round(len(observations) / max(1, len(observations) + len(refused)), 4),
        "suspect": int(np.count_nonzero(~clean)),
        "refused": _counts(refused),
        "refusal_reasons": dict(rows.REFUSALS),
        "macro_mean_abs_error_pct": _mean(s["mean_abs_error_pct"] for s in by_source.values()),
        "with_suspect": _summary(error, baseline, inside),
        "unseen": _summary(
            error[clean & unseen], baseline[clean & unseen], inside[clean & unseen]
        ),
        "by_source": by_source,
        "by_chip": table(lambda o: o.device.chip),
        "by_class": table(lambda o: o.kind),
        "held_out": held_out_errors(observations),
        "coverage": coverage_table(observations, refused),
    }
    report["records"] = [
        _record(o, p, b, w)
        for o, p, b, w in zip(observations, predicted_s, baseline_s, widths, strict=True)
    ] + [_refusal(r) for r in refused]
    return report


def held_out_errors(observations: Sequence[Observation]) -> dict[str, Any]:
    """Errors with a row's shapes, and its silicon, left out: class -> silicon -> error."""
    out: dict[str, Any] = {}
    for place, name in enumerate(("shape_left_out", "silicon_left_out")):
        errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for o in observations:
            second = _held_out().get(o.id, (None, None))[place]
            if second is not None and o.suspect is None:
                label = o.kind if o.dtype in ("bf16", "fp16") else f"{o.kind} {o.dtype}"
                errors[label][o.device.silicon].append(second / o.measured_s - 1.0)
        out[name] = {
            label: {silicon: _errors(np.array(found)) for silicon, found in chips.items()}
            for label, chips in sorted(errors.items())
        }
    return out


def coverage_table(
    observations: Sequence[Observation], refused: Sequence[Refused]
) -> list[dict[str, Any]]:
    """Rows by class, chip, direction and dtype, how many set parameters, and what none covers."""
    counted: dict[tuple[str, str, str, str], list[Observation]] = defaultdict(list)
    for o in observations:
        counted[o.kind, o.device.chip, o.direction, o.dtype].append(o)
    table: list[dict[str, Any]] = [
        {
            "class": kind,
            "chip": chip,
            "direction": direction,
            "dtype": dtype,
            "rows": len(found),
            "fitted": sum(o.fits for o in found),
            "status": "measured" if any(o.fits for o in found) else "judged only",
        }
        for (kind, chip, direction, dtype), found in sorted(counted.items())
    ]
    refusals: dict[tuple[str, str], int] = defaultdict(int)
    for r in refused:
        refusals[r.reason, r.hardware] += 1
    table += [
        {"class": reason, "chip": hardware, "rows": count, "fitted": 0, "status": "refused"}
        for (reason, hardware), count in sorted(refusals.items())
    ]
    table += [
        {
            "class": kind,
            "chip": "any",
            "direction": way,
            "rows": 0,
            "fitted": 0,
            "status": "assumed",
        }
        for kind, way in UNMEASURED
    ]
    return table


def _shipped(groups: Sequence[predict.Group], count: int) -> tuple[FloatArray, FloatArray]:
    """(n,) predicted seconds by shipped parameters, and (n,) seconds of the roofline at peak."""
    predicted_s, baseline_s = np.zeros(count), np.zeros(count)
    for group in groups:
        values = _parameters(group.first)[0]
        local = replace(group, index=np.arange(group.index.size))
        predicted_s[group.index] = predict.seconds([local], values)
        baseline_s[group.index] = _roofline(local, values)
    return predicted_s, baseline_s


def _roofline(group: predict.Group, values: Mapping[str, float]) -> FloatArray:
    row = group.first
    hw = predict.hardware(row.device, values)
    if row.kind == "matmul":
        m, n, k, batch = group.sizes
        floor: FloatArray = matmul.roofline_seconds(hw, m, n, k, batch, dtype=row.dtype)[0]
        return floor
    if row.kind == "conv":
        shape, way = conv.Convolution(*group.sizes), predict.conv_direction(row)
        return np.asarray(conv.roofline_seconds(hw, shape, dtype=row.dtype, direction=way)[0])
    if row.kind in ("pass", "memory rate"):
        return np.asarray(pointwise.roofline_seconds(hw, group.sizes[0])[0], dtype=float)
    *query, fraction = group.sizes
    total = np.zeros(group.index.size)
    passes: tuple[attention.Direction, ...] = ("forward", "backward")
    for one in passes:
        if row.direction in (one, "both"):
            total += attention.roofline_seconds(
                hw, *query, pairs_fraction=fraction, dtype=row.dtype, direction=one
            )[0]
    return total


def _parameters(o: Observation) -> tuple[dict[str, float], dict[str, str]]:
    return parameters.for_silicon(
        o.device.silicon,
        vendor=o.device.vendor,
        memory_bytes_per_s=o.device.memory_bytes_per_s,
    )


@lru_cache(maxsize=1)
def _held_out() -> Mapping[str, tuple[float | None, float | None]]:
    """Row to its seconds with its shapes left out, and with its silicon left out."""
    text = files("hwmodels.calibration.data").joinpath("held_out.csv").read_text(encoding="utf-8")
    return {
        row["id"]: (_float(row["shape_left_out_s"]), _float(row["silicon_left_out_s"]))
        for row in csv.DictReader(text.splitlines())
    }


def _float(text: str) -> float | None:
    return float(text) if text else None


def _half_widths(o: Observation) -> tuple[float, ...]:
    """Half-widths of log error at `_LEVELS`, from rows left out as this row's silicon is known."""
    own = (o.kind, o.device.silicon)
    if o.implementation == "current" and own in _left_out_spread(0):
        return _left_out_spread(0)[own]
    return _left_out_spread(1).get((o.kind, ""), _ASSUMED_WIDTHS)


@lru_cache(maxsize=2)
def _left_out_spread(place: int) -> Mapping[tuple[str, str], tuple[float, ...]]:
    """Quantiles of left-out log errors: by class and silicon (place 0), or by class (place 1)."""
    observations, _ = rows.read()
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for o in observations:
        second = _held_out().get(o.id, (None, None))[place]
        if second is not None and o.suspect is None:
            key = (o.kind, o.device.silicon if place == 0 else "")
            errors[key].append(abs(float(np.log(second / o.measured_s))))
    return {
        key: tuple(float(q) for q in np.percentile(found, _LEVELS))
        for key, found in errors.items()
    }


def _record(
    o: Observation, predicted_s: float, baseline_s: float, width: FloatArray
) -> dict[str, Any]:
    _, status = _parameters(o)
    used = [s for name, s in status.items() if name.startswith(_READS[o.kind])]
    assumed = []
    if o.burst:
        assumed.append("timed alone, at a clock above the sustained one")
    if o.writes_cache:
        assumed.append("the time includes copying keys and values to a cache")
    if o.call_s:
        assumed.append("whole calls are timed; the shortest of the sweep is what a call costs")
    if o.kind == "conv":
        assumed.append("no change of layout is timed")
        own = {s for name, s in status.items() if name.startswith("conv_")}
        if parameters.MEASURED not in own:
            assumed.append("convolution parameters are those of another silicon")
    if o.kind == "pass":
        assumed.append("one launch that reads and writes each 16-bit element once")
    return {
        "id": o.id,
        "source": o.source,
        "class": o.kind,
        "status": "evaluated",
        "reason": None,
        "predicted": float(predicted_s),
        "low_80": float(predicted_s * np.exp(-width[1])),
        "high_80": float(predicted_s * np.exp(width[1])),
        "measured": o.measured_s,
        "unit": "s",
        "error_pct": float(100.0 * (predicted_s / o.measured_s - 1.0)),
        "baseline": float(baseline_s),
        "resolved": {"chip": o.device.chip, "cluster": None, "model": None, "stack": None},
        "assumed": assumed,
        "suspect": o.suspect,
        "fitted_on": o.fits,
        "provenance_share": {
            kind: round(used.count(kind) / len(used), 3)
            for kind in (parameters.MEASURED, parameters.TRANSFERRED, parameters.ASSUMED)
        },
    }


def _refusal(r: Refused) -> dict[str, Any]:
    return {
        "id": r.id,
        "source": r.source,
        "class": r.kernel,
        "status": "refused",
        "reason": r.reason,
        "resolved": {"chip": r.hardware, "cluster": None, "model": None, "stack": None},
    }


def _errors(error: FloatArray) -> dict[str, Any]:
    return {
        "rows": int(error.size),
        "mean_abs_error_pct": _pct(np.mean(np.abs(error))) if error.size else None,
        "median_abs_error_pct": _pct(np.median(np.abs(error))) if error.size else None,
        "bias_pct": _pct(np.mean(error)) if error.size else None,
    }


def _summary(error: FloatArray, baseline: FloatArray, inside: FloatArray) -> dict[str, Any]:
    covered = {
        f"coverage_{level}_pct": _pct(np.mean(inside[:, i])) if error.size else None
        for i, level in enumerate(_LEVELS)
    }
    roofline = _errors(baseline)
    return {
        **_errors(error),
        **covered,
        "baseline_mean_abs_error_pct": roofline["mean_abs_error_pct"],
        "baseline_median_abs_error_pct": roofline["median_abs_error_pct"],
    }


def _pct(share: np.floating[Any]) -> float:
    return round(100.0 * float(share), 2)


def _mean(values: Any) -> float:
    found = list(values)
    return round(float(np.mean(found)), 2) if found else float("nan")


def _counts(refused: Sequence[Refused]) -> dict[str, int]:
    out: dict[str, int] = defaultdict(int)
    for r in refused:
        out[r.reason] += 1
    return dict(sorted(out.items()))
