"""Judge the shipped collective models against every measured row.

A row is predicted with what its network's technologies ship. Errors are stated five ways: over all
rows, over rows that no fit has seen, with a row's message size left out of a fit to its own source
or to all, with its source left out, and with its chip left out. Suspect rows are predicted and
shown, and stay outside every mean but `with_suspect`. The baseline is bytes over nominal link
rates.

Between nodes only all-reduce of two nodes sets parameters; `half_widths` widens the rest.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from hwmodels.calibration import collective_fit as fitting
from hwmodels.calibration import collective_rows as rows
from hwmodels.calibration.collective_fit import EFAS, NVLINKS, Group
from hwmodels.calibration.collective_rows import SMALL_BYTES, Observation, Refused
from hwmodels.catalog import rules
from hwmodels.collectives import roofline_s_per_byte
from hwmodels.table import FloatArray

MEASURED, TRANSFERRED, ASSUMED = "measured", "transferred", "assumed"
KINDS: Mapping[str, str] = {
    "own_size_s": "size_left_out_of_own_source",
    "size_s": "size_left_out",
    "source_s": "source_left_out",
    "chip_s": "chip_left_out",
}
# What no row times, and what is done about it.
UNMEASURED = (
    ("all_gather", "between nodes"),
    ("reduce_scatter", "between nodes"),
    ("all_to_all", "between nodes"),
    ("p2p", "one node"),
    ("p2p", "between nodes"),
    ("all_reduce", "between more than three nodes"),
    ("any", "more than eight chips of one switch"),
    ("any", "torus, full mesh of eight, PCI Express, Ethernet"),
)
_LEVELS = (50, 80, 95)
_SMALL, _LARGE = "below 1 MiB", "from 1 MiB"
# Half-widths (natural log) at `_LEVELS` where no left-out row tells them.
_ASSUMED_WIDTHS = (0.25, 0.7, 1.1)
# Between nodes a verb without rows counts with that much wider a half-width.
_UNMEASURED_VERB = 1.5


def validate_collectives(path: Path | str | None = None) -> dict[str, Any]:
    """The report of the collective models against a CSV of measured rows (by default the bundled).

    Returns:
        Plain data: counts, refusals by reason, errors in per cent (all, by source, chip, verb,
        size and place), `unseen` (rows of no fit), `held_out` (by kind, technology, source, size),
        `coverage` (rows by verb, chip and nodes), interval coverage, and one record a row.

    Raises:
        ConfigError: The file cannot be read or lacks columns.
    """
    observations, refused = rows.read(path)
    groups = fitting.grouped(observations)
    predicted_s = fitting.predict(groups, [{}])[0]
    baseline_s = _rooflines(groups, len(observations))
    measured_s = np.array([o.measured_s for o in observations])
    error = predicted_s / measured_s - 1.0
    baseline = baseline_s / measured_s - 1.0
    clean = np.array([o.suspect is None for o in observations], dtype=bool)
    unseen = np.array([not _was_fitted(o) for o in observations], dtype=bool)
    widths = np.array([_record_widths(o) for o in observations]).reshape(-1, len(_LEVELS))

    # A fitted row judges the interval by the prediction that left its message size out.
    blind_s = np.array([_left_out(o, "size_s") or np.nan for o in observations])
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
    total = len(observations) + len(refused)
    seen = clean & unseen
    report: dict[str, Any] = {
        **_summary(error[clean], baseline[clean], inside[clean]),
        "rows": total,
        "evaluated": len(observations),
        "evaluated_share": round(len(observations) / max(1, total), 4),
        "suspect": int(np.count_nonzero(~clean)),
        "refused": dict(sorted(Counter(r.reason for r in refused).items())),
        "refusal_reasons": dict(rows.REFUSALS),
        "macro_mean_abs_error_pct": _mean(s["mean_abs_error_pct"] for s in by_source.values()),
        "with_suspect": _summary(error, baseline, inside),
        "unseen": _summary(error[seen], baseline[seen], inside[seen]),
        "by_source": by_source,
        "by_chip": table(lambda o: o.chip),
        "by_verb": table(lambda o: o.verb),
        "by_size": table(lambda o: f"{_place(o)}, {o.size_class}"),
        "held_out": held_out_errors(observations),
        "coverage": coverage_table(observations, refused),
    }
    report["records"] = [
        _record(o, p, b, w)
        for o, p, b, w in zip(observations, predicted_s, baseline_s, widths, strict=True)
    ] + [_refusal(r) for r in refused]
    return report


def half_widths(
    technology: str, verb: str, *, between_nodes: bool, message_bytes: float
) -> tuple[float, float, float]:
    """Half-widths of log error at 50, 80 and 95 % of a collective on a machine not measured.

    Args:
        technology: Link technology of the outermost level that the group uses.
        verb: A verb of `hwmodels.collectives`, or `p2p`.
        between_nodes: Whether the group leaves the innermost level.
        message_bytes: The message.

    Returns:
        What rows left out as this one would be say: their source where the technology was
        measured inside a node, else their chip (network: the other generation).
    """
    size = _SMALL if message_bytes < SMALL_BYTES else _LARGE
    place = "between nodes" if between_nodes else "one node"
    known = technology in NVLINKS and not between_nodes
    found = _left_out_spread("source_s" if known else "chip_s").get(("", place, size))
    low, middle, high = _ASSUMED_WIDTHS if found is None else found
    factor = _UNMEASURED_VERB if between_nodes and verb != "all_reduce" else 1.0
    return factor * low, factor * middle, factor * high


def held_out_errors(observations: Sequence[Observation]) -> dict[str, Any]:
    """Errors of left-out predictions: kind -> technology -> source -> size class -> error.

    Each technology has `all` beside its sources.
    """
    out: dict[str, Any] = {}
    for kind, name in KINDS.items():
        errors: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        for o in observations:
            second = _left_out(o, kind)
            if second is not None and o.suspect is None:
                for source in (o.prefix, "all"):
                    found = errors[o.technology][source]
                    found[o.size_class].append(second / o.measured_s - 1.0)
        out[name] = {
            technology: {
                source: {size: _errors(np.array(found)) for size, found in sorted(sizes.items())}
                for source, sizes in sorted(sources.items())
            }
            for technology, sources in sorted(errors.items())
        }
    return out


def coverage_table(
    observations: Sequence[Observation], refused: Sequence[Refused]
) -> list[dict[str, Any]]:
    """Rows by verb, chip, nodes and ranks, how many set parameters, and what none covers."""
    counted: dict[tuple[str, str, int, int], list[Observation]] = defaultdict(list)
    for o in observations:
        counted[o.verb, o.chip, o.nodes, o.ranks].append(o)
    table: list[dict[str, Any]] = [
        {
            "verb": verb,
            "chip": chip,
            "nodes": nodes,
            "ranks": ranks,
            "rows": len(found),
            "fitted": sum(_was_fitted(o) for o in found),
            "status": MEASURED if any(_was_fitted(o) for o in found) else "judged only",
        }
        for (verb, chip, nodes, ranks), found in sorted(counted.items())
    ]
    refusals = Counter((r.reason, r.hardware) for r in refused)
    table += [
        {"verb": reason, "chip": hardware, "rows": count, "fitted": 0, "status": "refused"}
        for (reason, hardware), count in sorted(refusals.items())
    ]
    table += [
        {"verb": verb, "chip": "any", "where": where, "rows": 0, "fitted": 0, "status": ASSUMED}
        for verb, where in UNMEASURED
    ]
    return table


def _rooflines(groups: Sequence[Group], count: int) -> FloatArray:
    """(n,) seconds of the messages at nominal link rates."""
    out = np.zeros(count)
    for group in groups:
        hw = fitting.table_of(group, [{}])
        bound = roofline_s_per_byte(group.verb, hw, group.members)
        out[group.index] = bound[0] * group.message_bytes
    return out


def _place(o: Observation) -> str:
    return "between nodes" if o.nodes > 1 else "one node"


@lru_cache(maxsize=1)
def _held_out() -> Mapping[str, Mapping[str, float]]:
    """Row to its left-out seconds by kind."""
    resource = files("hwmodels.calibration.data").joinpath("collective_held_out.csv")
    return {
        row["id"]: {kind: float(row[kind]) for kind in KINDS if row[kind]}
        for row in csv.DictReader(resource.read_text(encoding="utf-8").splitlines())
    }


def _left_out(o: Observation, kind: str) -> float | None:
    """Left-out seconds of a bundled row; another file's row of the same name has none."""
    return _held_out().get(o.id, {}).get(kind) if _was_fitted(o) else None


