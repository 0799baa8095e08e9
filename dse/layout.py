"""Where a tensor lies on the mesh, and the collective that moves it from one layout to another.

Axes are named (batch, seq, hidden, heads, ...). A `Layout` says which mesh dimensions divide
which axis, and over which the tensor is a partial sum. A collective is never written down: it
follows from the producer's and the consumer's layout by one table, and the backward's from the
transposed pair.

    partial    -> replicated   all_reduce          sharded(a) -> sharded(b)  all_to_all
    partial    -> sharded      reduce_scatter      replicated -> sharded     free, a slice
    sharded    -> replicated   all_gather          equal                     free

The gradient of a tensor that a *splitting* consumer read whole (each rank used it for its own
heads) is a partial sum; a producer of partial sums needs the whole gradient. Megatron's f and g
operators, and their sequence-parallel pair, fall out of the same table. A weight's gradient
contracts every axis that the weight has not, so it is partial over the mesh dimensions that
divide those: over dp and cp, and for the weights of norms under sequence parallelism over tp as
well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hwmodels.errors import UnsupportedError

REPLICATED = "replicated"
PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class Layout:
    """Placement of a tensor, or of an operator's work.

    Args:
        shards: Axis to the mesh dimensions that divide it, fastest first.
        partial: Mesh dimensions over which the tensor is a sum still to be taken.
    """

    shards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()

    def state(self, dim: str) -> str:
        """`partial`, `replicated`, or the name of the axis that `dim` divides."""
        if dim in self.partial:
            return PARTIAL
        for axis, dims in self.shards.items():
            if dim in dims:
                return axis
        return REPLICATED

    def dims_of(self, axis: str) -> tuple[str, ...]:
        """Mesh dimensions that divide `axis`."""
        return self.shards.get(axis, ())


@dataclass(frozen=True, slots=True)
class Move:
    """One collective over one mesh dimension."""

    verb: str
    dim: str


def collective(source: str, target: str) -> str | None:
    """The collective between two states over one mesh dimension, None where nothing moves.

    Raises:
        UnsupportedError: No collective makes a partial sum out of a whole.
    """
    if source == target or (source == REPLICATED and target != PARTIAL):
        return None
    if target == PARTIAL:
        raise UnsupportedError(f"no collective turns a {source} tensor into a partial sum")
    if source == PARTIAL:
        return "all_reduce" if target == REPLICATED else "reduce_scatter"
    return "all_gather" if target == REPLICATED else "all_to_all"


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor on its way from the operator that makes it to the one that reads it.

    Args:
        name: For reports, such as `qkv in`.
        axes: The tensor's axes.
        source: Layout in which the producer leaves it.
        target: Layout in which the consumer reads it.
        consumer_splits: Mesh dimensions over which the consumer divides its work; over the others
            every rank repeats it.
        dims: Mesh dimensions that may move it, in the order of the forward pass.
        element_bytes: Bytes of one element, forward and backward.
        repeats: How often the same tensor shape is sent.
        rebuilt: Whether backward gathers the tensor once more because only its shard was saved.
        kept_bytes: Bytes an element that the consumer saves of it; whole where it is not rebuilt.
        link: Kind of traffic in reports: `tp`, `ep`.
        consumer: The matmul that reads the tensor; its dgrad hides a rebuild.
    """

    name: str
    axes: tuple[str, ...]
    source: Layout
    target: Layout
    consumer_splits: frozenset[str]
    dims: tuple[str, ...] = ("tp",)
    element_bytes: float = 2.0
    repeats: int = 1
    rebuilt: bool = False
    kept_bytes: float = 0.0
    link: str = "tp"
    consumer: str = ""

    def forward(self) -> list[Move]:
        """Collectives of the forward pass."""
        return _moves([(dim, self.source.state(dim), self.target.state(dim)) for dim in self.dims])

    def backward(self) -> list[Move]:
        """Collectives of the gradient on its way back: the same table on the transposed pair."""
        return _moves(
            [
                (dim, self._given(dim), _needed(self.source.state(dim)))
                for dim in reversed(self.dims)
            ]
        )

    def rebuild(self) -> list[Move]:
        """The gathers that backward repeats for the weight gradient, if only shards were saved."""
        return [m for m in self.forward() if m.verb == "all_gather"] if self.rebuilt else []

    def _given(self, dim: str) -> str:
        read = self.target.state(dim)
        return PARTIAL if read == REPLICATED and dim in self.consumer_splits else read


def _needed(left: str) -> str:
    return REPLICATED if left == PARTIAL else left


def _moves(states: Sequence[tuple[str, str, str]]) -> list[Move]:
    found = ((collective(source, target), dim) for dim, source, target in states)
    return [Move(verb, dim) for verb, dim in found if verb is not None]


def gradient_partial_over(layout: Layout, weight_axes: Sequence[str]) -> frozenset[str]:
    """Mesh dimensions over which the gradient of a weight is a partial sum.

    A dimension that divides an axis of the weight itself gives each rank other weights: nothing is
    summed over it, whatever else of the work it divides.

    Args:
        layout: Layout of the work of the operator that owns the weight.
        weight_axes: The weight's axes; the gradient contracts all others.
    """
    own = {dim for axis in weight_axes for dim in layout.dims_of(axis)}
    return frozenset(
        dim
        for axis, dims in layout.shards.items()
        if axis not in weight_axes
        for dim in dims
        if dim not in own
    )
