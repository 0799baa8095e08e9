"""All axes of a torus or mesh at once.

The message is cut in parts, each of which visits the axes in another order, so that every axis is
busy from the first moment: `2(n-1)/n * M/(2 k W)` for an all-reduce over k equal wrapped axes of
links of rate W one way, latency `2 * sum(D_i - 1) * alpha` [scaling book; Sack and Gropp 2012].

Axes need not be equal. With the best cut of the message, the busiest set A of axes carries what is
left for it when it always comes last, `(n_A - 1)/n` of M, over the sum of its rates: the time is
the largest such quotient over all sets. (Loads of the axes form the base of a polymatroid, and
these are its facets.) For equal axes the whole set rules, which is the formula above.

An axis that a group covers only in part, or that does not wrap, gives one link, not two. Members
that sit apart on an axis are priced as neighbours: optimistic where sibling groups interleave on
one axis.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from hwmodels.collectives.links import Cost, Links, seconds_per_byte
from hwmodels.table import FloatArray


def axes_s_per_byte(links: Links, axes: tuple[int, ...]) -> FloatArray:
    """Seconds a byte of gathering over `axes` together, a byte of what enters them.

    Args:
        links: Placed groups.
        axes: Levels that are the axes of one torus or mesh.

    Returns:
        (H, G) seconds a byte; zero for a group without members on the axes.
    """
    n = [links.members[..., i] for i in axes]
    rate = [np.where(links.members[..., i] > 1, links.bytes_per_s[..., i], 0.0) for i in axes]
    whole = np.prod(n, axis=0)
    slowest: FloatArray = np.zeros(whole.shape)
    for count in range(1, len(axes) + 1):
        for chosen in combinations(range(len(axes)), count):
            load = (np.prod([n[a] for a in chosen], axis=0) - 1) / whole
            rates = np.sum([rate[a] for a in chosen], axis=0)
            slowest = np.maximum(slowest, seconds_per_byte(load, rates))
    return slowest


def axes_alpha_s(links: Links, axes: tuple[int, ...]) -> FloatArray:
    """(H, G) seconds of latency of gathering over `axes`: `sum(D_i - 1) * alpha`."""
    chosen = list(axes)
    latency: FloatArray = ((links.members[..., chosen] - 1) * links.latency_s[..., chosen]).sum(
        axis=-1
    )
    return latency


def gather(links: Links) -> Cost:
    """All-gather, or reduce-scatter, of M gathered bytes.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite where a group leaves one torus.
    """
    return _passes(links, 1)


def all_reduce(links: Links) -> Cost:
    """All-reduce of M bytes: a reduce-scatter, then an all-gather.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite where a group leaves one torus.
    """
    return _passes(links, 2)


def all_to_all(links: Links) -> Cost:
    """All-to-all of M bytes a rank, by the bisection of the worst axis.

    `M * D/(8 W)` where the axis wraps, `M * D/(4 W)` where it does not, D members on it. Assumes
    uniform traffic.

    Args:
        links: Placed groups.

    Returns:
        (alpha_s, s_per_byte), both (H, G); infinite where a group leaves one torus.
    """
    alpha_s = np.full(links.size.shape, np.inf)
    s_per_byte = np.zeros(links.size.shape)
    for axes in links.axis_runs():
        worst = np.max([bisection_s_per_byte(links, i) for i in axes], axis=0)
        applies = links.only_on(axes)
        alpha_s = np.where(applies, links.call_s() + axes_alpha_s(links, axes), alpha_s)
        s_per_byte = np.where(applies, worst, s_per_byte)
    return alpha_s, s_per_byte


def bisection_s_per_byte(links: Links, axis: int) -> FloatArray:
    """(H, G) seconds a byte of an all-to-all through the middle of one axis."""
    n = links.members[..., axis]
    # A wrapped axis has twice the rate, which turns D/4 of the mesh into D/8 of one link.
    return np.where(n > 1, n / (4 * links.bytes_per_s[..., axis]), 0.0)


def _passes(links: Links, count: int) -> Cost:
    alpha_s = np.full(links.size.shape, np.inf)
    s_per_byte = np.zeros(links.size.shape)
    for axes in links.axis_runs():
        applies = links.only_on(axes)
        steps_s = links.call_s() + count * axes_alpha_s(links, axes)
        alpha_s = np.where(applies, steps_s, alpha_s)
        s_per_byte = np.where(applies, count * axes_s_per_byte(links, axes), s_per_byte)
    return alpha_s, s_per_byte
