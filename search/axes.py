"""One axis of a space of designs: the values that a parameter may take, as a file states them.

A value alone is fixed; a list is a choice; `{low, high, points, scale}` or `{low, high, step}` is
a grid. Every axis is finite, so that a design is a position on each axis and can be counted,
enumerated and met only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels import units
from hwmodels.sourced import Section
from hwmodels.yamltree import Entries, Items, Scalar

MAX_VALUES = 10_000
_GRID = ("low", "high", "points", "step", "scale")
_SCALES = ("linear", "log")

Value = float | str
Reader = Callable[[Section, str, Scalar], Value]


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of one parameter.

    Args:
        name: Its key in the file.
        values: SI numbers ascending, or words in the order given.
        dimension: A key of `hwmodels.units.UNITS`; empty for counts, ratios and words.
        written: The values as they stand in the file; empty for those of a grid.
    """

    name: str
    values: tuple[Value, ...]
    dimension: str = ""
    written: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_ordered(self) -> bool:
        """Whether the values are numbers."""
        return not isinstance(self.values[0], str)

    def text(self, position: int) -> str:
        """One value for people."""
        if self.written:
            return self.written[position]
        value = self.values[position]
        if isinstance(value, str):
            return value
        if self.dimension:
            return units.format_quantity(value, self.dimension)
        return f"{value:.6g}"

    def taken(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """(H,) values at positions; positions themselves where the values are words."""
        if not self.is_ordered:
            return positions.astype(float)
        return np.asarray(self.values, dtype=float)[positions]

    def nearest(self, value: Value) -> int:
        """The position nearest to a value: in ratio for positive numbers, equal for words."""
        if isinstance(value, str) or not self.is_ordered:
            return self.values.index(value) if value in self.values else 0
        numbers = np.asarray(self.values, dtype=float)
        if value > 0 and np.all(numbers > 0):
            return int(np.argmin(np.abs(np.log(numbers / value))))
        return int(np.argmin(np.abs(numbers - value)))


def read_axis(
    section: Section,
    key: str,
    *,
    dimension: str = "",
    words: Sequence[str] | None = None,
    whole: bool = False,
    least: float = 0.0,
    most: float = 1e30,
) -> Axis:
    """The axis that a key of a space file describes.

    Args:
        section: Where the key stands.
        key: The parameter.
        dimension: What unit its values must carry, if any.
        words: The words it may take, where it takes words.
        whole: Whether its values are whole numbers.
        least: Smallest number allowed.
        most: Largest number allowed.

    Raises:
        ConfigError: Not a value, list or grid of what the parameter takes; values that repeat.
        UnitError: A quantity without its unit.
    """
    read = _reader(dimension, words, whole, least, most)
    node = section.tree.entries.get(key)
    if isinstance(node, Scalar):
        return Axis(key, (read(section, key, node),), dimension, (str(node.value),))
    if isinstance(node, Items):
        nodes = [_scalar(section, key, item) for item in node.items]
        values = [read(section, key, item) for item in nodes]
        return _checked(section, key, values, dimension, [str(item.value) for item in nodes])
    if not isinstance(node, Entries) or words is not None:
        section.refuse(key, "is not a value or a list of values")
    return _checked(section, key, _grid(section, key, read, whole=whole), dimension, [])


def _scalar(section: Section, key: str, node: object) -> Scalar:
    if not isinstance(node, Scalar) or node.value is None:
        section.refuse(key, "holds something that is not a single value")
    return node


def _checked(
    section: Section, key: str, values: list[Value], dimension: str, written: list[str]
) -> Axis:
    if not values:
        section.refuse(key, "is an empty list")
    if len(values) > MAX_VALUES:
        section.refuse(key, f"has {len(values)} values", allowed=f"up to {MAX_VALUES}")
    if len(set(values)) < len(values):
        section.refuse(key, "lists a value twice")
    order = list(range(len(values)))
    if not isinstance(values[0], str):
        order.sort(key=lambda place: float(values[place]))
    texts = tuple(written[place] for place in order) if written else ()
    return Axis(key, tuple(values[place] for place in order), dimension, texts)


def _grid(section: Section, key: str, read: Reader, *, whole: bool) -> list[Value]:
    grid = section.section(key)
    if grid is None:
        section.refuse(key, "is empty")
    grid.only(_GRID, required=("low", "high"))
    low, high = (float(read(grid, end, _end(grid, end))) for end in ("low", "high"))
    if not low < high:
        grid.refuse("high", f"{high:g} is not above low, {low:g}", value=high)
    if ("points" in grid) == ("step" in grid):
        grid.refuse(None, "needs either points or step")
    if "step" in grid:
        if "scale" in grid:
            grid.refuse("scale", "goes with points, not with step")
        step = float(read(grid, "step", _end(grid, "step")))
        if step <= 0:
            grid.refuse("step", f"{step:g} is not above 0", value=step)
        count = min(int((high - low) / step + 1e-9), MAX_VALUES)
        return [low + step * place for place in range(count + 1)]
    points = grid.integer("points", minimum=2, maximum=MAX_VALUES)
    scale = grid.choice("scale", _SCALES, "linear")
    if scale == "log" and low <= 0:
        grid.refuse("low", "is not above 0, which a log scale needs", value=low)
    spaced = np.geomspace(low, high, points) if scale == "log" else np.linspace(low, high, points)
    if whole:
        spaced = np.unique(np.round(spaced))
    return [float(value) for value in spaced]


def _end(grid: Section, key: str) -> Scalar:
    node = grid.tree.entries[key]
    return _scalar(grid, key, node)


def _reader(
    dimension: str, words: Sequence[str] | None, whole: bool, least: float, most: float
) -> Reader:
    def word(section: Section, key: str, node: Scalar) -> str:
        value = node.value
        if value not in (words or ()):
            section.refuse(
                key, f"unknown value {str(value)[:40]!r}", value=value, allowed=list(words or ())
            )
        return str(value)

    def quantity(section: Section, key: str, node: Scalar) -> float:
        value = units.parse(
            node.value,
            dimension,
            file=section.file,
            line=node.line,
            field=section.name_of(key),
        )
        return within(section, key, value, node.value)

    def number(section: Section, key: str, node: Scalar) -> float:
        value: Any = node.value
        kinds = int if whole else (int, float)
        if isinstance(value, bool) or node.quoted or not isinstance(value, kinds):
            what = "a whole number" if whole else "a number"
            section.refuse(key, f"{str(value)[:40]!r} is not {what}", value=value)
        return within(section, key, float(value), value)

    def within(section: Section, key: str, value: float, written: object) -> float:
        if not least <= value <= most:
            allowed = f"{least:g} to {most:g}"
            section.refuse(key, f"{written} is not allowed", value=written, allowed=allowed)
        return value

    if words is not None:
        return word
    return quantity if dimension else number
