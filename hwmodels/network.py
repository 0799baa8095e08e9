"""A cluster: one kind of chip, and the levels of network between its copies.

Level 0 joins chips (a scale-up switch, a mesh, one axis of a torus); each further level joins
units of the level below. A k-dimensional torus is k consecutive levels of kind `ring` (`line`
where an axis does not wrap around), one an axis. The host is apart from the levels:
`chips_per_node` may be smaller than a scale-up domain (72 GPUs of an NVL72 are 18 hosts of 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from hwmodels.chip import Chip
from hwmodels.sourced import Sourced

LevelKind = Literal["switch", "full_mesh", "cube_mesh", "ring", "line"]


class Level(BaseModel):
    """One level of the network.

    `bytes_per_s_per_chip_per_dir` is the nominal rate of one chip's share of the level, one
    direction: a node's cards divided over its chips. `full_mesh` counts all links of a chip, one
    to each of its `size - 1` peers; `ring` and `line` count one link, one way (a wrapped axis has
    two). `latency_s` is one step between neighbours, software included. `efficiency` is the share
    of nominal that large messages reach. `technology` keys the link rules that filled what the
    file left open.

    Libraries send by one of two protocols and take the faster: one of full rate, a call of which
    starts after `start_s`, and one of low latency, which starts after `fast_start_s` and reaches
    `fast_rate` of `efficiency`. As they stand by default the two are one. A chip also copies the
    part of a message that it keeps: `own_share` is the time of that, relative to sending as much
    (innermost level). A collective that the switches reduce starts after `reduction_start_s` and
    reaches `reduction_rate` of `efficiency`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: LevelKind
    size: int = Field(ge=1)
    bytes_per_s_per_chip_per_dir: float = Field(gt=0)
    latency_s: float = Field(ge=0)
    oversubscription: float = Field(default=1.0, ge=1.0)
    in_network_reduction: bool = False
    efficiency: float = Field(default=1.0, gt=0, le=1.0)
    start_s: float = Field(default=0.0, ge=0)
    fast_start_s: float = Field(default=0.0, ge=0)
    fast_rate: float = Field(default=1.0, gt=0, le=1.0)
    own_share: float = Field(default=0.0, ge=0, le=1.0)
    reduction_start_s: float = Field(default=0.0, ge=0)
    reduction_rate: float = Field(default=1.0, gt=0, le=1.0)
    technology: str = ""


class Cluster(BaseModel):
    """Copies of one chip joined by levels of network; `num_chips` is the product of the sizes.

    `facts` keeps the provenance of the numbers by dotted name (`levels.<name>.latency_s`);
    `estimated` names those that a rule filled, the rule being the `source` of their facts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    chip: Chip
    levels: tuple[Level, ...] = Field(min_length=1)
    chips_per_node: int = Field(ge=1)
    host_memory_bytes_per_node: float | None = None
    node_power_w: float | None = None
    node_price_usd: float | None = None
    estimated: tuple[str, ...] = ()
    facts: Mapping[str, Sourced] = Field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def num_chips(self) -> int:
        """Devices of the job."""
        return prod(level.size for level in self.levels)
