"""Caps that no design of a space can keep, found before anything is searched.

Each constraint alone: the design that exceeds it least is found by enumeration where the space is
small, else by going down one axis at a time, which finds the least of what grows with every axis,
as area, power and price do.
"""

from __future__ import annotations

import numpy as np

from hwmodels.errors import ConfigError
from hwmodels.table import IntArray
from search.designs import Candidates
from search.judge import TOLERANCE, Judge
from search.samplers import spread_designs

ENUMERATED = 4_096
ROUNDS = 8
DRAWN = 256


def refuse_contradictions(judge: Judge) -> None:
    """Refuse a space all of whose designs break one constraint.

    Raises:
        ConfigError: With the constraint, the least amount found, and by how much it is over.
    """
    space = judge.space
    if space.size <= ENUMERATED:
        designs = judge.candidates(np.arange(space.size, dtype=np.int64))
        for name in designs.excess():
            _check(judge, name, designs)
        return
    middle = Judge(space, judge.constants.medians())
    drawn = spread_designs(space, "random", 0, 0, DRAWN)
    some = judge.candidates(np.array(drawn, dtype=np.int64))
    for name, (needed, allowed, _) in some.excess().items():
        # What some design keeps is no contradiction.
        if not np.any(needed <= allowed):
            _check(judge, name, judge.candidates(_descended(middle, name)))


def _check(judge: Judge, name: str, designs: Candidates) -> None:
    needed, allowed, unit = designs.excess()[name]
    over = needed - allowed
    least = int(np.argmin(np.where(np.isnan(over), np.inf, over)))
    limit = float(allowed[least])
    if not over[least] > TOLERANCE * max(limit, 1.0):
        return
    space = judge.space
    field = f"constraints.{name}" if name in space.caps else "template"
    if name == "domains":
        field = "network.scaleup_size"
    raise ConfigError(
        f"no design can: {name} is at least {needed[least]:.4g} {unit}, "
        f"the smallest is {over[least]:.3g} {unit} over",
        file=space.file or None,
        field=field,
        value=limit,
        allowed=f"from {needed[least]:.4g} {unit}"
        if name in space.caps
        else f"{limit:.4g} {unit}",
    )


def _descended(judge: Judge, name: str) -> IntArray:
    """(1,) the design that exceeds one limit least, going down one axis at a time."""
    space = judge.space
    at = np.zeros(len(space.axes), dtype=np.int64)
    for _ in range(ROUNDS):
        before = at.copy()
        for place, axis in enumerate(space.axes):
            if len(axis) == 1:
                continue
            tried = np.repeat(at[None, :], len(axis), axis=0)
            tried[:, place] = np.arange(len(axis))
            needed, allowed, _ = judge.candidates(space.index(tried)).excess()[name]
            over = (needed - allowed) / np.where(allowed > 0, allowed, 1.0)
            at[place] = int(np.argmin(np.where(np.isnan(over), np.inf, over)))
        if np.array_equal(before, at):
            break
    return space.index(at[None, :])
