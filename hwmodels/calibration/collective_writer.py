"""Write what was fitted to measured collectives: `links.yaml`, and the left-out predictions."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from hwmodels.calibration import collective_fit as fitting
from hwmodels.calibration import collective_rows as rows
from hwmodels.calibration.collective_fit import EFAS, NVLINKS, REDUCTION, Fit
from hwmodels.calibration.collective_rows import Observation
from hwmodels.catalog import rules
from hwmodels.catalog.rules import LINK_NUMBERS

ABOUT: Mapping[str, str] = {
    "nvlink3": "A100",
    "nvlink4": "H100",
    "nvlink5": "GB200, up to four chips",
    "nvlink": "one fit to the three NVLinks, each with the same weight",
    "efa": "two p4de nodes, all-reduce",
    "efa-v2": "two p5 nodes, all-reduce",
}
_DIGITS = 3
_HOP = {
    "low": "2.7 us",
    "high": "14 us",
    "status": "estimated",
    "source": "NCCL tuning source 2.18, network hop, LL128 (low: LL, high: Simple); not fitted",
}


def fit_links(*, write: bool = True, folder: Path | None = None) -> dict[str, Fit]:
    """Fit every link technology, and write `links.yaml` and `data/collective_held_out.csv`.

    Args:
        write: Whether to write; the result is the same.
        folder: Where to; the package's own calibration folder by default.

    Returns:
        Technology to its fit.
    """
    fits = dict(fitting.fit_all())
    if write:
        observations, _ = rows.read()
        target = folder or Path(__file__).parent
        (target / "data").mkdir(exist_ok=True)
        _write_links(target / "links.yaml", observations, fits)
        _write_held_out(target / "data" / "collective_held_out.csv")
        rules.fitted.cache_clear()
        rules.technologies.cache_clear()
    return fits


def _write_links(path: Path, observations: Sequence[Observation], fits: Mapping[str, Fit]) -> None:
    document = {
        "kind": "links",
        "technologies": {name: _entry(observations, name, fits) for name in ABOUT},
    }
    yaml = YAML()
    yaml.width = 4096
    with path.open("w", encoding="utf-8") as stream:
        stream.write("# Written by hwmodels.calibration.collective_writer; change the fit.\n")
        stream.write("# Keys as in hwmodels/catalog/links.yaml.\n")
        yaml.dump(document, stream)


def _entry(
    observations: Sequence[Observation], name: str, fits: Mapping[str, Fit]
) -> dict[str, Any]:
    used = NVLINKS if name == "nvlink" else (name,)
    chosen = fitting.select(observations, used)
    count = Counter(o.prefix for o in chosen)
    where = "two nodes" if name in EFAS else "one node"
    entry: dict[str, Any] = {
        "about": ABOUT[name],
        "data": f"{len(chosen)} rows of {where}: "
        + ", ".join(f"{prefix} {count[prefix]}" for prefix in sorted(count)),
        "source": "; ".join(sorted({o.source.strip() for o in chosen})),
        "status": "verified",
    }
    fit = fits[name]
    for key, (field, dimension) in LINK_NUMBERS.items():
        if field not in fit.numbers[name]:
            continue
        value, low, high = (part[name][field] for part in (fit.numbers, fit.low, fit.high))
        number = CommentedMap(
            value=_written(value, dimension),
            low=_written(low, dimension),
            high=_written(high, dimension),
        )
        if name == "nvlink5" and field in REDUCTION:
            known = fits["nvlink4"]
            number["low"] = _written(known.low["nvlink4"][field], dimension)
            number["high"] = _written(known.high["nvlink4"][field], dimension)
            number["status"] = "estimated"
            number["source"] = "as nvlink4; no row of more than four chips"
        if name in EFAS and field == "latency_s":
            number.update(_HOP)
        number.fa.set_flow_style()
        entry[key] = number
    return entry


def _written(value: float, dimension: str) -> str | float:
    rounded = float(f"{value * (1e6 if dimension == 's' else 1.0):.{_DIGITS}g}")
    return f"{rounded:g} us" if dimension == "s" else rounded


def _write_held_out(path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(("id", "own_size_s", "size_s", "source_s", "chip_s"))
        for row, times in sorted(fitting.held_out().items()):
            cells = ("" if math.isnan(s) else f"{s:.4g}" for s in astuple(times))
            table.writerow((row, *cells))
