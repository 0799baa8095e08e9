"""A study's designs as CSV or JSON, and its front as a drawing."""

from __future__ import annotations

import csv
import io
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwmodels.errors import ConfigError
from search.result import SearchResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = (".svg", ".png", ".pdf")


def write_designs(result: SearchResult, path: str) -> None:
    """Every design looked at, one row each: CSV, or a JSON list.

    Raises:
        ConfigError: The file cannot be written.
    """
    rows = result.designs()
    if Path(path).suffix == ".json":
        text = json.dumps(rows, allow_nan=False) + "\n"
    else:
        stream = io.StringIO()
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
        text = stream.getvalue()
    partial = f"{path}.part"
    try:
        Path(partial).write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror}", field="--dump") from None


def check_plot(path: str) -> None:
    """Refuse a drawing that cannot be made, before anything is searched.

    Raises:
        ConfigError: Another kind of file, or matplotlib is not installed.
    """
    if Path(path).suffix not in DRAWN:
        raise ConfigError(f"cannot draw {path!r}", field="--plot", value=path, allowed=list(DRAWN))
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "drawing needs matplotlib", field="--plot", hint="install the extra [plot]"
        )


def plot_front(result: SearchResult, path: str) -> None:
    """Two objectives of all feasible designs with the front and the real machines; of one
    objective, against the price of the cluster.

    Raises:
        ConfigError: As for `check_plot`.
    """
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw(axes, result)
    # Without a date, so that the same study draws the same file.
    figure.savefig(path, metadata={"Date": None} if Path(path).suffix == ".svg" else None)


def _draw(axes: Axes, result: SearchResult) -> None:
    objectives = result.objectives
    across = objectives[1].name if len(objectives) > 1 else "capital_usd"
    up = objectives[0].name
    rows = [row for row in result.designs() if row["feasible"]]
    axes.scatter(
        [row[across] for row in rows],
        [row[up] for row in rows],
        s=8,
        color="0.75",
        rasterized=True,
        label=f"{len(rows)} feasible designs",
    )
    front = sorted(result.front, key=lambda entry: _at(entry, across))
    axes.plot(
        [_at(entry, across) for entry in front],
        [entry.values[up] for entry in front],
        "o-",
        ms=4,
        lw=1,
        label="front, full plan space",
    )
    for entry in front:
        low, high = entry.values_80[up]
        axes.vlines(_at(entry, across), low, high, lw=0.6, color="C0", alpha=0.6)
    for entry in result.compared:
        axes.plot(_at(entry, across), entry.values[up], "s", color="C3", ms=5)
        axes.annotate(
            entry.name,
            (_at(entry, across), entry.values[up]),
            textcoords="offset points",
            xytext=(5, 3),
            fontsize=8,
        )
    unit = objectives[1].unit if len(objectives) > 1 else "USD"
    axes.set_xlabel(f"{across.replace('_', ' ')} [{unit}]")
    axes.set_ylabel(f"{up.replace('_', ' ')} [{objectives[0].unit}]")
    axes.set_title(f"{result.study}: bars are the central 80 %", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _at(entry: Any, name: str) -> float:
    return float(entry.capital_usd if name == "capital_usd" else entry.values[name])
