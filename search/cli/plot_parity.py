"""Predictions over measurements, drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwmodels.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = Mapping[str, Any]
MARKS = "os^vDP*X<>"


def plot_parity(what: str, result: Mapping[str, Any], path: str) -> None:
    """Draw every evaluated row, with its 80 % interval, a panel for each unit.

    Args:
        what: What was judged, for the title.
        result: A report of `dse validate`.
        path: An `.svg`, `.png` or `.pdf` file, checked before.

    Raises:
        ConfigError: No row was evaluated, or the file cannot be written.
    """
    rows = [record for record in result["records"] if record["status"] == "evaluated"]
    if not rows:
        raise ConfigError("no row was evaluated: nothing to draw", field="--plot", value=path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    units = sorted({record["unit"] for record in rows})
    figure = Figure(figsize=(6.4 * len(units), 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    for place, unit in enumerate(units):
        axes = figure.add_subplot(1, len(units), place + 1)
        _draw(axes, [record for record in rows if record["unit"] == unit], unit)
    mean = result.get("mean_abs_error_pct")
    told = "" if mean is None else f", mean error {mean:.1f} %"
    figure.suptitle(f"{what}, {result['calibration']}: {len(rows)} rows{told}", fontsize=10)
    # Without a date or random names, so that the same rows draw the same file.
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "ridge-dse"}):
        try:
            figure.savefig(path, metadata={"Date": None} if Path(path).suffix == ".svg" else None)
        except OSError as problem:
            raise ConfigError(f"cannot write {path}: {problem}", field="--plot") from None


def _draw(axes: Axes, rows: Sequence[Record], unit: str) -> None:
    groups: dict[str, list[Record]] = {}
    for record in rows:
        label = "suspect" if record["suspect"] else record.get("family") or record["source"]
        groups.setdefault(label, []).append(record)
    names = sorted(groups, key=lambda name: (name == "suspect", name))
    for place, name in enumerate(names):
        own = groups[name]
        suspect = name == "suspect"
        measured = [record["measured"] for record in own]
        color = "0.7" if suspect else f"C{place % 10}"
        axes.vlines(
            measured,
            [record["low_80"] for record in own],
            [record["high_80"] for record in own],
            lw=0.5,
            alpha=0.4,
            color=color,
        )
        axes.plot(
            measured,
            [record["predicted"] for record in own],
            "x" if suspect else MARKS[place % len(MARKS)],
            ms=3.5,
            color=color,
            label=f"{name[:40]} ({len(own)})",
        )
    ends = [record[key] for record in rows for key in ("measured", "predicted")]
    low, high = min(ends) / 1.2, max(ends) * 1.2
    axes.plot([low, high], [low, high], color="0.2", lw=0.8)
    axes.fill_between(
        [low, high],
        [0.9 * low, 0.9 * high],
        [1.1 * low, 1.1 * high],
        color="0.5",
        alpha=0.15,
        lw=0,
        label="within 10 %",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"measured [{unit}]")
    axes.set_ylabel(f"predicted [{unit}], bars are the central 80 %")
    axes.legend(frameon=False, fontsize=7)
