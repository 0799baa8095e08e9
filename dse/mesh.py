"""Where each group of ranks lies: sizes and strides from the degrees and the mesh order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dse.plan import MESH_ORDERS, IntArray

Columns = Mapping[str, IntArray]


def strides(keys: Columns) -> dict[str, IntArray]:
    """Chips between neighbours along tp, cp, dp and pp, for (K,) keys with `mesh_order`.

    The order names the fastest dimension first: each stride is the product of the faster degrees.
    """
    order = keys["mesh_order"]
    found = {dim: np.ones_like(keys["tp"]) for dim in ("tp", "cp", "dp", "pp")}
    for code, name in enumerate(MESH_ORDERS):
        rows = order == code
        if not np.any(rows):
            continue
        stride = np.ones_like(keys["tp"])
        for dim in name.split("-"):
            found[dim] = np.where(rows, stride, found[dim])
            stride = stride * keys[dim]
    return found


def expert_data_degree(keys: Columns) -> IntArray:
    """edp: copies of each expert, tp·cp·dp / (etp·ep)."""
    copies: IntArray = keys["tp"] * keys["cp"] * keys["dp"] // (keys["etp"] * keys["ep"])
    return copies
