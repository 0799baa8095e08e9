"""Price and power of the network between chips: cards, switches, and the links that join them.

A scale-up switch plane or torus joins the chips of a domain; a folded Clos joins domains. A Clos
of t tiers of radix-r switches reaches 2 (r/2)^t endpoints and takes 2t - 1 switch ports an
endpoint; links above the first tier are optical, and so is the first beyond a rack. With rails,
card i of every host joins a Clos of its own, so that each needs to reach fewer endpoints.

Reference: [AlFares2008] M. Al-Fares et al., "A scalable, commodity data center network
architecture", SIGCOMM 2008.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.accelerator.priors import Constants
from hwmodels.errors import UnsupportedError
from hwmodels.table import FloatArray

GIGA = 1e9
BITS = 8.0
MAX_TIERS = 6
Topology = Literal["switch", "torus", "full_mesh"]


@dataclass(frozen=True, slots=True)
class NetworkCost:
    """Parts a chip: price in dollars and power in W, each part (S, H); totals are their sums.

    Args:
        price_parts_usd: `cards, switches, links, scaleup_switches, scaleup_links`.
        power_parts_w: The same parts.
        tiers: (H,) tiers of the scale-out Clos; 0 where one domain holds all chips.
    """

    price_parts_usd: Mapping[str, FloatArray]
    power_parts_w: Mapping[str, FloatArray]
    tiers: FloatArray

    @property
    def price_usd_per_chip(self) -> FloatArray:
        """(S, H) dollars."""
        return np.asarray(sum(self.price_parts_usd.values()))

    @property
    def power_w_per_chip(self) -> FloatArray:
        """(S, H) W."""
        return np.asarray(sum(self.power_parts_w.values()))


def clos_tiers(endpoints: ArrayLike, radix: float) -> FloatArray:
    """Tiers of a folded Clos that reaches the endpoints [AlFares2008].

    One switch reaches `radix`, t > 1 tiers 2 (radix / 2)^t.
    """
    count = np.asarray(endpoints, dtype=float)
    tiers = np.where(count > 1, 1.0, 0.0)
    for tier in range(1, MAX_TIERS):
        reach = radix if tier == 1 else 2.0 * (radix / 2.0) ** tier
        tiers = np.where(count > reach, tier + 1.0, tiers)
    return tiers


def network_cost(
    constants: Constants,
    *,
    num_chips: ArrayLike,
    domain: ArrayLike,
    scaleup_bytes_per_s_per_dir: ArrayLike,
    nic_bytes_per_s_per_dir: ArrayLike,
    radix: float = 64.0,
    rails: ArrayLike = 1.0,
    oversubscription: ArrayLike = 1.0,
    scaleup: Topology = "switch",
) -> NetworkCost:
    """Price and power a chip of everything between the chips.

    Args:
        constants: S draws.
        num_chips: Chips of the cluster (broadcast to H with the rest).
        domain: Chips of a scale-up domain.
        scaleup_bytes_per_s_per_dir: A chip's links within its domain, one direction.
        nic_bytes_per_s_per_dir: A chip's share of the network cards, one direction.
        radix: Ports of a scale-out switch.
        rails: Separate Clos networks, one a card of a host.
        oversubscription: Rate below over rate above each tier.
        scaleup: What joins a domain: switches (one port a link), or direct links.

    Raises:
        UnsupportedError: Unknown scale-up topology.
    """
    if scaleup not in ("switch", "torus", "full_mesh"):
        raise UnsupportedError(
            f"unknown scale-up topology {scaleup!r}",
            field="scaleup",
            value=scaleup,
            allowed=["switch", "torus", "full_mesh"],
        )
    chips, size, up, out, rail, over = np.broadcast_arrays(
        *(
            np.atleast_1d(np.asarray(value, dtype=float))
            for value in (
                num_chips,
                domain,
                scaleup_bytes_per_s_per_dir,
                nic_bytes_per_s_per_dir,
                rails,
                oversubscription,
            )
        )
    )
    outside = chips > size
    tiers = np.where(outside, clos_tiers(chips / rail, radix), 0.0)
    above = np.maximum(tiers - 1.0, 0.0)
    nic_gbit = out * BITS / GIGA * outside
    up_gbyte = up / GIGA * (size > 1)
    switched = 1.0 if scaleup == "switch" else 0.0
    # Each rate is what the parts must carry: the card once, switch ports 1 + 2 a further tier.
    counts = {
        "cards": ("card", nic_gbit),
        "switches": ("switch_port", nic_gbit * (np.minimum(tiers, 1.0) + 2.0 * above / over)),
        "links": ("optical_link", nic_gbit * (np.minimum(tiers, 1.0) + above / over)),
        "scaleup_switches": ("scaleup_port", up_gbyte * switched),
        "scaleup_links": ("scaleup_link", up_gbyte),
    }
    return NetworkCost(
        price_parts_usd={
            part: constants.values[f"{item}_price"][:, None] * count
            for part, (item, count) in counts.items()
        },
        power_parts_w={
            part: constants.values[f"{item}_power"][:, None] * count
            for part, (item, count) in counts.items()
        },
        tiers=tiers,
    )
