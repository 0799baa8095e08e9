"""Distinct rows of a few columns: operators of many keys share a shape, and are priced once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Places = NDArray[np.intp]


def distinct(columns: Sequence[ArrayLike]) -> tuple[Places, Places]:
    """Where the distinct combinations of n columns first stand, and which of them each row is.

    Args:
        columns: (n,) numbers each, or scalars that hold for all rows.

    Returns:
        (d,) rows, and (n,) places among them: `column[rows][places]` is `column`.
    """
    stacked = np.stack(np.broadcast_arrays(*(np.asarray(column) for column in columns)))
    order = np.lexsort(stacked)
    ordered = stacked[:, order]
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = np.any(ordered[:, 1:] != ordered[:, :-1], axis=0)
    places = np.empty(len(order), dtype=np.intp)
    places[order] = np.cumsum(starts) - 1
    return order[starts], places
