"""Collective cost models: worked values of each algorithm, and what must hold for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.catalog import load_cluster
from hwmodels.collectives import (
    ALGORITHMS,
    Coefficients,
    algbw,
    busbw_factor,
    coefficients,
    fastest_s,
    p2p,
    roofline_s_per_byte,
    seconds,
)
from hwmodels.collectives.links import Links
from hwmodels.collectives.verbs import FAST, every_cost
from hwmodels.errors import ConfigError, UnsupportedError
from hwmodels.placement import hop_level, members
from hwmodels.table import HardwareTable, IntArray

pytestmark = pytest.mark.fast

GB = 1e9
US = 1e-6
GATHERS = ("all_gather", "reduce_scatter")


def table(
    *levels: tuple[str, int, float, float],
    efficiency: tuple[float, ...] | None = None,
    oversubscription: tuple[float, ...] | None = None,
    reduces: tuple[bool, ...] | None = None,
    **columns: tuple[float, ...],
) -> HardwareTable:
    """One row of levels (kind, size, bytes/s of a chip, latency in s), innermost first."""
    kinds, sizes, rates, latencies = zip(*levels, strict=True)
    ones = (1.0,) * len(levels)
    return HardwareTable(
        names=("row",),
        num_chips=int(np.prod(sizes)),
        chip={},
        level_kinds=kinds,
        level_size=np.array([sizes], dtype=np.int64),
        level={
            "bytes_per_s": np.array([rates]),
            "latency_s": np.array([latencies]),
            "efficiency": np.array([efficiency or ones]),
            "oversubscription": np.array([oversubscription or ones]),
            **{name: np.array([values]) for name, values in columns.items()},
        },
        level_reduces=reduces or (False,) * len(levels),
        chips_per_node=np.array([sizes[0]]),
    )


def counts(*groups: tuple[int, ...]) -> IntArray:
    """Members of each level for some groups of one hardware row."""
    return np.array([groups], dtype=np.int64)


def cost(verb: str, algorithm: str, hw: HardwareTable, *group: int) -> tuple[float, float]:
    """(alpha_s, s_per_byte) of one algorithm for one group."""
    alpha_s, s_per_byte = every_cost(verb, hw, counts(group))[algorithm]
    return float(alpha_s[0, 0]), float(s_per_byte[0, 0])


def fastest(verb: str, hw: HardwareTable, message_bytes: float, *group: int) -> tuple[float, str]:
    """Seconds and name of the fastest algorithm for one group."""
    costs = coefficients(verb, hw, counts(group))
    time_s, best = seconds(costs, message_bytes)
    return float(time_s[0, 0]), costs.algorithms[best[0, 0]]


def approx(*values: float) -> Any:
    return pytest.approx(values, rel=1e-12, abs=0)


NODE = table(("switch", 8, 400 * GB, 1 * US))
NODES = table(("switch", 8, 400 * GB, 1 * US), ("switch", 4, 50 * GB, 5 * US))
DENSE_NODES = table(("switch", 8, 450 * GB, 1 * US), ("switch", 2, 50 * GB, 5 * US))


def test_ring_on_one_switch() -> None:
    """(n-1) steps and (n-1)/n of the message; twice both for an all-reduce."""
    # 7 x 1 us; 7/8 / 400e9.
    assert cost("all_gather", "ring", NODE, 8) == approx(7e-6, 0.875 / 400e9)
    assert cost("all_reduce", "ring", NODE, 8) == approx(14e-6, 1.75 / 400e9)


def test_flat_ring_over_nodes_runs_on_the_rails_of_its_own_members() -> None:
    """min(W_in, g x W_card): 8 cards of 50 give the rate of the node, one card gives 50."""
    # 32 ranks: 4 x 7 hops of 1 us and 3 of 5 us; 31/32 over min(400, 8 x 50) = 400 GB/s.
    assert cost("all_gather", "ring", NODES, 8, 4) == approx(43e-6, 31 / 32 / 400e9)
    # 4 ranks of stride 8: 3 hops of 5 us; 3/4 over one card.
    assert cost("all_gather", "ring", NODES, 1, 4) == approx(15e-6, 0.75 / 50e9)
    # 2 members a node: 4 x 1 hops inside, 3 between; 7/8 over two cards.
    assert cost("all_gather", "ring", NODES, 2, 4) == approx(19e-6, 0.875 / 100e9)


def test_tree() -> None:
    """A chain of n - 1 steps in a node, 2 log2 steps further out, 2 M over the ring's rate."""
    # 2 x (7 x 1 us + 2 x 5 us); 2 / 400e9.
    assert cost("all_reduce", "tree", NODES, 8, 4) == approx(34e-6, 2 / 400e9)


