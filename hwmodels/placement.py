"""Where a group of ranks falls on the levels of a network.

A mesh dimension of `size` ranks at `stride` puts a group's members on chips r, r + stride, r + 2
stride, and so on, chips being numbered so that each unit of a level holds consecutive ones. The
collectives ask one thing of a placement: how many members meet at each level. From it follows
which links a group uses, and which share of a node's network cards it owns (a group with g members
in a node has g cards).

Shapes: `H` hardware rows, `G` groups, `nl` levels, innermost first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hwmodels.errors import ConfigError
from hwmodels.table import HardwareTable, IntArray

Dims = Sequence[tuple[IntArray, IntArray]]


def members(hw: HardwareTable, dims: Dims) -> IntArray:
    """How many members of a group meet at each level.

    A group may lie over several mesh dimensions: its members inside a unit of C chips are the
    product over dimensions of gcd(size, C / stride), or 1 for a stride that does not divide C. So
    a group that is not aligned with a unit counts only the largest aligned part of it (6 ranks of
    stride 1 in nodes of 8 count 2 a node): pessimistic, as its members are then taken to cross
    outer levels more often than they do. Where members sit apart on one axis of a torus is not
    recorded.

    Args:
        hw: Hardware rows.
        dims: One (size, stride) pair of (G,) integer arrays for each mesh dimension of the groups.

    Returns:
        (H, G, nl) members of level i: units of level i - 1 that a group occupies in one unit of
        level i. Their product over levels is the group's size.

    Raises:
        ConfigError: There is no dimension, a size or stride is below 1, or a group outgrows the
        job.
    """
    size = _group_size(hw, dims)
    domain_chips = np.cumprod(hw.level_size, axis=1)
    inside = _inside(domain_chips[:, None, :], dims)
    inside[..., -1] = size
    inside[..., 1:] //= inside[..., :-1].copy()
    return inside


def span_nodes(hw: HardwareTable, dims: Dims) -> IntArray:
    """How many hosts a group touches, by the same rule of alignment as `members`.

    Args:
        hw: Hardware rows.
        dims: One (size, stride) pair of (G,) integer arrays for each mesh dimension of the groups.

    Returns:
        (H, G) hosts of `chips_per_node` chips.

    Raises:
        ConfigError: As for `members`.
    """
    size = _group_size(hw, dims)
    inside = _inside(hw.chips_per_node[:, None, None], dims)[..., 0]
    hosts: IntArray = size // inside
    return hosts


def hop_level(hw: HardwareTable, size: IntArray, stride: IntArray) -> IntArray:
    """The level that a message between neighbours of a group crosses, the worst hop deciding.

    It is the innermost level of which one unit holds the whole group, and with it every hop (also
    the one from the last member back to the first, which interleaved pipelines make).

    Args:
        hw: Hardware rows.
        size: (G,) ranks of each group.
        stride: (G,) chips between neighbours.

    Returns:
        (H, G) level index, -1 for groups of one rank, which have no hop.

    Raises:
        ConfigError: As for `members`.
    """
    counts = members(hw, [(size, stride)])
    last_used = counts.shape[-1] - 1 - np.argmax(counts[..., ::-1] > 1, axis=-1)
    return np.where(np.prod(counts, axis=-1) > 1, last_used, -1)


def _inside(domain_chips: IntArray, dims: Dims) -> IntArray:
    """Members inside one unit of `domain_chips` (broadcast against (H, G, nl)) chips."""
    inside: IntArray = np.ones((1, 1, 1), dtype=np.int64)
    for size, stride in dims:
        n, s = np.asarray(size)[:, None], np.asarray(stride)[:, None]
        aligned = np.where(domain_chips % s == 0, domain_chips // s, 1)
        inside = inside * np.gcd(n, aligned)
    return inside


def _group_size(hw: HardwareTable, dims: Dims) -> IntArray:
    if not dims:
        raise ConfigError("a group needs at least one mesh dimension", field="dims")
    total: IntArray = np.ones(1, dtype=np.int64)
    for size, stride in dims:
        if np.any(np.asarray(size) < 1) or np.any(np.asarray(stride) < 1):
            raise ConfigError("sizes and strides of groups must be at least 1", field="dims")
        total = total * np.asarray(size, dtype=np.int64)
    if np.any(total > hw.num_chips):
        raise ConfigError(
            f"a group of {int(total.max())} ranks does not fit a job of {hw.num_chips} chips",
            field="dims",
        )
    return total
