"""All-reduce by switches that add.

Innermost (NVLS): each chip sends M once to be reduced and its reduced share once to be multicast,
`start + alpha + (n+1)/n * M/W`, which agrees with the factor (n-1)/(n+1) of nccl-tests. Further
out (SHARP): `alpha + (M/g)/W_card`, g members a node having scattered before. Other levels of the
group take part as in `hierarchical`, pipelined with it.

A level reduces in the network only where that moves fewer bytes than a ring: from four members
innermost, from three further out. Gathers gain nothing and scatters only latency, so neither is
offered. Reductions have their own start and share of the rate (see `network.Level`): on H100 they
start four times as late as a ring and reach seven eighths of its rate. Assumes free switch
buffers; wrong when many groups reduce at once.
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.hierarchical import phase_alpha_s, phase_share, pipelined
from hwmodels.collectives.links import AXIS_KINDS, Cost, Links, where_applies


def all_reduce(links: Links) -> Cost:
    """All-reduce of M bytes.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite where no level of a group reduces.
    """
    # Both are those of one of the two passes of an all-reduce, hence the halves.
    share = phase_share(links, own=links.own / 2)
    ring_share = phase_share(links, own=np.zeros_like(links.own))
    alpha_s = phase_alpha_s(links)
    start_s = np.broadcast_to(links.start_s, links.members.shape).copy()
    used = np.zeros(links.size.shape, dtype=bool)
    for i, kind in enumerate(links.kinds):
        if kind in AXIS_KINDS:
            continue
        n = links.members[..., i]
        passes = (n + 1) / n if i == 0 else np.ones_like(n)
        reduced = passes / links.inner[..., i] / 2 / links.reduction_rate[..., i]
        better = links.reduces[..., i] & (reduced < ring_share[..., i])
        share[..., i] = np.where(better, reduced, share[..., i])
        alpha_s[..., i] = np.where(better, links.latency_s[..., i] / 2, alpha_s[..., i])
        start_s[..., i] = np.where(better, links.reduction_start_s[..., i], start_s[..., i])
        used |= better
    pass_alpha_s, pass_s_per_byte = pipelined(links, share, alpha_s)
    return where_applies(used, links.call_s(start_s) + 2 * pass_alpha_s, 2 * pass_s_per_byte)