def test_direct_on_the_innermost_mesh() -> None:
    """One step for a gather, two for a two-shot all-reduce; one-shot sends n - 1 messages."""
    mesh = table(("full_mesh", 8, 400 * GB, 1 * US))
    assert cost("all_gather", "direct", mesh, 8) == approx(1e-6, 0.875 / 400e9)
    assert cost("all_reduce", "direct", mesh, 8) == approx(2e-6, 1.75 / 400e9)
    assert cost("all_reduce", "one_shot", mesh, 8) == approx(1e-6, 7 / 400e9)
    # Not on a switch, where measured collectives take the steps of a ring.
    assert cost("all_gather", "direct", NODE, 8)[0] == np.inf


def test_hierarchical_two_levels() -> None:
    """2(g-1)/g M/W_in inside and 2(N-1)/N (M/g)/W_card between, the larger of them."""
    # Inside 1.75/400e9 = 4.375e-12; between 2 x 3/4 / 8 / 50e9 = 3.75e-12.
    # Latency: 2 x (7 steps of 1 us + 3 steps of 5 us).
    assert cost("all_reduce", "hierarchical", NODES, 8, 4) == approx(44e-6, 4.375e-12)
    # Two members a node: inside 1/400e9, between 2 x 3/4 / 2 / 50e9 = 1.5e-11.
    assert cost("all_reduce", "hierarchical", NODES, 2, 4) == approx(32e-6, 1.5e-11)


def test_two_nodes_beat_the_ring_over_the_nodes_cards() -> None:
    """Two nodes of 8 with 50 GB/s a node: bus bandwidth 94 GB/s, where a flat ring gives 50."""
    hw = table(("switch", 8, 300 * GB, 1 * US), ("switch", 2, 50 / 8 * GB, 5 * US))
    message_bytes = 8e9
    time_s, name = fastest("all_reduce", hw, message_bytes, 8, 2)
    # Between: 2 x 1/2 x (M/8) / 6.25e9 = M/50e9; 0.16 s and 2 x (7 + 5) us.
    assert name == "hierarchical"
    assert time_s == pytest.approx(0.16 + 24e-6, rel=1e-12)
    busbw = algbw(message_bytes, time_s) * busbw_factor("all_reduce", 16)
    assert busbw == pytest.approx(93.75 * GB, rel=2e-4)
    ring_s = cost("all_reduce", "ring", hw, 8, 2)[1]
    assert busbw_factor("all_reduce", 16) / ring_s == pytest.approx(50 * GB, rel=1e-12)


def test_two_nodes_of_dense_cards_are_bound_inside() -> None:
    """With a card of 50 GB/s to each GPU of 450, inner phases rule: 9.6 times one card's ring."""
    # Inside 1.75/450e9 = 3.889e-12; between 2 x 1/2 / 8 / 50e9 = 2.5e-12.
    time_s, name = fastest("all_reduce", DENSE_NODES, 1e9, 8, 2)
    assert name == "hierarchical"
    assert time_s == pytest.approx(1.75 / 450 + 24e-6, rel=1e-12)
    one_card_s_per_byte = 2 * 15 / 16 / 50e9
    assert one_card_s_per_byte / (1.75 / 450e9) == pytest.approx(9.642857, rel=1e-6)


def test_three_levels_and_a_spine_behind_the_same_card() -> None:
    """What crosses an oversubscribed spine is divided, and passes the card with the rest."""
    levels = (
        ("switch", 8, 400 * GB, 1 * US),
        ("switch", 4, 50 * GB, 5 * US),
        ("switch", 2, 50 * GB, 8 * US),
    )
    # Gather of M: inside 7/8 / 400e9 = 2.1875e-12; card (3/4 + 1/8) / 8 / 50e9 = 2.1875e-12;
    # spine 1/2 / 32 / (50e9 / 8) = 2.5e-12. Latency 7 x 1 + 3 x 5 + 8 us.
    hw = table(*levels, oversubscription=(1.0, 1.0, 8.0))
    assert cost("all_gather", "hierarchical", hw, 8, 4, 2) == approx(30e-6, 2.5e-12)
    # Without oversubscription, and one member a node: card (3/4 + 1/8)/50e9, not 3/4 alone.
    assert cost("all_gather", "hierarchical", table(*levels), 1, 4, 2)[1] == pytest.approx(
        0.875 / 50e9
    )


