"""One verb over all algorithms: seconds of a collective, the fastest algorithm taken.

Every algorithm is linear in the message, so that its two coefficients are worked out once for each
distinct placement and a million plans only gather, multiply and take a minimum. An algorithm by
the protocol of low latency (see `links`) is one more, named with `FAST` behind it; reduction by
switches has only the other.

What M counts: all-reduce, the buffer; all-gather and reduce-scatter, the gathered size;
all-to-all, one rank's whole send buffer; p2p, the message.

Shapes: `H` hardware rows, `G` groups, `A` algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from hwmodels.collectives import all_to_all, direct, hierarchical, in_network, ring, torus, tree
from hwmodels.collectives.links import AXIS_KINDS, Cost, Links, seconds_per_byte
from hwmodels.errors import ConfigError, UnsupportedError
from hwmodels.table import FloatArray, HardwareTable, IntArray

Algorithm = Callable[[Links], Cost]
FAST = ", low latency"
_ONE_PROTOCOL = ("in_network",)

_GATHERS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "ring": ring.gather,
        "direct": direct.gather,
        "torus": torus.gather,
        "hierarchical": hierarchical.gather,
    }
)
ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {
        "all_reduce": MappingProxyType(
            {
                "ring": ring.all_reduce,
                "tree": tree.all_reduce,
                "direct": direct.all_reduce,
                "one_shot": direct.one_shot_all_reduce,
                "torus": torus.all_reduce,
                "hierarchical": hierarchical.all_reduce,
                "in_network": in_network.all_reduce,
            }
        ),
        "all_gather": _GATHERS,
        "reduce_scatter": _GATHERS,
        "all_to_all": MappingProxyType(
            {"flat": all_to_all.flat, "by_node": all_to_all.by_node, "torus": torus.all_to_all}
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Linear costs of one verb for a batch of placements, an algorithm at a time.

    Args:
        algorithms: (A,) names.
        alpha_s: (A, H, G) seconds before the first byte; infinite where one does not apply.
        s_per_byte: (A, H, G) seconds a byte; zero where an algorithm does not apply.
    """

    algorithms: tuple[str, ...]
    alpha_s: FloatArray
    s_per_byte: FloatArray

    def take(self, indices: IntArray) -> Coefficients:
        """The same costs for groups picked by `indices` (P,): shapes become (A, H, P)."""
        return Coefficients(
            self.algorithms,
            self.alpha_s[:, :, indices],
            self.s_per_byte[:, :, indices],
        )


def coefficients(verb: str, hw: HardwareTable, members: IntArray) -> Coefficients:
    """Costs of a verb by every algorithm that is the fastest somewhere.

    Algorithms that apply to no group, or that another one beats for every group and message size,
    are left out.

    Args:
        verb: `all_reduce`, `all_gather`, `reduce_scatter` or `all_to_all`.
        hw: Hardware rows.
        members: (H, G, nl) members of each level, from `placement.members`.

    Returns:
        The costs. Groups of one rank cost exactly zero.

    Raises:
        UnsupportedError: The verb is not modelled.
    """
    if verb not in ALGORITHMS:
        raise UnsupportedError(
            f"no model of the collective {verb!r}", value=verb, allowed=list(ALGORITHMS)
        )
    return _without_dominated(every_cost(verb, hw, members))


def every_cost(verb: str, hw: HardwareTable, members: IntArray) -> dict[str, Cost]:
    """(alpha_s, s_per_byte) of every algorithm by both protocols, as for `coefficients`."""
    links = Links.of(hw, members)
    costs = {name: algorithm(links) for name, algorithm in ALGORITHMS[verb].items()}
    if _has_fast_protocol(hw):
        fast = Links.of(hw, members, fast=True)
        costs |= {
            name + FAST: algorithm(fast)
            for name, algorithm in ALGORITHMS[verb].items()
            if name not in _ONE_PROTOCOL
        }
    return costs


def _has_fast_protocol(hw: HardwareTable) -> bool:
    return bool(
        np.any(hw.level_column("fast_rate") < 1)
        or np.any(hw.level_column("fast_start_s") != hw.level_column("start_s"))
    )


def p2p(hw: HardwareTable, hop: IntArray) -> Coefficients:
    """Costs of a message between neighbours, `start + alpha + M/W`.

    W is what joins two neighbours: a chip's card, one link of a torus or mesh. Inside the
    innermost level the start is that of full rate, as pairs of measured all-to-alls show. Further
    out no row times a single message; what collectives of full rate wait for there is mostly their
    phases to fill, so the start of low latency is taken. Optimistic on a
    torus where neighbours of the group are not neighbours on the axis: hops between them and
    siblings on the same links are not counted.

    Args:
        hw: Hardware rows.
        hop: (H, G) level that the message crosses, from `placement.hop_level`; -1 costs nothing.

    Returns:
        The costs, of the one algorithm `p2p`.
    """
    pair = np.ones((len(hw), len(hw.level_kinds), len(hw.level_kinds)), dtype=np.int64)
    np.einsum("hii->hi", pair)[:] = 2  # a pair that meets at level i, for every i
    links = Links.of(hw, pair)
    # A pair on a wrapped axis of two would count both links; one message takes one.
    axis_rates = hw.level["bytes_per_s"] * hw.level["efficiency"] / hw.level["oversubscription"]
    rate = np.einsum("hii->hi", links.bytes_per_s).copy()
    is_axis = np.array([kind in AXIS_KINDS for kind in hw.level_kinds])
    rate[:, is_axis] = axis_rates[:, is_axis]
    level = np.maximum(hop, 0)
    moves = (hop >= 0).astype(np.float64)
    start_s = hw.level_column("fast_start_s").copy()
    start_s[:, 0] = hw.level_column("start_s")[:, 0]
    alpha_s = np.take_along_axis(start_s + hw.level["latency_s"], level, axis=1) * moves
    s_per_byte = seconds_per_byte(moves, np.take_along_axis(rate, level, axis=1))
    return Coefficients(("p2p",), alpha_s[None], s_per_byte[None])


