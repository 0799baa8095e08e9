"""Every rank talks to every peer at once, inside an innermost full mesh.

`start + alpha + (n-1)/n * M/W` for a gather or scatter, twice alpha and share for a two-shot
all-reduce, and `start + alpha + (n-1) * M/W` for the one-shot all-reduce in which everyone reads
everything.

Not offered on switches: measured collectives of 2 to 8 chips on one take the steps of a ring, so
the libraries do not use it there. Nor across a network of nodes: the incast of many senders and
the cost of issuing a message to each peer, neither of them modelled, undo it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives.links import Cost, Links, where_applies

DIRECT_KINDS = ("full_mesh",)


def gather(links: Links) -> Cost:
    """All-gather, or reduce-scatter, of M gathered bytes in one step.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite outside an innermost full mesh.
    """
    return _passes(links, 1)


def all_reduce(links: Links) -> Cost:
    """Two-shot all-reduce of M bytes: a direct reduce-scatter, then a direct all-gather.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite outside an innermost full mesh.
    """
    return _passes(links, 2)


def one_shot_all_reduce(links: Links) -> Cost:
    """All-reduce of M bytes in one step; for messages of a few hundred KB at most.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite outside an innermost full mesh.
    """
    alpha_s = links.call_s() + _step_s(links)
    return where_applies(_applies(links), alpha_s, (links.size - 1) / links.bytes_per_s[..., 0])


def _passes(links: Links, count: int) -> Cost:
    n = links.size
    alpha_s = links.call_s() + count * _step_s(links)
    share = (count * (n - 1) + links.own) / n
    return where_applies(_applies(links), alpha_s, share / links.bytes_per_s[..., 0])


def _applies(links: Links) -> NDArray[np.bool_]:
    return links.only_on((0,)) & (links.kinds[0] in DIRECT_KINDS)


def _step_s(links: Links) -> NDArray[np.float64]:
    return np.broadcast_to(links.latency_s[..., 0], links.size.shape)