def test_in_network_reduction_in_a_node() -> None:
    """alpha + (n+1)/n M/W: bus bandwidth 2 x 7/9 of the link's 450 GB/s for 8 GPUs."""
    hw = table(("switch", 8, 450 * GB, 1 * US), reduces=(True,))
    assert cost("all_reduce", "in_network", hw, 8) == approx(1e-6, 9 / 8 / 450e9)
    assert busbw_factor("all_reduce", 8) / (9 / 8 / 450e9) == pytest.approx(700 * GB)


def test_in_network_reduction_is_not_used_for_pairs() -> None:
    """(n+1)/n exceeds 2(n-1)/n below four members, where a ring is taken."""
    hw = table(("switch", 8, 450 * GB, 1 * US), reduces=(True,))
    assert cost("all_reduce", "in_network", hw, 2)[0] == np.inf
    assert cost("all_reduce", "in_network", hw, 3)[0] == np.inf
    assert cost("all_reduce", "in_network", hw, 4) == approx(1e-6, 5 / 4 / 450e9)


def test_in_network_reduction_as_the_inner_phase() -> None:
    """NVLS inside and a ring between nodes: the larger of (g+1)/g M/W_in and the ring on M/g."""
    hw = table(
        ("switch", 8, 450 * GB, 1 * US), ("switch", 2, 50 * GB, 5 * US), reduces=(True, False)
    )
    # Inside 9/8/450e9 = 2.5e-12; between 2 x 1/2 / 8 / 50e9 = 2.5e-12. Latency 1 + 2 x 5 us.
    assert cost("all_reduce", "in_network", hw, 8, 2) == approx(11e-6, 2.5e-12)


def test_in_network_reduction_between_nodes() -> None:
    """Scatter and gather inside, one pass of M/g through the cards."""
    hw = table(
        ("switch", 8, 400 * GB, 1 * US), ("switch", 4, 20 * GB, 5 * US), reduces=(False, True)
    )
    # Inside 1.75/400e9 = 4.375e-12; between 1/8/20e9 = 6.25e-12. Latency 2 x 7 + 5 us.
    assert cost("all_reduce", "in_network", hw, 8, 4) == approx(19e-6, 6.25e-12)


PROTOCOLS = table(
    ("switch", 8, 400 * GB, 1 * US),
    ("switch", 4, 50 * GB, 5 * US),
    start_s=(30 * US, 40 * US),
    fast_start_s=(8 * US, 20 * US),
    fast_rate=(0.5, 0.25),
    own_share=(0.4, 0.0),
    reduction_start_s=(70 * US, 0.0),
    reduction_rate=(0.9, 1.0),
    reduces=(True, False),
)


def test_a_call_starts_once_and_copies_its_own_part() -> None:
    """start + steps, and own/n of the message beside what the links carry."""
    # Gather of 8: 30 + 7 x 1 us; (7 + 0.4)/8 / 400e9. All-reduce: 30 + 14 us; (14 + 0.4)/8.
    assert cost("all_gather", "ring", PROTOCOLS, 8, 1) == approx(37e-6, 0.925 / 400e9)
    assert cost("all_reduce", "ring", PROTOCOLS, 8, 1) == approx(44e-6, 1.8 / 400e9)
    # All-to-all of 4: 30 + 3 x 1 us; (3 + 0.4)/4.
    assert cost("all_to_all", "flat", PROTOCOLS, 4, 1) == approx(33e-6, 0.85 / 400e9)


def test_the_protocol_of_low_latency_starts_early_and_is_slow() -> None:
    """Its own start and half the rate; it carries small messages, the other large ones."""
    assert cost("all_gather", "ring" + FAST, PROTOCOLS, 8, 1) == approx(15e-6, 0.925 / 200e9)
    assert fastest("all_gather", PROTOCOLS, 1e3, 8, 1)[1] == "ring" + FAST
    assert fastest("all_gather", PROTOCOLS, 1e8, 8, 1)[1] == "ring"
    # They cross where 22 us are worth M x 0.925 / 400e9: 9.51 MB.
    assert fastest("all_gather", PROTOCOLS, 9.50e6, 8, 1)[1] == "ring" + FAST
    assert fastest("all_gather", PROTOCOLS, 9.53e6, 8, 1)[1] == "ring"


def test_over_nodes_the_slowest_start_counts_once() -> None:
    """max of the starts of the levels used; the own part is copied in the innermost phase."""
    # 40 us + 7 x 1 + 3 x 5; inside (7 + 0.4)/8 / 400e9 = 2.3125e-12, between 3/4/8/50e9.
    assert cost("all_gather", "hierarchical", PROTOCOLS, 8, 4) == approx(62e-6, 2.3125e-12)
    # One rank a node does not use the inside: 40 + 3 x 5 us and 3/4 / 50e9, no copy.
    assert cost("all_gather", "ring", PROTOCOLS, 1, 4) == approx(55e-6, 0.75 / 50e9)


