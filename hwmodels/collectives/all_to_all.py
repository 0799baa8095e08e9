"""All-to-all over switches, flat or node by node.

Flat: a message to every peer, `start + (n-1) * alpha + (n-1)/n * M/W` on one switch; of n ranks
in nodes of g, `M * (n-g)/n / W_card` leaves a node. Node by node: what one node wants of another
goes there once gathered, then spreads: `max(M * (N-1)/N / W_card, M * (g-1)/g / W_in)`, and far
fewer messages. Both copy the own part on the innermost level (see `links`).

M is one rank's whole send buffer, spread evenly over all ranks, itself among them; multiply the
time by the load of the most loaded rank where it is not. Cards of nested levels add up (see
`links`).
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives import torus
from hwmodels.collectives.hierarchical import num_phases
from hwmodels.collectives.links import AXIS_KINDS, Cost, Links, seconds_per_byte, where_applies
from hwmodels.table import FloatArray


def flat(links: Links) -> Cost:
    """Every rank sends to every peer straight away.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); zero for groups of one rank, infinite within a torus.
    """
    n = links.members
    peers = (n - 1) * links.inner
    alpha_s = links.call_s() + (peers * links.latency_s).sum(axis=-1)
    share = peers / links.size[..., None]
    share[..., 0] += links.own / links.size
    return where_applies(~_within_torus(links), alpha_s, _slowest(links, share))


def by_node(links: Links) -> Cost:
    """First between units at each level, then inside them.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite where a group has one phase only.
    """
    n = links.members
    alpha_s = links.call_s() + ((n - 1) * links.latency_s).sum(axis=-1)
    share = (n - 1) / n
    share[..., 0] += links.own / n[..., 0]
    return where_applies(num_phases(links) > 1, alpha_s, _slowest(links, share))


def _slowest(links: Links, own_share: FloatArray) -> FloatArray:
    """(H, G) seconds a byte of the busiest port.

    Nested switches carry what leaves the unit below them, `1 - 1/units` of M; other levels carry
    `own_share` (H, G, nl), and axes of a torus what their bisection allows.
    """
    slowest = np.zeros(links.size.shape)
    for i, kind in enumerate(links.kinds):
        if kind in AXIS_KINDS:
            term = torus.bisection_s_per_byte(links, i)
        else:
            share = 1 - 1 / links.units[..., i] if links.is_nested(i) else own_share[..., i]
            term = seconds_per_byte(share, links.bytes_per_s[..., i])
        slowest = np.maximum(slowest, term)
    return slowest


def _within_torus(links: Links) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    within = np.zeros(links.size.shape, dtype=bool)
    for axes in links.axis_runs():
        within |= links.only_on(axes)
    return within
