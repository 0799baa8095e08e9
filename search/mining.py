"""Designs next to the best ones met: what fills a batch where a sampler repeats itself.

A converged sampler proposes designs that were judged before. Their places go to the nearest unmet
neighbours (one step on one axis) of the best designs, best first: a local search around what the
sampler found.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from search.study_space import StudySpace


def neighbours(space: StudySpace, design: int) -> list[int]:
    """Designs one step away on one axis; on an axis of words, all other words."""
    at = space.positions(np.array([design]))[0]
    found = []
    for place, axis in enumerate(space.axes):
        here = int(at[place])
        steps = (here - 1, here + 1) if axis.is_ordered else range(len(axis))
        for there in steps:
            if 0 <= there < len(axis) and there != here:
                moved = at.copy()
                moved[place] = there
                found.append(moved)
    return [int(number) for number in space.index(np.array(found))] if found else []


def unmet_neighbours(
    space: StudySpace, best: Sequence[int], met: Collection[int], count: int
) -> list[int]:
    """Up to `count` designs not met, next to the best designs in order."""
    found: dict[int, None] = {}
    for design in best:
        for near in neighbours(space, design):
            if near not in met:
                found[near] = None
                if len(found) == count:
                    return list(found)
    return list(found)
