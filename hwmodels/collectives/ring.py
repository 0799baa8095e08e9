"""Flat ring over all ranks, on every rail at once.

Time of a gather or scatter of M bytes: `start + sum of hop latencies + (n-1)/n * M/W`; an
all-reduce is two of them in one call. W is the slowest crossing: a ring that enters a unit with g
members does so on the rails of all g, one channel each, so it has g cards there [Patarasuk and
Yuan 2009; NCCL]. A rate of a two-level group is min(W_in, g * W_card).

The own part (see `links`) is added inside the innermost level; over nodes it hides behind the
network. Assumes that sibling groups talk at once and lend no rails. Latency grows with the ranks:
for large groups and small messages the other algorithms win.
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.links import Cost, Links


def gather(links: Links) -> Cost:
    """All-gather, or reduce-scatter, of M gathered bytes.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); zero for groups of one rank.
    """
    return _passes(links, 1)


def all_reduce(links: Links) -> Cost:
    """All-reduce of M bytes: a reduce-scatter, then an all-gather.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); zero for groups of one rank.
    """
    return _passes(links, 2)


def _passes(links: Links, count: int) -> Cost:
    rate = np.where(links.crosses, links.bytes_per_s * links.inner, np.inf).min(axis=-1)
    # Of the n - 1 hops of a chain, units/n_i * (n_i - 1) cross level i (NCCL counts them so).
    hops = links.units / links.members * (links.members - 1)
    alpha_s = links.call_s() + count * (hops * links.latency_s).sum(axis=-1)
    own = np.where(links.members[..., 0] == links.size, links.own, 0.0)
    return alpha_s, (count * (links.size - 1) + own) / links.size / rate