def test_reductions_by_switches_have_a_start_and_a_rate_of_their_own() -> None:
    """70 us + one step, 9/8 of the message at 0.9 of the rate, by one protocol only."""
    costs = every_cost("all_reduce", PROTOCOLS, counts((8, 1)))
    assert "in_network" + FAST not in costs
    expected = approx(71e-6, 9 / 8 / (0.9 * 400e9))
    assert cost("all_reduce", "in_network", PROTOCOLS, 8, 1) == expected


def test_a_message_between_neighbours_starts_by_full_rate_inside_only() -> None:
    """30 + 1 us inside a node, 20 + 5 us between nodes, both at full rate."""
    costs = p2p(PROTOCOLS, np.array([[0, 1, -1]]))
    assert costs.alpha_s[0, 0].tolist() == pytest.approx([31e-6, 25e-6, 0.0], rel=1e-12)
    assert costs.s_per_byte[0, 0].tolist() == pytest.approx([1 / 400e9, 1 / 50e9, 0.0])


@pytest.mark.parametrize("verb", sorted(ALGORITHMS))
def test_nothing_sent_costs_nothing(verb: str) -> None:
    """A message of no bytes, and a group of one rank, take exactly no time."""
    costs = coefficients(verb, PROTOCOLS, counts((8, 4), (1, 1)))
    assert seconds(costs, 0.0)[0].tolist() == [[0.0, 0.0]]
    assert fastest_s(costs, 0.0).tolist() == [[0.0, 0.0]]
    assert seconds(costs, 1e6)[0][0, 1] == 0.0


def test_no_groups_cost_nothing_to_price() -> None:
    """An empty batch has empty costs, not an error."""
    costs = coefficients("all_reduce", PROTOCOLS, np.ones((1, 0, 2), dtype=np.int64))
    assert seconds(costs, np.zeros(0))[0].shape == (1, 0)


CUBE = table(*(("ring", 4, 50 * GB, 1 * US),) * 3)


def test_torus_uses_all_axes_at_once() -> None:
    """2(n-1)/n M/(2kW) and 2 sum(D-1) alpha on k wrapped axes."""
    # k = 3, n = 64: 2 x 63/64 / (6 x 50e9); 2 x 9 us.
    assert cost("all_reduce", "torus", CUBE, 4, 4, 4) == approx(18e-6, 2 * 63 / 64 / 300e9)
    # One axis of it, n = 4: 2 x 3/4 / (2 x 50e9).
    assert cost("all_reduce", "torus", CUBE, 1, 4, 1) == approx(6e-6, 1.5 / 100e9)


def test_part_of_an_axis_does_not_wrap() -> None:
    """Half of a ring, or a line, has one link where the whole ring has two: half the rate."""
    # 2 of 4: 1/2 / 50e9. A line of 4: 3/4 / 50e9.
    assert cost("all_gather", "torus", CUBE, 2, 1, 1) == approx(1e-6, 0.5 / 50e9)
    line = table(("line", 4, 50 * GB, 1 * US))
    assert cost("all_gather", "torus", line, 4) == approx(3e-6, 0.75 / 50e9)


def test_unequal_axes_are_bound_by_the_set_that_cannot_shed_its_load() -> None:
    """A short axis cannot take more than the half of a message, however fast it is."""
    hw = table(("ring", 2, 500 * GB, 1 * US), ("ring", 4, 50 * GB, 1 * US))
    # Whole set: 7/8 / (1000e9 + 100e9) = 0.80e-12. The slow axis alone, always coming second:
    # 3/8 / 100e9 = 3.75e-12. The fast one: 1/8 / 1000e9.
    assert cost("all_gather", "torus", hw, 2, 4)[1] == pytest.approx(3.75e-12, rel=1e-12)


def test_torus_pods_joined_by_a_switch() -> None:
    """The axes of a pod are one phase, the network between pods the other."""
    hw = table(*(("ring", 4, 50 * GB, 1 * US),) * 2, ("switch", 2, 5 * GB, 10 * US))
    # Pod 15/16 / (4 x 50e9) = 4.6875e-12; between 1/2 / 16 / 5e9 = 6.25e-12; 6 + 10 us.
    assert cost("all_gather", "hierarchical", hw, 4, 4, 2) == approx(16e-6, 6.25e-12)


