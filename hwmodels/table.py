"""Hardware rows: many machines as columns, so that one call prices them all.

A row is anything that perturbs the machine: a catalogued cluster, a design that a search asked
for, a draw from a calibration's spread, a rate one per cent higher. All rows of a table share the
*kinds* of their network levels; sizes, rates and every number of the chip may differ.

Shapes: `H` rows, `nl` network levels, innermost first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import ConfigError

if TYPE_CHECKING:
    from hwmodels.network import Cluster

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Column of a level to its field in `network.Level`.
LEVEL_COLUMNS = {
    "bytes_per_s": "bytes_per_s_per_chip_per_dir",
    "efficiency": "efficiency",
    "latency_s": "latency_s",
    "oversubscription": "oversubscription",
    "start_s": "start_s",
    "fast_start_s": "fast_start_s",
    "fast_rate": "fast_rate",
    "own_share": "own_share",
    "reduction_start_s": "reduction_start_s",
    "reduction_rate": "reduction_rate",
    "reduces": "in_network_reduction",
}
# Values of the columns that a table may leave out.
LEVEL_DEFAULTS = {
    "start_s": 0.0,
    "fast_start_s": 0.0,
    "fast_rate": 1.0,
    "own_share": 0.0,
    "reduction_start_s": 0.0,
    "reduction_rate": 1.0,
}


@dataclass(frozen=True, slots=True)
class HardwareTable:
    """Machines as columns.

    Args:
        names: (H,) a label a row.
        num_chips: Devices of the job, the same in every row.
        chip: Column name to (H,) values, SI units: `memory_bytes`, `memory_bytes_per_s`,
            `vector_flop_per_s`, `num_cores`, `peak_flop_per_s.<dtype>` and `kernel.<parameter>`.
        level_kinds: (nl,) kind of each network level, innermost first.
        level_size: (H, nl) children of a unit of that level; the product is `num_chips`.
        level: Column of `LEVEL_COLUMNS` to (H, nl) values; rates are one chip's, one direction.
            Those of `LEVEL_DEFAULTS`, and `reduces`, may be absent.
        level_reduces: (nl,) whether the switches of the level reduce in the network, in any row;
            where rows differ, the level column `reduces` is 1 for those that do.
        chips_per_node: (H,) devices of a host, which may be fewer than a scale-up domain holds.
    """

    names: tuple[str, ...]
    num_chips: int
    chip: Mapping[str, FloatArray]
    level_kinds: tuple[str, ...]
    level_size: IntArray
    level: Mapping[str, FloatArray]
    level_reduces: tuple[bool, ...]
    chips_per_node: IntArray

    def __len__(self) -> int:
        return len(self.names)

    def column(self, name: str, ndim: int = 1) -> FloatArray:
        """A chip column shaped (H, 1, ..., 1) with `ndim` axes, ready to broadcast."""
        values = self.chip[name]
        return values.reshape(values.shape + (1,) * (ndim - 1))

    def level_column(self, name: str) -> FloatArray:
        """(H, nl) values of a level column, or its default where the table lacks it."""
        if name == "reduces" and name not in self.level:
            everywhere = np.array(self.level_reduces, dtype=float)
            return np.broadcast_to(everywhere, self.level_size.shape)
        if name in self.level or name not in LEVEL_DEFAULTS:
            return self.level[name]
        return np.full(self.level_size.shape, LEVEL_DEFAULTS[name])

    def scaled(self, name: str, factor: float) -> HardwareTable:
        """The same rows, one chip column or one level column at all levels times `factor`."""
        if name in self.chip:
            return replace(self, chip={**self.chip, name: self.chip[name] * factor})
        if name in self.level:
            return replace(self, level={**self.level, name: self.level[name] * factor})
        raise ConfigError(
            f"no hardware column {name!r}", field=name, allowed=[*self.chip, *self.level]
        )

    @classmethod
    def of(cls, clusters: Sequence[Cluster]) -> HardwareTable:
        """One row a cluster.

        Raises:
            ConfigError: The clusters differ in chip count or in the kinds of their levels.
        """
        first = clusters[0]
        kinds = tuple(level.kind for level in first.levels)
        for other in clusters[1:]:
            if tuple(level.kind for level in other.levels) != kinds:
                raise ConfigError(
                    f"{other.name} and {first.name} have different kinds of network levels"
                )
            if other.num_chips != first.num_chips:
                raise ConfigError(f"{other.name} and {first.name} have different chip counts")
        chips = [cluster.chip.columns() for cluster in clusters]
        shared = [name for name in chips[0] if all(name in row for row in chips)]
        return cls(
            names=tuple(cluster.name for cluster in clusters),
            num_chips=first.num_chips,
            chip={name: np.array([row[name] for row in chips], dtype=float) for name in shared},
            level_kinds=kinds,
            level_size=np.array(
                [[level.size for level in cluster.levels] for cluster in clusters], dtype=np.int64
            ),
            level={name: _levels(clusters, field) for name, field in LEVEL_COLUMNS.items()},
            level_reduces=tuple(
                any(cluster.levels[i].in_network_reduction for cluster in clusters)
                for i in range(len(kinds))
            ),
            chips_per_node=np.array([c.chips_per_node for c in clusters], dtype=np.int64),
        )


def _levels(clusters: Sequence[Cluster], field: str) -> FloatArray:
    return np.array(
        [[getattr(level, field) for level in cluster.levels] for cluster in clusters], dtype=float
    )