def _was_fitted(o: Observation) -> bool:
    """Whether the shipped numbers were fitted to this very row."""
    return o.fits and _bundled().get(o.id) == (o.hardware, o.message_bytes, o.measured_s)


@lru_cache(maxsize=1)
def _bundled() -> Mapping[str, tuple[str, float, float]]:
    return {o.id: (o.hardware, o.message_bytes, o.measured_s) for o in rows.read()[0]}


@lru_cache(maxsize=len(KINDS))
def _left_out_spread(kind: str) -> Mapping[tuple[str, str, str], tuple[float, float, float]]:
    """Quantiles of left-out log errors by technology (empty: all), place and size class."""
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for o in rows.read()[0]:
        second = _left_out(o, kind)
        if second is not None and o.suspect is None:
            for technology in (o.technology, ""):
                key = (technology, _place(o), o.size_class)
                errors[key].append(abs(float(np.log(second / o.measured_s))))
    found = {key: np.percentile(values, _LEVELS) for key, values in errors.items()}
    return {key: (float(q[0]), float(q[1]), float(q[2])) for key, q in found.items()}


def _record_widths(o: Observation) -> tuple[float, float, float]:
    """Half-widths of a row, by left-out rows known as well as this one is."""
    own = _left_out_spread("size_s").get((o.technology, _place(o), o.size_class))
    if _was_fitted(o) and own is not None:
        return own
    return half_widths(
        o.technology, o.verb, between_nodes=o.nodes > 1, message_bytes=o.message_bytes
    )


