"""Predictions beside published training runs: one report, from rows to error tables.

    rows -> cases (or refusals) -> predictions under a calibration -> intervals -> scores

Three calibrations. `kernels-only` uses no published training run. `shipped` uses the levels that
come with the package, which the bundled rows were fitted on: its errors on those rows are in
sample. `leave-source-out` takes, for each row, the levels fitted without its family: the number
that says what to expect of a source never seen. `dse/validate/refit.py` fits both.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dse.stacks import Stack
from dse.stacks.levels import UNFITTED, Levels, shipped_levels
from dse.validate.baseline import baseline_s, fair_baseline_s
from dse.validate.intervals import widths
from dse.validate.metrics import Outcome, scores
from dse.validate.predict import Predictions, predict
from dse.validate.resolve import Case, Refusal, resolve
from dse.validate.rows import RECALLED, Row, bundled_rows, read_rows
from dse.validate.vocabulary import suspects
from hwmodels.errors import ConfigError
from hwmodels.version import __version__

Calibration = Literal["kernels-only", "shipped", "leave-source-out"]
SCHEMA = "ridge-dse/validate/1"


@dataclass(frozen=True, slots=True)
class Judged:
    """Cases with what was predicted of them.

    Args:
        cases: N resolved rows.
        levels: Levels that each was predicted with.
        predictions: Their costs.
        outcome: Predictions beside measurements.
        suspect: (N,) whether a row stands outside the headline.
        held_out: Family to the levels fitted without it, under `leave-source-out`.
    """

    cases: tuple[Case, ...]
    levels: tuple[Levels, ...]
    predictions: Predictions
    outcome: Outcome
    suspect: NDArray[np.bool_]
    held_out: Mapping[str, Levels]


def validate(
    data: str | Path | None = None, calibration: Calibration = "shipped", *, seed: int = 0
) -> dict[str, Any]:
    """Judge the evaluator by published training runs.

    Args:
        data: CSV file with the columns of the bundled one; the bundled rows if None.
        calibration: `kernels-only`, `shipped` or `leave-source-out`.
        seed: Recorded in the report; nothing here is random.

    Returns:
        The report as plain values: totals, `by_source`, `by_family`, `held_out`, `records`.

    Raises:
        ConfigError: Unknown calibration, or a file that cannot be read as such a table.
    """
    if calibration not in get_args(Calibration):
        raise ConfigError(
            f"calibration {calibration!r} is not known",
            field="calibration",
            value=calibration,
            allowed=get_args(Calibration),
        )
    rows, warnings = (bundled_rows(), ()) if data is None else read_rows(data)
    resolved = [resolve(row) for row in rows]
    refusals = [found for found in resolved if isinstance(found, Refusal)]
    cases = tuple(found for found in resolved if isinstance(found, Case))
    judged = judge(cases, calibration)
    return _report(rows, judged, refusals, calibration, warnings, seed)


def judge(cases: Sequence[Case], calibration: Calibration) -> Judged:
    """Predict resolved rows under a calibration, with intervals and baselines."""
    measured = np.array([measured_s(case.row) for case in cases])
    suspect = np.array([is_suspect(case.row) for case in cases], dtype=bool)
    held_out: dict[str, Levels] = {}
    if calibration == "kernels-only":
        levels = tuple(UNFITTED for _ in cases)
    elif calibration == "shipped":
        levels = tuple(shipped_levels() for _ in cases)
    else:
        held_out = {family: shipped_levels(family) for family in {c.family for c in cases}}
        levels = tuple(held_out[case.family] for case in cases)
    stacks: list[Stack] = [
        fitted.apply(case.stack, case.generation)
        for case, fitted in zip(cases, levels, strict=True)
    ]
    predictions = predict(cases, stacks)
    spread = widths(cases, levels, predictions)
    outcome = Outcome(
        predicted_s=predictions.step_time_s,
        measured_s=measured,
        sd_low=spread.low,
        sd_high=spread.high,
        baseline_s=baseline_s(cases),
        fair_s=fair_baseline_s(cases, measured, list(~suspect)),
        families=[case.family for case in cases],
        groups=[_group(case.row) for case in cases],
    )
    return Judged(tuple(cases), levels, predictions, outcome, suspect, held_out)


def training_cases() -> tuple[Case, ...]:
    """Bundled rows that may tell a level: resolved, not suspect, dense."""
    found = (resolve(row) for row in bundled_rows())
    return tuple(
        case
        for case in found
        if isinstance(case, Case) and not is_suspect(case.row) and not case.workload.config.is_moe
    )


def measured_s(row: Row) -> float:
    """Published seconds of a step; from tokens/s where only that was printed."""
    if row.step_time_s is not None:
        return row.step_time_s
    tokens = (row.seq or 0) * (row.global_batch or 0)
    return tokens / ((row.tokens_per_s_per_device or 1.0) * (row.num_devices or 1))


def is_suspect(row: Row) -> bool:
    """Whether a row stands outside the headline: suspect, or recalled and not read."""
    return row.id in suspects() or row.verified == RECALLED


def _group(row: Row) -> tuple[object, ...]:
    return row.source, row.model, row.seq, row.num_devices, row.global_batch


def _report(
    rows: Sequence[Row],
    judged: Judged,
    refusals: Sequence[Refusal],
    calibration: Calibration,
    warnings: Sequence[str],
    seed: int,
) -> dict[str, Any]:
    keep = ~judged.suspect
    sources = [case.row.source for case in judged.cases]
    headline = scores(judged.outcome.where(keep))
    return {
        "schema": SCHEMA,
        "version": __version__,
        "calibration": calibration,
        "inputs_sha256": _fingerprint(rows, calibration, judged),
        "seed": seed,
        "warnings": list(warnings),
        "rows": len(rows),
        **headline,
        "evaluated": len(judged.cases),
        "evaluated_share_pct": 100.0 * len(judged.cases) / max(len(rows), 1),
        "headline_rows": int(keep.sum()),
        "refused": dict(sorted(Counter(refusal.reason for refusal in refusals).items())),
        "with_suspect": scores(judged.outcome),
        "by_source": _by(rows, judged, sources, [row.source for row in rows]),
        "by_family": _by(rows, judged, list(judged.outcome.families), None),
        "held_out": {
            family: {
                "network": levels.network,
                "host": levels.host,
                "fitted_on": list(levels.fitted_on),
            }
            for family, levels in sorted(judged.held_out.items())
        },
        "records": _records(rows, judged, refusals),
    }


def _fingerprint(rows: Sequence[Row], calibration: str, judged: Judged) -> str:
    """Fingerprint of the rows and of the levels that they were judged with."""
    levels = sorted({repr(levels) for levels in judged.levels})
    canonical = repr([[astuple(row) for row in rows], calibration, levels])
    return hashlib.sha256(canonical.encode()).hexdigest()


def _by(
    rows: Sequence[Row], judged: Judged, labels: Sequence[str], all_labels: Sequence[str] | None
) -> dict[str, Any]:
    keep = ~judged.suspect
    found: dict[str, Any] = {}
    marked = np.asarray(labels)
    for label in dict.fromkeys(all_labels if all_labels is not None else labels):
        inside = marked == label if len(marked) else np.zeros(0, dtype=bool)
        entry: dict[str, Any] = dict(scores(judged.outcome.where(inside & keep)))
        entry["evaluated"] = int(inside.sum())
        entry["suspect"] = int((inside & ~keep).sum())
        if all_labels is not None:
            entry["rows"] = list(all_labels).count(label)
        found[label] = entry
    return found


def _records(
    rows: Sequence[Row], judged: Judged, refusals: Sequence[Refusal]
) -> list[dict[str, Any]]:
    refused = {refusal.row.id: refusal for refusal in refusals}
    place = {case.row.id: index for index, case in enumerate(judged.cases)}
    low_s, high_s = judged.outcome.bounds_s("80")
    records = []
    for row in rows:
        if row.id in refused:
            records.append(_refused_record(row, refused[row.id]))
            continue
        index = place[row.id]
        records.append(_record(judged, index, float(low_s[index]), float(high_s[index])))
    return records


def _refused_record(row: Row, refusal: Refusal) -> dict[str, Any]:
    nothing = ("predicted", "low_80", "high_80", "error_pct", "baseline", "resolved", "fitted_on")
    timed = row.step_time_s is not None
    return {
        "id": row.id,
        "source": row.source,
        "status": "refused",
        "reason": refusal.reason,
        "detail": refusal.detail,
        **dict.fromkeys(nothing),
        "measured": row.step_time_s if timed else row.tokens_per_s_per_device,
        "unit": "s" if timed else "tokens/s/device",
        "assumed": [],
        "suspect": suspects().get(row.id),
        "provenance_share": None,
    }


def _record(judged: Judged, index: int, low_s: float, high_s: float) -> dict[str, Any]:
    case, outcome = judged.cases[index], judged.outcome
    row = case.row
    timed = row.step_time_s is not None
    tokens = case.workload.seq_length * case.plan.global_batch_size / case.cluster.num_chips

    def shown(seconds: float) -> float:
        return seconds if timed else tokens / seconds

    ends = sorted((shown(low_s), shown(high_s)))
    return {
        "id": row.id,
        "source": row.source,
        "status": "evaluated",
        "reason": None,
        "detail": None,
        "predicted": shown(float(outcome.predicted_s[index])),
        "low_80": ends[0],
        "high_80": ends[1],
        "measured": row.step_time_s if timed else row.tokens_per_s_per_device,
        "unit": "s" if timed else "tokens/s/device",
        "error_pct": float(outcome.error_pct[index]),
        "baseline": shown(float(outcome.baseline_s[index])),
        "fair_baseline": shown(float(outcome.fair_s[index])),
        "resolved": {
            "chip": case.cluster.chip.name,
            "cluster": case.cluster.name,
            "model": case.workload.config.name,
            "stack": case.stack.name,
            "plan": case.plan.model_dump(),
        },
        "family": case.family,
        "assumed": list(case.assumed),
        "fits": bool(judged.predictions.fits[index]),
        "suspect": suspects().get(row.id) or ("recalled" if row.verified == RECALLED else None),
        "fitted_on": list(judged.levels[index].fitted_on),
        "provenance_share": _provenance(case, judged.predictions, index),
    }


def _provenance(case: Case, predictions: Predictions, index: int) -> dict[str, float]:
    """Shares of the step by how its parameters are known.

    Compute counts by the status of the matmul efficiency, messages inside a node as measured,
    those beyond as transferred, the host as assumed; bubbles follow the rest.
    """
    part = {name: float(value[index]) for name, value in predictions.parts.items()}
    spent = {"measured": 0.0, "transferred": 0.0, "assumed": part["host"]}
    status = case.cluster.chip.kernel_status
    known = status.get(f"matmul_efficiency.{case.workload.precision}", "assumed")
    spent[known] += part["compute"]
    spent[status.get("optimizer_memory_efficiency", "assumed")] += part["optimizer"]
    across = case.cluster.num_chips > case.cluster.chips_per_node
    tp_across = case.plan.tp > case.cluster.chips_per_node
    spent["transferred" if tp_across else "measured"] += part["tp"]
    spent["transferred" if across else "measured"] += sum(
        part[name] for name in ("cp", "ep", "pp", "dp")
    )
    total = sum(spent.values())
    return {name: value / total for name, value in spent.items()}


__all__ = ["Calibration", "Judged", "judge", "measured_s", "training_cases", "validate"]