def test_all_to_all_on_one_switch() -> None:
    """(n-1) alpha + (n-1)/n M/W."""
    assert cost("all_to_all", "flat", NODE, 8) == approx(7e-6, 0.875 / 400e9)


def test_all_to_all_over_nodes() -> None:
    """Flat, M (n-g)/n leaves by the card; node by node the same bytes in far fewer messages."""
    # Flat: 7 x 1 us + 24 x 5 us; card 24/32 / 50e9. By node: 7 x 1 + 3 x 5 us; 3/4 / 50e9.
    assert cost("all_to_all", "flat", NODES, 8, 4) == approx(127e-6, 0.75 / 50e9)
    assert cost("all_to_all", "by_node", NODES, 8, 4) == approx(22e-6, 0.75 / 50e9)


def test_all_to_all_by_node_is_the_larger_of_inside_and_between() -> None:
    """With cards as fast as the node, spreading inside rules: (g-1)/g against (N-1)/N."""
    hw = table(("switch", 8, 50 * GB, 1 * US), ("switch", 2, 50 * GB, 5 * US))
    assert cost("all_to_all", "by_node", hw, 8, 2)[1] == pytest.approx(7 / 8 / 50e9, rel=1e-12)
    assert cost("all_to_all", "flat", hw, 8, 2)[1] == pytest.approx(1 / 2 / 50e9, rel=1e-12)


def test_all_to_all_on_a_torus() -> None:
    """M D/(8W) on wrapped axes, M D/(4W) on a mesh, D the worst axis."""
    hw = table(("ring", 4, 50 * GB, 1 * US), ("ring", 8, 50 * GB, 1 * US))
    assert cost("all_to_all", "torus", hw, 4, 8) == approx(10e-6, 8 / 8 / 50e9)
    # Half of the long axis does not wrap: 4/4 on it, 4/8 on the other.
    assert cost("all_to_all", "torus", hw, 4, 4) == approx(6e-6, 4 / 4 / 50e9)


def test_a_full_mesh_lends_only_the_links_among_members() -> None:
    """Of 8 peers with 7 links each, a pair has 1/7 of a chip's rate and a quad 3/7."""
    hw = table(("full_mesh", 8, 448 * GB, 1 * US))
    assert cost("all_gather", "direct", hw, 2) == approx(1e-6, 1 / 2 / 64e9)
    assert cost("all_gather", "direct", hw, 4) == approx(1e-6, 3 / 4 / 192e9)
    assert cost("all_gather", "direct", hw, 8) == approx(1e-6, 7 / 8 / 448e9)


def test_a_hybrid_cube_mesh_lends_a_third_two_thirds_or_all() -> None:
    """DGX-1 (V100): 2 of 6 links in a pair, 4 in a quad, all over 8; no direct exchange."""
    hw = table(("cube_mesh", 8, 150 * GB, 1 * US))
    rates = [50e9, 100e9, 150e9]
    for n, rate in zip((2, 4, 8), rates, strict=True):
        assert cost("all_gather", "ring", hw, n)[1] == pytest.approx((n - 1) / n / rate, rel=1e-12)
        assert cost("all_gather", "direct", hw, n)[0] == np.inf


def test_efficiency_and_oversubscription_divide_the_rate() -> None:
    """0.8 of 50 GB/s behind a 2:1 level is 20 GB/s."""
    hw = table(
        ("switch", 8, 400 * GB, 1 * US),
        ("switch", 4, 50 * GB, 5 * US),
        efficiency=(1.0, 0.8),
        oversubscription=(1.0, 2.0),
    )
    assert cost("all_gather", "ring", hw, 1, 4)[1] == pytest.approx(0.75 / 20e9, rel=1e-12)


def test_p2p_takes_the_link_of_its_hop() -> None:
    """alpha + M/W of the level crossed: a card, one link of a ring, one of a full mesh."""
    size, stride = np.array([2, 4, 1]), np.array([4, 8, 1])
    costs = p2p(NODES, hop_level(NODES, size, stride))
    time_s, _ = seconds(costs, np.array([1e9, 1e9, 1e9]))
    # Inside the node 1 us + 1/400; between nodes 5 us + 1/50; a single stage sends nothing.
    assert time_s[0].tolist() == pytest.approx([1e-6 + 2.5e-3, 5e-6 + 0.02, 0.0], rel=1e-12)
    hw = table(("full_mesh", 8, 448 * GB, 1 * US), ("ring", 2, 50 * GB, 1 * US))
    costs = p2p(hw, np.array([[0, 1]]))
    assert costs.s_per_byte[0, 0].tolist() == pytest.approx([1 / 64e9, 1 / 50e9], rel=1e-12)


