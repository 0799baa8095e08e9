"""Phases level by level, pipelined.

A gather goes from the outermost level inwards, a scatter the other way, an all-reduce scatters
inwards to outwards and gathers back. In the phase of level i each chip moves `(n_i - 1)/n_i` of `M
/ (n_0 ... n_{i-1})`. Two levels of g ranks and N nodes: `2(g-1)/g * M/W_in` inside and `2(N-1)/N *
(M/g)/W_card` between.

Phases overlap in chunks: the time is that of the busiest port, plus the start of the call and the
latencies of all phases. The innermost phase copies the own part too (see `links`).
Phases that use one port do not overlap: scatter and gather of one level add up, and so do nested
switch levels (see `links`). The axes of a torus are one phase (see `torus`). Optimistic by one
chunk of each phase.
"""

from __future__ import annotations

import numpy as np

from hwmodels.collectives import torus
from hwmodels.collectives.direct import DIRECT_KINDS
from hwmodels.collectives.links import AXIS_KINDS, Cost, Links, seconds_per_byte, where_applies
from hwmodels.table import FloatArray


def gather(links: Links) -> Cost:
    """All-gather, or reduce-scatter, of M gathered bytes.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite where a group has one phase only.
    """
    alpha_s, s_per_byte = pipelined(links, phase_share(links), phase_alpha_s(links))
    return where_applies(num_phases(links) > 1, links.call_s() + alpha_s, s_per_byte)


def all_reduce(links: Links) -> Cost:
    """All-reduce of M bytes.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite where a group has one phase only.
    """
    # Own part once a call, so half of it in each of the two passes.
    share = phase_share(links, own=links.own / 2)
    alpha_s, s_per_byte = pipelined(links, share, phase_alpha_s(links))
    return where_applies(num_phases(links) > 1, links.call_s() + 2 * alpha_s, 2 * s_per_byte)


def phase_share(links: Links, own: FloatArray | None = None) -> FloatArray:
    """(H, G, nl) share of M that one chip moves in a gather's phase of each level.

    Args:
        links: Placed groups.
        own: (H, G) own part, in shares of what one member of the innermost level keeps; that of
            the links if None.
    """
    share: FloatArray = (links.members - 1) / links.members / links.inner
    share[..., 0] += (links.own if own is None else own) / links.members[..., 0]
    return share


def phase_alpha_s(links: Links) -> FloatArray:
    """(H, G, nl) latency of a gather's phase: a ring's steps, or one direct step of a mesh."""
    steps = links.members - 1
    if links.kinds[0] in DIRECT_KINDS:
        steps[..., 0] = np.minimum(steps[..., 0], 1)
    latency: FloatArray = steps * links.latency_s
    return latency


def pipelined(links: Links, share: FloatArray, alpha_s: FloatArray) -> Cost:
    """Phases overlapped, ports added up.

    Args:
        links: Placed groups.
        share: (H, G, nl) share of M that one chip moves at each level, as `phase_share` gives it;
            the entries of torus axes are not read, they follow from the members.
        alpha_s: (H, G, nl) latency of each phase.

    Returns:
        (alpha_s, s_per_byte), both (H, G).
    """
    slowest = np.zeros(links.size.shape)
    through_port = np.zeros(links.size.shape)
    for i in reversed(range(len(links.kinds))):
        if links.kinds[i] in AXIS_KINDS:
            continue
        moved = share[..., i]
        if links.is_nested(i):
            through_port = through_port + moved
            moved = through_port
        slowest = np.maximum(slowest, seconds_per_byte(moved, links.bytes_per_s[..., i]))
    for axes in links.axis_runs():
        first = axes[0]
        slowest = np.maximum(slowest, torus.axes_s_per_byte(links, axes) / links.inner[..., first])
    return alpha_s.sum(axis=-1), slowest


def num_phases(links: Links) -> FloatArray:
    """(H, G) phases of a group: levels it has members on, the axes of a torus counting once."""
    used = links.members > 1
    phases = sum(
        (used[..., i].astype(float) for i, k in enumerate(links.kinds) if k not in AXIS_KINDS),
        np.zeros(links.size.shape),
    )
    for axes in links.axis_runs():
        phases = phases + used[..., list(axes)].any(axis=-1)
    return phases