def _record(
    o: Observation, predicted_s: float, baseline_s: float, width: FloatArray
) -> dict[str, Any]:
    status = _statuses(o)
    return {
        "id": o.id,
        "source": o.source,
        "verb": o.verb,
        "ranks": o.ranks,
        "nodes": o.nodes,
        "message_bytes": o.message_bytes,
        "status": "evaluated",
        "reason": None,
        "predicted": float(predicted_s),
        "low_80": float(predicted_s * np.exp(-width[1])),
        "high_80": float(predicted_s * np.exp(width[1])),
        "measured": o.measured_s,
        "unit": "s",
        "error_pct": float(100.0 * (predicted_s / o.measured_s - 1.0)),
        "baseline": float(baseline_s),
        "resolved": {"chip": o.chip, "cluster": o.technology, "model": None, "stack": None},
        "assumed": list(o.assumed),
        "suspect": o.suspect,
        "fitted_on": _was_fitted(o),
        "provenance_share": {
            kind: round(status.count(kind) / len(status), 3)
            for kind in (MEASURED, TRANSFERRED, ASSUMED)
        },
    }


def _statuses(o: Observation) -> list[str]:
    """How each number of the links that the row uses is known."""
    used = [lvl.technology for lvl, n in zip(o.levels, o.members, strict=True) if n > 1]
    found = []
    for technology in used or [o.levels[0].technology]:
        for number in rules.technologies()[technology].numbers.values():
            fitted = technology in (*NVLINKS, *EFAS) and number.status == "verified"
            transferred = number.source.startswith("as ")
            found.append(MEASURED if fitted else TRANSFERRED if transferred else ASSUMED)
    return found


def _refusal(r: Refused) -> dict[str, Any]:
    return {
        "id": r.id,
        "source": r.source,
        "verb": r.collective,
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


def _mean(values: Any) -> float | None:
    found = list(values)
    return round(float(np.mean(found)), 2) if found else None