def test_a_tensor_group_over_three_nodes_is_hierarchical() -> None:
    """tp24 on nodes of 8 takes the hierarchical collective, not a ring over its cards."""
    hw = table(("switch", 8, 450 * GB, 1 * US), ("switch", 3, 50 * GB, 5 * US))
    group = members(hw, [(np.array([24]), np.array([1]))])
    for verb, message_bytes in (("all_reduce", 64e6), ("all_gather", 64e6)):
        costs = coefficients(verb, hw, group)
        _, best = seconds(costs, message_bytes)
        assert costs.algorithms[best[0, 0]] == "hierarchical"


def test_data_groups_use_the_link_that_their_placement_gives() -> None:
    """tp8 dp4 sends gradients by one card a GPU; tp1 dp8 stays inside the node."""
    groups = members(NODES, [(np.array([4, 8]), np.array([8, 1]))])
    time_s, _ = seconds(coefficients("all_gather", NODES, groups), 40e9)
    # 3/4 x 40 GB over 50 GB/s and 7/8 x 40 GB over 400 GB/s.
    assert time_s[0].tolist() == pytest.approx([0.6, 0.0875], rel=1e-3)


def test_small_messages_change_the_algorithm() -> None:
    """Over 64 nodes a ring carries large messages, a tree of logarithmic latency small ones."""
    hw = table(("switch", 1, 400 * GB, 1 * US), ("switch", 64, 50 * GB, 5 * US))
    assert fastest("all_reduce", hw, 1e10, 1, 64)[1] == "ring"
    time_s, name = fastest("all_reduce", hw, 1e3, 1, 64)
    assert name == "tree"
    assert time_s == pytest.approx(60e-6 + 2e3 / 50e9)


def test_bus_bandwidth_conventions() -> None:
    """The factors of nccl-tests, for 8 ranks."""
    assert busbw_factor("all_reduce", 8) == 1.75
    for verb in (*GATHERS, "all_to_all"):
        assert busbw_factor(verb, 8) == 0.875
    for verb in ("broadcast", "reduce", "p2p"):
        assert busbw_factor(verb, 8) == 1.0
    assert algbw(1e9, 0.5) == 2e9


def test_unknown_verbs_are_refused_by_name() -> None:
    """Nothing is guessed for a verb without a model."""
    with pytest.raises(UnsupportedError, match="'gossip'"):
        coefficients("gossip", NODE, counts((8,)))
    with pytest.raises(UnsupportedError, match="'gossip'"):
        roofline_s_per_byte("gossip", NODE, counts((8,)))
    with pytest.raises(UnsupportedError, match="'gossip'"):
        busbw_factor("gossip", 8)
    with pytest.raises(ConfigError, match="at least one rank"):
        busbw_factor("all_reduce", 0)


# Identities over random machines.

quick = settings(max_examples=50, deadline=None)

VERBS = st.sampled_from(sorted(ALGORITHMS))
MESSAGES = st.floats(0, 1e11)


@st.composite
def placed(draw: st.DrawFn) -> tuple[HardwareTable, IntArray]:
    """Two rows of one to four levels of any kind, and four groups whose members fit them."""
    nl = draw(st.integers(1, 4))
    kinds = draw(
        st.lists(
            st.sampled_from(["switch", "switch", "full_mesh", "cube_mesh", "ring", "line"]),
            min_size=nl,
            max_size=nl,
        )
    )
    reduces = draw(st.lists(st.booleans(), min_size=nl, max_size=nl))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = np.tile(rng.integers(1, 9, nl), (2, 1))
    hw = HardwareTable(
        names=("a", "b"),
        num_chips=int(np.prod(size[0])),
        chip={},
        level_kinds=tuple(kinds),
        level_size=size,
        level={
            "bytes_per_s": 10 ** rng.uniform(9, 12, (2, nl)),
            "efficiency": rng.uniform(0.5, 1, (2, nl)),
            "latency_s": rng.uniform(0, 1e-5, (2, nl)),
            "oversubscription": rng.uniform(1, 4, (2, nl)),
            "start_s": rng.uniform(0, 1e-4, (2, nl)),
            "fast_start_s": rng.uniform(0, 1e-5, (2, nl)),
            "fast_rate": rng.uniform(0.2, 1, (2, nl)),
            "own_share": rng.uniform(0, 1, (2, nl)),
            "reduction_start_s": rng.uniform(0, 1e-4, (2, nl)),
            "reduction_rate": rng.uniform(0.5, 1, (2, nl)),
        },
        level_reduces=tuple(reduces),
        chips_per_node=size[:, 0],
    )
    return hw, rng.integers(1, size[:, None, :] + 1, (2, 4, nl))