def seconds(costs: Coefficients, message_bytes: FloatArray | float) -> tuple[FloatArray, IntArray]:
    """Seconds of a collective by its fastest algorithm, and which one that is.

    Args:
        costs: Coefficients, possibly gathered by `take`.
        message_bytes: Message, broadcast against (H, G).

    Returns:
        (H, G) seconds and (H, G) index into `costs.algorithms`; of equals the first. No message
        takes no time: a call that would send nothing is not made.
    """
    best_s = costs.alpha_s[0] + costs.s_per_byte[0] * message_bytes
    best = np.zeros(best_s.shape, dtype=np.int64)
    for a in range(1, len(costs.algorithms)):
        time_s = costs.alpha_s[a] + costs.s_per_byte[a] * message_bytes
        best[time_s < best_s] = a
        np.minimum(best_s, time_s, out=best_s)
    return np.where(np.asarray(message_bytes) > 0, best_s, 0.0), best


def fastest_s(
    costs: Coefficients, message_bytes: FloatArray | float, indices: IntArray | None = None
) -> FloatArray:
    """The times of `seconds` alone, in fewer passes: for the hot path.

    Args:
        costs: Coefficients.
        message_bytes: Message, broadcast against (H, G), or (H, P) with `indices`.
        indices: (P,) group of each message; one array an algorithm is gathered at a time, which
            stays in cache where `take` would not.

    Returns:
        (H, G) seconds, or (H, P).
    """
    best_s: FloatArray | None = None
    for alpha_s, s_per_byte in zip(costs.alpha_s, costs.s_per_byte, strict=True):
        if indices is not None:
            alpha_s = np.take(alpha_s, indices, axis=1)
            s_per_byte = np.take(s_per_byte, indices, axis=1)
        time_s: FloatArray = s_per_byte * message_bytes
        time_s += alpha_s
        best_s = time_s if best_s is None else np.minimum(best_s, time_s, out=best_s)
    if best_s is None:
        raise ConfigError("no algorithm to choose from", field="costs")
    return np.where(np.asarray(message_bytes) > 0, best_s, 0.0)


def busbw_factor(verb: str, n: FloatArray | float) -> FloatArray | float:
    """Bus bandwidth over algorithm bandwidth: the link rate that a ring would need [nccl-tests].

    Args:
        verb: A verb of `ALGORITHMS`, or `broadcast`, `reduce`, `p2p`.
        n: Ranks of the group, at least 1.

    Returns:
        The factor, shaped as `n`.

    Raises:
        ConfigError: There are fewer than one rank.
        UnsupportedError: The verb has no such convention.
    """
    if np.any(np.asarray(n) < 1):
        raise ConfigError("a group has at least one rank", field="n", value=n)
    if verb == "all_reduce":
        return 2 * (n - 1) / n
    if verb in ("all_gather", "reduce_scatter", "all_to_all"):
        return (n - 1) / n
    if verb in ("broadcast", "reduce", "p2p"):
        return np.ones_like(n, dtype=np.float64)
    raise UnsupportedError(f"no bus bandwidth of the collective {verb!r}", value=verb)


def algbw(message_bytes: FloatArray | float, time_s: FloatArray | float) -> FloatArray | float:
    """Algorithm bandwidth in bytes/s, message over time; `busbw_factor` turns it into busbw."""
    return message_bytes / time_s


def _without_dominated(costs: Mapping[str, Cost]) -> Coefficients:
    # What applies nowhere goes first: it is most of what there is, and cheap to tell.
    kept = {name: cost for name, cost in costs.items() if np.isfinite(cost[0]).any()}
    kept = kept or dict(costs)
    for name in tuple(kept):
        rivals = [cost for other, cost in kept.items() if other != name]
        if rivals and any(_dominates(rival, kept[name]) for rival in rivals):
            del kept[name]
    return Coefficients(
        tuple(kept),
        np.stack([alpha_s for alpha_s, _ in kept.values()]),
        np.stack([s_per_byte for _, s_per_byte in kept.values()]),
    )


def _dominates(rival: Cost, cost: Cost) -> bool:
    """Whether `rival` is no slower for every group and message."""
    if not (rival[0] <= cost[0]).all():
        return False
    return bool(((rival[1] <= cost[1]) | ~np.isfinite(cost[0])).all())
