"""What every collective algorithm asks of a placed group: members, link rates and latencies by
level.

Rates are what one chip can push through its links of a level, one direction, while every sibling
group does the same. They depend on how many members the group has there: a full mesh of 8 offers a
pair one link of seven, and a ring that a group covers only in part does not wrap around.

Ports. A chip's links of the innermost level, of a torus and of a mesh are its own. Levels of kind
`switch` further out are nested (a leaf switch below a spine): what crosses the outer one has left
through the same network card, so an inner one carries it too.

Protocols. A message goes by the protocol of full rate, or by that of low latency (`fast`), on all
levels; both are priced and the faster is taken. A call starts once, on the slowest level to start
among those it uses.

Own part. A chip also copies what it keeps of a message, M/n, at a rate of its own: `own/n * M/W`
beside what its links carry. Rows of out-of-place collectives show it plainly: pairs reach three
quarters of the bus bandwidth of eight.

Shapes: `H` hardware rows, `G` groups, `nl` levels, innermost first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwmodels.table import FloatArray, HardwareTable, IntArray

AXIS_KINDS = ("ring", "line")
Cost = tuple[FloatArray, FloatArray]
"""(alpha_s, s_per_byte), both (H, G): a collective of M bytes takes alpha_s + s_per_byte * M."""


@dataclass(frozen=True, slots=True)
class Links:
    """A batch of groups on the links of their machines.

    Args:
        kinds: (nl,) kind of each level.
        reduces: (H, 1, nl) whether switches of the level reduce.
        members: (H, G, nl) members that meet at each level.
        size: (H, G) ranks of the group.
        inner: (H, G, nl) ranks of the group in one member of the level.
        units: (H, G, nl) members of the level in the whole group: `size / inner`.
        crosses: (H, G, nl) whether bytes of the group pass the level's links.
        bytes_per_s: (H, G, nl) rate of one chip through its links of the level, one direction.
        latency_s: (H, 1, nl) seconds of one message step.
        start_s: (H, 1, nl) seconds that a call waits before its first step.
        own: (H, G) time to copy a part that is kept, relative to sending as much over the
            innermost level; zero for groups without members there, and on axes of a torus.
        reduction_start_s: (H, 1, nl) as `start_s`, where switches reduce.
        reduction_rate: (H, 1, nl) share of `bytes_per_s` that reducing switches reach.
    """

    kinds: tuple[str, ...]
    reduces: NDArray[np.bool_]
    members: FloatArray
    size: FloatArray
    inner: FloatArray
    units: FloatArray
    crosses: NDArray[np.bool_]
    bytes_per_s: FloatArray
    latency_s: FloatArray
    start_s: FloatArray
    own: FloatArray
    reduction_start_s: FloatArray
    reduction_rate: FloatArray

    @classmethod
    def of(
        cls, hw: HardwareTable, members: IntArray, *, nominal: bool = False, fast: bool = False
    ) -> Links:
        """The links of groups placed by `placement.members`.

        Args:
            hw: Hardware rows.
            members: (H, G, nl) members of each level.
            nominal: Leave the efficiency out and give every axis of a torus both its links.
            fast: By the protocol of low latency.
        """
        n = members.astype(np.float64)
        through: FloatArray = np.cumprod(n, axis=-1, dtype=np.float64)
        size: FloatArray = through[..., -1]
        inner = through / n
        units = size[..., None] / inner
        nested = np.array([_is_nested(kind, i) for i, kind in enumerate(hw.level_kinds)])
        rate = hw.level["bytes_per_s"] / hw.level["oversubscription"]
        if not nominal:
            rate = rate * hw.level["efficiency"]
        if fast:
            rate = rate * hw.level_column("fast_rate")
        share = np.ones_like(n)
        for i, kind in enumerate(hw.level_kinds):
            share[..., i] = (
                2.0
                if nominal and kind in AXIS_KINDS
                else _share(kind, n[..., i], hw.level_size[:, None, i])
            )
        return cls(
            kinds=hw.level_kinds,
            reduces=(hw.level_column("reduces") > 0)[:, None, :],
            members=n,
            size=size,
            inner=inner,
            units=units,
            crosses=(n > 1) | (nested & (units > 1)),
            bytes_per_s=rate[:, None, :] * share,
            latency_s=hw.level["latency_s"][:, None, :],
            start_s=hw.level_column("fast_start_s" if fast else "start_s")[:, None, :],
            own=np.where(
                (n[..., 0] > 1) & (hw.level_kinds[0] not in AXIS_KINDS),
                hw.level_column("own_share")[:, :1],
                0.0,
            ),
            reduction_start_s=hw.level_column("reduction_start_s")[:, None, :],
            reduction_rate=hw.level_column("reduction_rate")[:, None, :],
        )

    def call_s(self, start_s: FloatArray | None = None) -> FloatArray:
        """(H, G) start of a call: the longest among the levels that a group uses.

        Args:
            start_s: (H, G, nl) starts to take instead of the protocol's.
        """
        starts = self.start_s if start_s is None else start_s
        longest: FloatArray = np.where(self.members > 1, starts, 0.0).max(axis=-1)
        return longest

    def is_nested(self, level: int) -> bool:
        """Whether the level's port also carries what crosses switch levels further out."""
        return _is_nested(self.kinds[level], level)

    def axis_runs(self) -> list[tuple[int, ...]]:
        """Runs of consecutive levels that are the axes of one torus or mesh, innermost first."""
        runs: list[tuple[int, ...]] = []
        for i, kind in enumerate(self.kinds):
            if kind not in AXIS_KINDS:
                continue
            if runs and runs[-1][-1] == i - 1:
                runs[-1] += (i,)
            else:
                runs.append((i,))
        return runs

    def only_on(self, levels: tuple[int, ...]) -> NDArray[np.bool_]:
        """(H, G) whether a group has more than one rank and all of them meet on `levels`."""
        product: FloatArray = np.prod(self.members[..., list(levels)], axis=-1)
        only: NDArray[np.bool_] = (product == self.size) & (self.size > 1)
        return only


def where_applies(applies: NDArray[np.bool_], alpha_s: FloatArray, s_per_byte: FloatArray) -> Cost:
    """The cost where the algorithm applies; elsewhere infinite.

    The infinity is put in `alpha_s` alone and `s_per_byte` is zero there, so that an empty message
    costs infinity too, not infinity times zero.
    """
    return np.where(applies, alpha_s, np.inf), np.where(applies, s_per_byte, 0.0)


def seconds_per_byte(bytes_: FloatArray, bytes_per_s: FloatArray) -> FloatArray:
    """Bytes over a rate; zero where nothing is sent, whatever the rate."""
    return np.divide(bytes_, bytes_per_s, out=np.zeros_like(bytes_per_s), where=bytes_ > 0)


def _is_nested(kind: str, level: int) -> bool:
    return level > 0 and kind == "switch"


def _share(kind: str, n: FloatArray, size: IntArray) -> FloatArray | float:
    """Links that `n` of a level's `size` members use, in units of the level's stated rate."""
    if kind == "ring":
        return np.where(n == size, 2.0, 1.0)  # the stated rate is one of two links
    if kind == "full_mesh":
        # A pair shares one link of size - 1; a level of one member has no link to share.
        return (np.maximum(n, 2) - 1) / np.maximum(size - 1, 1)
    if kind == "cube_mesh":
        # Hybrid cube mesh of DGX-1 (V100): of 6 links 2 join a closest pair, 4 stay in a quad.
        return np.where(n <= 2, 1 / 3, np.where(n <= 4, 2 / 3, 1.0))
    return 1.0