def each_algorithm(
    verb: str, hw: HardwareTable, group: IntArray
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    return [(name, *found) for name, found in every_cost(verb, hw, group).items()]


@quick
@given(placed(), VERBS)
def test_no_algorithm_beats_the_roofline(where: tuple[HardwareTable, IntArray], verb: str) -> None:
    """Every algorithm's seconds a byte are at least bytes over nominal link rates."""
    hw, group = where
    bound = roofline_s_per_byte(verb, hw, group)
    assert np.array_equal(bound > 0, np.prod(group, axis=-1) > 1)
    for _, alpha_s, s_per_byte in each_algorithm(verb, hw, group):
        applies = np.isfinite(alpha_s)
        assert np.all(s_per_byte[applies] >= bound[applies] * (1 - 1e-12))


@quick
@given(placed(), VERBS, MESSAGES)
def test_every_group_has_an_algorithm(
    where: tuple[HardwareTable, IntArray], verb: str, message_bytes: float
) -> None:
    """Some algorithm applies to every group; a group of one rank is free whatever the message."""
    hw, group = where
    time_s, _ = seconds(coefficients(verb, hw, group), message_bytes)
    assert np.all(np.isfinite(time_s))
    alone = coefficients(verb, hw, np.ones_like(group))
    assert np.all(seconds(alone, message_bytes)[0] == 0)


@quick
@given(placed(), VERBS, MESSAGES)
def test_the_fastest_algorithm_is_taken(
    where: tuple[HardwareTable, IntArray], verb: str, message_bytes: float
) -> None:
    """Leaving dominated algorithms out changes no time; all ways of asking agree."""
    hw, group = where
    costs = coefficients(verb, hw, group)
    time_s, best = seconds(costs, message_bytes)
    everything = [a + b * message_bytes for _, a, b in each_algorithm(verb, hw, group)]
    assert np.array_equal(time_s, np.min(everything, axis=0) * (message_bytes > 0))
    chosen = np.take_along_axis(costs.alpha_s + costs.s_per_byte * message_bytes, best[None], 0)
    assert np.array_equal(chosen[0] * (message_bytes > 0), time_s)
    picked = np.array([3, 0, 0, 2, 1])
    assert np.array_equal(fastest_s(costs, message_bytes), time_s)
    assert np.array_equal(fastest_s(costs, message_bytes, picked), time_s[:, picked])
    assert np.array_equal(seconds(costs.take(picked), message_bytes)[0], time_s[:, picked])


@quick
@given(placed(), VERBS, MESSAGES, st.floats(1, 10), st.integers(0, 3))
def test_more_bandwidth_is_never_slower(
    where: tuple[HardwareTable, IntArray],
    verb: str,
    message_bytes: float,
    factor: float,
    level: int,
) -> None:
    """Raising the rate of any one level slows no collective and raises no bound."""
    hw, group = where
    faster = hw.scaled("bytes_per_s", 1.0)
    faster.level["bytes_per_s"][:, level % len(hw.level_kinds)] *= factor
    before, _ = seconds(coefficients(verb, hw, group), message_bytes)
    after, _ = seconds(coefficients(verb, faster, group), message_bytes)
    assert np.all(after <= before * (1 + 1e-12))
    bound = roofline_s_per_byte(verb, hw, group)
    assert np.all(roofline_s_per_byte(verb, faster, group) <= bound * (1 + 1e-12))


@quick
@given(placed())
def test_an_all_reduce_is_a_scatter_and_a_gather(where: tuple[HardwareTable, IntArray]) -> None:
    """Ring, direct, torus and hierarchical all-reduce cost a reduce-scatter plus an all-gather.

    Exactly where calls start at once and own parts cost nothing; else it saves one start and one
    copy at most.
    """
    hw, group = where
    names = ("ring", "direct", "torus", "hierarchical")
    links = Links.of(hw, group)
    for name in names:
        whole = ALGORITHMS["all_reduce"][name](links)
        one = ALGORITHMS["all_gather"][name](links)
        for i in range(2):
            assert np.all(whole[i] <= 2 * one[i] * (1 + 1e-12))
            assert np.all(whole[i] >= one[i])
    bare = replace(links, start_s=0 * links.start_s, own=0 * links.own)
    for name in names:
        whole = ALGORITHMS["all_reduce"][name](bare)
        parts = [ALGORITHMS[verb][name](bare) for verb in GATHERS]
        for i in range(2):
            np.testing.assert_allclose(whole[i], parts[0][i] + parts[1][i], rtol=1e-12)


@quick
@given(placed(), VERBS, st.floats(1, 1e11), st.integers(1, 64))
def test_chunks_add_latency_only(
    where: tuple[HardwareTable, IntArray], verb: str, message_bytes: float, chunks: int
) -> None:
    """k messages of M/k take (k - 1) alpha longer than one of M, by any one algorithm."""
    hw, group = where
    for name, alpha_s, s_per_byte in each_algorithm(verb, hw, group):
        one = Coefficients((name,), alpha_s[None], s_per_byte[None])
        applies = np.isfinite(alpha_s)
        whole = seconds(one, message_bytes)[0][applies]
        parts = chunks * seconds(one, message_bytes / chunks)[0][applies]
        np.testing.assert_allclose(parts, whole + (chunks - 1) * alpha_s[applies], rtol=1e-12)


@quick
@given(st.permutations(range(3)), st.lists(st.integers(1, 4), min_size=3, max_size=3), VERBS)
def test_axes_of_a_torus_are_interchangeable(
    order: list[int], group: list[int], verb: str
) -> None:
    """Turning a torus round, with the group in it, changes neither time nor bound."""
    levels = [("ring", 4, 50 * GB, 1 * US), ("ring", 4, 30 * GB, 2 * US), ("line", 4, 50 * GB, US)]
    turned = table(*(levels[i] for i in order))
    here, there = counts(tuple(group)), counts(tuple(group[i] for i in order))
    expected, _ = seconds(coefficients(verb, table(*levels), here), 1e8)
    got, _ = seconds(coefficients(verb, turned, there), 1e8)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@quick
@given(st.integers(1, 7), st.integers(1, 3), VERBS, MESSAGES)
def test_larger_groups_take_no_less_time(n: int, nodes: int, verb: str, message: float) -> None:
    """One more member a node, or one more node, never shortens an algorithm."""
    links = Links.of(NODES, counts((n, 1), (n + 1, 1), (1, nodes), (1, nodes + 1)))
    for algorithm in ALGORITHMS[verb].values():
        alpha_s, s_per_byte = algorithm(links)
        for small, large in ((0, 1), (2, 3)):
            if np.isfinite(alpha_s[0, [small, large]]).all():
                assert alpha_s[0, large] >= alpha_s[0, small]
                assert s_per_byte[0, large] >= s_per_byte[0, small]
    ring_alpha_s, _ = ALGORITHMS["all_reduce"]["ring"](links)
    assert ring_alpha_s[0, 1] > ring_alpha_s[0, 0]
    assert ring_alpha_s[0, 3] > ring_alpha_s[0, 2]


def test_rows_may_differ_in_which_switches_reduce() -> None:
    """An A100 node in one table with an H100 node keeps its own all-reduce."""
    clusters = [load_cluster(name, 8) for name in ("dgx-a100", "dgx-h100")]
    together = HardwareTable.of(clusters)
    group = np.ones((2, 1, 2), dtype=np.int64) * [8, 1]
    time_s, _ = seconds(coefficients("all_reduce", together, group), 1e9)
    for row, cluster in enumerate(clusters):
        alone = coefficients("all_reduce", HardwareTable.of([cluster]), group[:1])
        assert seconds(alone, 1e9)[0][0, 0] == time_s[row, 0]
        assert ("in_network" in alone.algorithms) == (row == 1)


@quick
@given(placed(), VERBS)
def test_a_batch_is_its_rows(where: tuple[HardwareTable, IntArray], verb: str) -> None:
    """Every row and group priced alone gives the value that it has in the batch."""
    hw, group = where
    time_s, _ = seconds(coefficients(verb, hw, group), 1e8)
    for row in range(2):
        alone = HardwareTable(
            names=hw.names[row : row + 1],
            num_chips=hw.num_chips,
            chip={},
            level_kinds=hw.level_kinds,
            level_size=hw.level_size[row : row + 1],
            level={name: values[row : row + 1] for name, values in hw.level.items()},
            level_reduces=hw.level_reduces,
            chips_per_node=hw.chips_per_node[row : row + 1],
        )
        for g in range(4):
            one, _ = seconds(coefficients(verb, alone, group[row : row + 1, g : g + 1]), 1e8)
            assert one[0, 0] == pytest.approx(time_s[row, g], rel=1e-12)
