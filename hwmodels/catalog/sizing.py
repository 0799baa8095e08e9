"""Sizes of the network levels for a number of chips.

A job fills whole units from the inside out. Fewer chips than the innermost unit give a smaller
one. Where a unit spans several hosts (a rack of 72, a pod, a torus slice), a job may take equal
parts of each, as schedulers do: 256 chips on racks of 72 are 4 x 64. Parts below half a unit are
refused, as the job would rather be placed otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

_SCAN = 5000
_Fits = Callable[[int], bool]


@dataclass(frozen=True)
class Shape:
    """What of a level decides its size.

    Args:
        size: Most children of one unit; None for the outermost level, which grows.
        axes: Axes of a torus; 0 for other kinds.
        unit: Edge of the cube that a wrapped slice of a torus consists of; 1 for any size.
    """

    size: int | None
    axes: int = 0
    unit: int = 1


def split(
    shapes: Sequence[Shape],
    num_chips: int,
    chips_per_node: int,
    topology: tuple[int, ...] | None = None,
) -> list[tuple[int, ...]] | None:
    """Sizes by level, the axes of a torus as several; None where the count does not fit.

    Args:
        shapes: Levels, innermost first.
        num_chips: Devices of the job.
        chips_per_node: Devices of a host.
        topology: Axes of a torus slice as given by the user, instead of the rule.
    """
    sizes: list[tuple[int, ...]] = []
    left = num_chips
    for index, shape in enumerate(shapes):
        if shape.axes and topology is not None:
            slice_chips = prod(topology)
            fits = left % slice_chips == 0 and slice_chips <= (shape.size or slice_chips)
            taken: tuple[int, ...] | None = topology if fits else None
        elif shape.axes:
            taken = _slice(left, shape)
        elif index == 0:
            taken = _as_axis(_domain(left, shape.size, chips_per_node))
        else:
            taken = _as_axis(_part(left, shape.size, lambda _: True))
        if taken is None:
            return None
        sizes.append(taken)
        left //= prod(taken)
    return sizes if left == 1 else None


def nearest(shapes: Sequence[Shape], num_chips: int, chips_per_node: int) -> list[int]:
    """The nearest counts below and above that `split` accepts."""

    def first(counts: Iterator[int]) -> list[int]:
        fits = (n for n in counts if split(shapes, n, chips_per_node) is not None)
        return [n for n in [next(fits, 0)] if n]

    below = iter(range(num_chips - 1, max(0, num_chips - _SCAN), -1))
    return first(below) + first(iter(range(num_chips + 1, num_chips + _SCAN)))


def torus(n: int, axes: int, unit: int) -> tuple[int, ...] | None:
    """Axes of a slice of n chips, ascending, nearest to a cube; None where there is none.

    With a unit u, slices are made of cubes of u chips an edge, which optical switches join;
    smaller slices are powers of two within one cube.
    """
    cube = unit**axes
    if n % cube == 0:
        return tuple(unit * edge for edge in _cubic(n // cube, axes))
    inside = _cubic(n, axes)
    return inside if n < cube and n & (n - 1) == 0 and max(inside) <= unit else None


def wraps(dims: tuple[int, ...], unit: int) -> tuple[bool, ...]:
    """Whether each axis of a slice wraps around: only slices of whole cubes do."""
    whole = all(edge % unit == 0 for edge in dims)
    return tuple(whole and edge > 2 for edge in dims)


def _domain(left: int, size: int | None, chips_per_node: int) -> int | None:
    if size is None:
        return left
    if size <= chips_per_node:
        return left if left <= size else size if left % size == 0 else None
    return _part(left, size, lambda n: n % chips_per_node == 0 or n == left < chips_per_node)


def _slice(left: int, shape: Shape) -> tuple[int, ...] | None:
    part = _part(left, shape.size, lambda n: torus(n, shape.axes, shape.unit) is not None)
    return None if part is None else torus(part, shape.axes, shape.unit)


def _part(left: int, size: int | None, fits: _Fits) -> int | None:
    """The largest equal part of a unit of `size` that the count divides into."""
    if size is None:
        return left
    if left <= size:
        return left if fits(left) else None
    return next((n for n in range(size, (size - 1) // 2, -1) if left % n == 0 and fits(n)), None)


def _as_axis(size: int | None) -> tuple[int, ...] | None:
    return None if size is None else (size,)


def _cubic(n: int, axes: int) -> tuple[int, ...]:
    """Ascending factors of n, `axes` of them, with the least sum."""
    if axes == 1:
        return (n,)
    firsts = (d for d in range(1, round(n ** (1 / axes)) + 1) if n % d == 0)
    return min(
        (tuple(sorted((d, *_cubic(n // d, axes - 1)))) for d in firsts),
        key=lambda dims: (sum(dims), dims),
    )
