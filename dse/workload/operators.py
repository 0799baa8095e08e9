"""Operators over named axes: what is computed, what it weighs, what backward needs of it.

Sizes are never stored here. An operator names its axes and the layout of its work; `dse/block.py`
divides the axes by the degrees of many plans at once and asks the kernel models for seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dse.layout import Edge, Layout


@dataclass(frozen=True, slots=True)
class Term:
    """`coefficient` times the product of the sizes of `axes`."""

    coefficient: float
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that autograd keeps from forward to backward.

    Args:
        name: For reports.
        term: Bytes: coefficient in bytes an element, axes of the tensor.
        core: Whether it lies inside core attention, which selective recomputation drops.
    """

    name: str
    term: Term
    core: bool = False


@dataclass(frozen=True, slots=True)
class Matmul:
    """A linear layer: rows x contract by contract x columns, once for each element of `batch`.

    `weight_only_gradient` and the like do not exist: dgrad and wgrad follow from the three sizes.
    """

    name: str
    rows: tuple[str, ...]
    contract: tuple[str, ...]
    columns: tuple[Term, ...]
    layout: Layout
    batch: tuple[str, ...] = ()
    bias: tuple[Term, ...] = ()
    saves: tuple[Saved, ...] = ()
    low_precision: bool = True
    kind: str = field(default="matmul", init=False)

    @property
    def weights(self) -> tuple[Term, ...]:
        """Parameters: the matrix and its bias."""
        matrix = tuple(
            Term(term.coefficient, (*self.batch, *self.contract, *term.axes))
            for term in self.columns
        )
        return (*matrix, *self.bias)


@dataclass(frozen=True, slots=True)
class Attention:
    """Core attention: softmax(QK^T)V over axes batch, seq, heads, kv_heads, head_dim."""

    name: str
    layout: Layout
    saves: tuple[Saved, ...] = ()
    weights: tuple[Term, ...] = ()
    kind: str = field(default="attention", init=False)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A pass bound by memory: norm, residual, activation, rotation, loss, embedding lookup.

    Args:
        name: For reports.
        forward: Bytes moved at 16 bit: coefficient in bytes an element.
        backward: The same for the backward pass.
        layout: Layout of the work.
        weights: Parameters it owns (scale and shift, biases added here, tables).
        saves: What backward needs of it.
        kind: `pointwise`, or `embedding` for the lookup.
        scaled: Whether the stack's fusion factor applies.
    """

    name: str
    forward: tuple[Term, ...]
    backward: tuple[Term, ...]
    layout: Layout
    weights: tuple[Term, ...] = ()
    saves: tuple[Saved, ...] = ()
    kind: str = "pointwise"
    scaled: bool = True


Operator = Matmul | Attention | Pointwise


@dataclass(frozen=True, slots=True)
class Block:
    """Operators in forward order and the edges between those whose layouts differ."""

    name: str
    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...] = ()
