"""Figures and tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def beside(value: float | None, aim: float | None) -> tuple[str, str]:
    """A figure and its aim; bold where the aim was missed."""
    if value is None or aim is None:
        return number(value), "-" if aim is None else f"{aim:g}"
    return (f"**{value:.1f}**" if value > aim else f"{value:.1f}"), f"{aim:g}"


def number(value: float | None, digits: int = 1) -> str:
    """A figure of so many decimals, a dash for none."""
    # Adding zero turns a rounded -0.0 into 0.0, whatever the last bit was.
    return "-" if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text cells."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
