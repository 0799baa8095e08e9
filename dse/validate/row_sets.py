"""Sets of published rows by what ran: headlined ones, and those whose misses have a cause.

`headline.yaml` and `residuals.yaml` hold patterns; a record of `dse.validate.published` belongs to
a set where all patterns of the set are found in its fields, in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Record = Mapping[str, Any]
MISS_PCT = 15.0
"""A miss above this is listed with its reason, whatever its interval."""


def belongs(record: Record, patterns: Mapping[str, Any], *, seq: int | None = None) -> bool:
    """Whether an evaluated record matches every pattern that is given.

    Args:
        record: Of the report.
        patterns: `source`, `family`, `chip`, `model` as regular expressions, `plan` as least
            values of plan fields, or of `seq`.
        seq: Sequence length of the row, which the record does not hold.
    """
    resolved = record["resolved"]
    texts = {
        "source": record["source"],
        "family": record["family"],
        "chip": resolved["chip"],
        "model": resolved["model"],
    }
    for field, text in texts.items():
        if field in patterns and not re.search(patterns[field], text.lower()):
            return False
    least = {name: value for name, value in patterns.get("plan", {}).items() if name != "seq"}
    if any((resolved["plan"][name] or 1) < value for name, value in least.items()):
        return False
    return "seq" not in patterns.get("plan", {}) or (seq or 0) >= patterns["plan"]["seq"]


def evaluated(report: Mapping[str, Any], *, suspect: bool = False) -> list[Record]:
    """The evaluated records of a report, those under suspicion only where asked for."""
    return [
        record
        for record in report["records"]
        if record["status"] == "evaluated" and (suspect or not record["suspect"])
    ]


def mean_error_pct(records: Sequence[Record], time: str = "predicted") -> float | None:
    """Mean absolute error of the step time; of a baseline if `time` names one.

    Args:
        records: Evaluated records.
        time: `predicted`, `baseline` or `fair_baseline`.
    """
    if not records:
        return None
    ratio = [
        record[time] / record["measured"]
        if record["unit"] == "s"
        else record["measured"] / record[time]
        for record in records
    ]
    return float(100.0 * np.mean(np.abs(np.array(ratio) - 1.0)))


def is_missed(record: Record) -> bool:
    """Whether a record lies outside its 80 % interval, or misses by more than `MISS_PCT`."""
    inside = record["low_80"] <= record["measured"] <= record["high_80"]
    return not inside or abs(record["error_pct"]) > MISS_PCT


def misses(
    records: Sequence[Record], reasons: Sequence[Mapping[str, Any]], seqs: Mapping[str, int | None]
) -> list[tuple[str | None, list[Record]]]:
    """Missed records by their reason, in the order of the reasons; None stands for no reason."""
    found: list[tuple[str | None, list[Record]]] = [(entry["reason"], []) for entry in reasons]
    found.append((None, []))
    for record in filter(is_missed, records):
        fitting = (
            place
            for place, entry in enumerate(reasons)
            if belongs(record, entry, seq=seqs.get(record["id"]))
        )
        found[next(fitting, len(reasons))][1].append(record)
    return [(reason, rows) for reason, rows in found if rows]
