"""The least time a byte that any algorithm needs: bytes over nominal link rates, no latency.

Cut argument. The K units of g ranks each that a group occupies at a level must exchange, a unit on
average, `(K-1)/K` of M in a gather or scatter, twice that in an all-reduce (at least M where a
switch in between may reduce), and `g * (K-1)/K` of M in an all-to-all. They have the g chips'
links of that level and all further out, counted at efficiency 1; the bound is the largest over
levels.
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.links import AXIS_KINDS, Links
from hwmodels.errors import UnsupportedError
from hwmodels.table import FloatArray, HardwareTable, IntArray


def roofline_s_per_byte(verb: str, hw: HardwareTable, members: IntArray) -> FloatArray:
    """Seconds a byte of message that no algorithm of this package beats.

    Args:
        verb: `all_reduce`, `all_gather`, `reduce_scatter` or `all_to_all`.
        hw: Hardware rows.
        members: (H, G, nl) members of each level.

    Returns:
        (H, G) seconds a byte; zero for groups of one rank.

    Raises:
        UnsupportedError: The verb has no bound here.
    """
    if verb not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        raise UnsupportedError(f"no roofline bound for the collective {verb!r}", value=verb)
    links = Links.of(hw, members, nominal=True)
    bound = np.zeros(links.size.shape)
    own_ports = np.zeros(links.size.shape)
    card = np.zeros(links.size.shape)
    reduces = np.zeros(links.size.shape, dtype=bool)
    for i in reversed(range(len(links.kinds))):
        crosses, rate = links.crosses[..., i], links.bytes_per_s[..., i]
        if links.is_nested(i):
            # Nested levels share a card: leaving the inner one is leaving through its port.
            card = np.where(crosses, rate, card)
        else:
            own_ports = own_ports + np.where(crosses, rate, 0.0)
        if links.kinds[i] not in AXIS_KINDS:
            reduces |= links.reduces[..., i] & (links.members[..., i] > 1)
        bytes_ = 1 - 1 / links.units[..., i]
        if verb == "all_reduce":
            bytes_ = np.where(reduces, np.minimum(2 * bytes_, 1.0), 2 * bytes_)
        ranks = 1.0 if verb == "all_to_all" else links.inner[..., i]
        rates = ranks * (own_ports + card)
        bound = np.maximum(
            bound, np.divide(bytes_, rates, out=np.zeros_like(rates), where=rates > 0)
        )
    return bound
