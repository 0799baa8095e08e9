"""Every rank talks to every peer at once, inside the innermost level.

`alpha + (n-1)/n * M/W` for a gather or scatter, twice that for a two-shot all-reduce, and
`alpha + (n-1) * M/W` for the one-shot all-reduce in which everyone reads everything.

Needs a switch or a full mesh. Offered at the innermost level only: across a network of nodes the
incast of many senders and the cost of issuing a message to each peer, neither of them modelled,
undo it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives.links import Cost, Links, where_applies

DIRECT_KINDS = ("switch", "full_mesh")


def gather(links: Links) -> Cost:
    """All-gather, or reduce-scatter, of M gathered bytes in one step.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite outside the innermost switch or mesh.
    """
    n = links.size
    return where_applies(_applies(links), _step_s(links), (n - 1) / n / links.bytes_per_s[..., 0])


def all_reduce(links: Links) -> Cost:
    """Two-shot all-reduce of M bytes: a direct reduce-scatter, then a direct all-gather.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite outside the innermost switch or mesh.
    """
    alpha_s, s_per_byte = gather(links)
    return 2 * alpha_s, 2 * s_per_byte


def one_shot_all_reduce(links: Links) -> Cost:
    """All-reduce of M bytes in one step; for messages of a few hundred KB at most.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite outside the innermost switch or mesh.
    """
    return where_applies(
        _applies(links), _step_s(links), (links.size - 1) / links.bytes_per_s[..., 0]
    )


def _applies(links: Links) -> NDArray[np.bool_]:
    return links.only_on((0,)) & (links.kinds[0] in DIRECT_KINDS)


def _step_s(links: Links) -> NDArray[np.float64]:
    return np.broadcast_to(links.latency_s[..., 0], links.size.shape)
