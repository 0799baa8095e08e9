"""Where groups fall on network levels, against counting the ranks one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.errors import ConfigError
from hwmodels.placement import hop_level, members, span_nodes
from hwmodels.table import HardwareTable, IntArray

pytestmark = pytest.mark.fast


def table(*sizes: tuple[int, ...], chips_per_node: int = 8) -> HardwareTable:
    """Rows of switch levels of the given sizes; rates do not matter here."""
    shape = (len(sizes), len(sizes[0]))
    ones = np.ones(shape)
    return HardwareTable(
        names=tuple(f"row{i}" for i in range(len(sizes))),
        num_chips=int(np.prod(sizes[0])),
        chip={},
        level_kinds=("switch",) * shape[1],
        level_size=np.array(sizes, dtype=np.int64),
        level={
            "bytes_per_s": ones,
            "efficiency": ones,
            "latency_s": ones,
            "oversubscription": ones,
        },
        level_reduces=(False,) * shape[1],
        chips_per_node=np.full(len(sizes), chips_per_node),
    )


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def test_tensor_groups_fill_a_node_and_data_groups_cross_it() -> None:
    """tp8 dp4 on nodes of 8: tp inside the node, dp on the link between nodes."""
    # Ranks of tp: 0..7, all in node 0. Ranks of dp: 0, 8, 16, 24, one a node.
    counts = members(table((8, 4)), [(ints(8, 4), ints(1, 8))])
    assert counts.tolist() == [[[8, 1], [1, 4]]]


def test_a_data_group_of_one_node_stays_in_it() -> None:
    """tp1 dp8 on nodes of 8: dp has all its members inside the node."""
    assert members(table((8, 4)), [(ints(8), ints(1))]).tolist() == [[[8, 1]]]


def test_an_unaligned_group_counts_its_aligned_part_only() -> None:
    """6 consecutive ranks in nodes of 8 count gcd(6, 8) = 2 a node, on 3 nodes."""
    assert members(table((8, 3)), [(ints(6), ints(1))]).tolist() == [[[2, 3]]]


def test_a_tensor_group_over_three_nodes_has_a_whole_node_each() -> None:
    """tp24 on nodes of 8 is 8 members in each of 3 nodes."""
    assert members(table((8, 3)), [(ints(24), ints(1))]).tolist() == [[[8, 3]]]


def test_rows_may_differ_in_the_size_of_a_node() -> None:
    """The same group of 16 lies in 2 nodes of 8, 4 of 4, and one domain of 64."""
    hw = table((8, 8), (4, 16), (64, 1))
    assert members(hw, [(ints(16), ints(1))])[:, 0].tolist() == [[8, 2], [4, 4], [16, 1]]


def test_a_group_over_two_dimensions_is_their_union() -> None:
    """dp 4 of stride 8 with cp 4 of stride 2: ranks 0, 2, 4, 6 of each of 4 nodes."""
    dims = [(ints(4), ints(8)), (ints(4), ints(2))]
    assert members(table((8, 4)), dims).tolist() == [[[4, 4]]]
    assert span_nodes(table((8, 4)), dims).tolist() == [[4]]


def test_hosts_are_counted_apart_from_scale_up_domains() -> None:
    """36 chips of a scale-up domain of 72 in hosts of 4 touch 9 hosts."""
    hw = table((72, 2), chips_per_node=4)
    assert members(hw, [(ints(36), ints(1))]).tolist() == [[[36, 1]]]
    assert span_nodes(hw, [(ints(36), ints(1))]).tolist() == [[9]]


def test_the_worst_hop_of_a_pipeline_decides_its_level() -> None:
    """Of 4 stages of stride 4 in nodes of 8 every second hop leaves the node: all count so."""
    hw = table((8, 4, 2))
    hops = hop_level(hw, ints(4, 2, 2, 8, 1), ints(4, 4, 32, 8, 8))
    # 0,4,8,12: level 1; 0,4: level 0; 0,32: level 2; 0,8,..,56: level 2; one stage: no hop.
    assert hops.tolist() == [[1, 0, 2, 2, -1]]


POWERS = st.sampled_from([1, 2, 4, 8])


@settings(deadline=None)
@given(POWERS, POWERS, POWERS, POWERS, POWERS, POWERS)
def test_aligned_meshes_agree_with_counting_ranks(
    tp: int, cp: int, dp: int, node: int, leaf: int, extra: int
) -> None:
    """For power-of-two meshes and units, members are the units that listed ranks touch."""
    chips = tp * cp * dp * extra
    node = min(node, chips)
    leaf = min(leaf, chips // node)
    sizes = (node, leaf, chips // (node * leaf))
    hw = table(sizes, chips_per_node=node)
    degrees = {"tp": (tp, 1), "cp": (cp, tp), "dp": (dp, tp * cp), "pp": (extra, tp * cp * dp)}
    groups = [
        ["tp"],
        ["cp"],
        ["dp"],
        ["pp"],
        ["cp", "dp"],
        ["tp", "cp"],
        ["dp", "pp"],
        ["tp", "dp"],
    ]
    for group in groups:
        dims = [(ints(degrees[d][0]), ints(degrees[d][1])) for d in group]
        ranks = np.array([0])
        for d in group:
            n, stride = degrees[d]
            ranks = (ranks[:, None] + stride * np.arange(n)).ravel()
        # Units of each level that the ranks touch, then per unit of the next level.
        touched = [len(ranks)]
        touched += [len(np.unique(ranks // c)) for c in np.cumprod(sizes)]
        expected = [a // b for a, b in pairwise(touched)]
        assert members(hw, dims)[0, 0].tolist() == expected
        assert span_nodes(hw, dims)[0, 0] == touched[1]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=6))
def test_members_multiply_to_the_group(pairs: list[tuple[int, int]]) -> None:
    """Whatever the alignment, no member is lost and none is counted twice."""
    size, stride = (np.array(column) for column in zip(*pairs, strict=True))
    hw = table((6, 4, 6), (8, 9, 2))
    assert np.array_equal(
        np.prod(members(hw, [(size, stride)]), axis=-1), np.broadcast_to(size, (2, len(size)))
    )


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ([], "at least one"),
        ([(ints(0), ints(1))], "at least 1"),
        ([(ints(2), ints(0))], "at least 1"),
        ([(ints(8), ints(1)), (ints(8), ints(8))], "64 ranks does not fit a job of 32"),
    ],
)
def test_impossible_groups_are_refused(
    dims: list[tuple[IntArray, IntArray]], message: str
) -> None:
    """A group without dimensions, ranks or room is a configuration error."""
    with pytest.raises(ConfigError, match=message):
        members(table((8, 4)), dims)
