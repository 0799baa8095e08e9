"""Double binary tree all-reduce, `2 * log2(n) * alpha + 2 * M/W` [NCCL; Sanders et al. 2009].

Each rank is inside one tree and a leaf of the other, so it sends and receives 2 M in all,
pipelined. The trees are laid over the levels: a tree of units outside, and inside the innermost
unit a chain of `n - 1` steps, as NCCL builds them. Rails as for the ring.

Not applied to axes of a torus, where the long edges of a tree share links. NCCL's own correction
for medium messages (0.5 to 0.9 of the rate) is not included: optimistic between 4 KB and 8 MB.
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives.links import AXIS_KINDS, Cost, Links, where_applies


def all_reduce(links: Links) -> Cost:
    """All-reduce of M bytes.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite where a group lies on axes of a torus.
    """
    on_axis = np.zeros(links.size.shape, dtype=bool)
    for i, kind in enumerate(links.kinds):
        if kind in AXIS_KINDS:
            on_axis |= links.members[..., i] > 1
    rate = np.where(links.crosses, links.bytes_per_s * links.inner, np.inf).min(axis=-1)
    depth = np.ceil(np.log2(links.members))
    depth[..., 0] = links.members[..., 0] - 1
    alpha_s = links.call_s() + 2 * (depth * links.latency_s).sum(axis=-1)
    return where_applies(~on_axis, alpha_s, 2 / rate)
