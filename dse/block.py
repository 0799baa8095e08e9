"""What one block costs on one device: kernels, messages, saved bytes, parameters; for K keys at
once.

Nothing here knows about pipelines or data parallelism. Shapes: `H` hardware rows, `K` keys.

Matmuls run three times: forward (m rows, n columns, k contract), dgrad (m, k, n) and wgrad (k, n,
m). Formulas: sections 2, 3, 6.1, 6.2, 6.4 and 8 of the sheet in `docs/model.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dse.layout import Edge, Layout, Move, gradient_partial_over
from dse.plan import IntArray
from dse.precision import LOW_PRECISIONS, WIDE_PRECISIONS
from dse.shapes import Shapes
from dse.stacks import Stack
from dse.workload.config import TransformerConfig
from dse.workload.operators import Attention, Block, Matmul, Operator, Pointwise
from hwmodels import collectives, kernels
from hwmodels.distinct import distinct
from hwmodels.placement import members
from hwmodels.table import FloatArray, HardwareTable

Direction = Literal["forward", "backward"]
Groups = Mapping[str, tuple[IntArray, IntArray]]
"""Mesh dimension to the (K,) sizes and strides of its groups."""

CAST_FORWARD_BYTES = 4.0
CAST_BACKWARD_BYTES = 6.0
"""Bytes an element that quantising the operands of an fp8 or fp4 linear moves, with the
transpose.
"""
RING_MERGE_BYTES = 10.0
"""Bytes an output element that one step of ring attention moves when it joins the running sum."""
SEPARATE_ACCUMULATION_BYTES = 6.0
"""Bytes a weight element where wgrad is written in 16 bit and added to fp32 gradients afterwards.
"""
FUSED_ACCUMULATION_BYTES = 8.0
"""Bytes a weight element that an accumulating wgrad matmul reads and writes: fp32, twice."""


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel (or a few like it) of one micro-batch.

    Args:
        name: The operator's name.
        kind: `matmul`, `attention`, `pointwise`, `embedding`.
        direction: `forward`, `dgrad`, `wgrad`, `backward`.
        seconds: (H, K).
        shape: Label to (K,) sizes.
        bound: Gives (H, K) `compute`, `memory` or `launch`.
    """

    name: str
    kind: str
    direction: str
    seconds: FloatArray
    shape: Mapping[str, FloatArray]
    bound: Callable[[], NDArray[np.str_]]


@dataclass(frozen=True, slots=True)
class Message:
    """One collective of one micro-batch.

    Args:
        name: The edge's name.
        link: `tp` or `ep`: where reports count it.
        dim: Mesh dimension of the group.
        verb: The collective.
        direction: `forward`, `backward` or `rebuild`.
        repeats: Calls of this size.
        nbytes: (K,) message of a call.
        seconds: (H, K) of a call.
        algorithms: Names of the algorithms.
        best: (H, K) position of the fastest.
        exposed_s: (H, K) seconds of a call that nothing hides.
    """

    name: str
    link: str
    dim: str
    verb: str
    direction: str
    repeats: int
    nbytes: FloatArray
    seconds: FloatArray
    algorithms: tuple[str, ...]
    best: IntArray
    exposed_s: FloatArray


@dataclass(frozen=True, slots=True)
class BlockCost:
    """One block, one micro-batch, one device; without recomputation."""

    works: tuple[Work, ...]
    messages: tuple[Message, ...]
    saved_bytes: FloatArray
    core_bytes: FloatArray

    def seconds(self, *directions: str, kind: str | None = None) -> FloatArray:
        """(H, K) kernel seconds of some directions, of one kind if given."""
        return sum_of(
            [
                work.seconds
                for work in self.works
                if work.direction in directions and (kind is None or work.kind == kind)
            ],
            self.works[0].seconds,
        )

    def exposed(self, link: str, *directions: str) -> FloatArray:
        """(H, K) exposed seconds of the messages of one link kind."""
        return sum_of(
            [
                message.exposed_s * message.repeats
                for message in self.messages
                if message.link == link and message.direction in directions
            ],
            self.works[0].seconds,
        )


def sum_of(parts: Sequence[FloatArray], like: FloatArray) -> FloatArray:
    """Their sum in order, or zeros shaped like `like` where there is none."""
    total: FloatArray = np.zeros_like(like)
    for part in parts:
        total = total + part
    return total


@dataclass(frozen=True, slots=True)
class Pricing:
    """What turns operators into seconds."""

    hardware: HardwareTable
    config: TransformerConfig
    stack: Stack
    precision: str

    @property
    def dtype(self) -> str:
        """Element type of everything else."""
        return "bf16" if self.precision in LOW_PRECISIONS else self.precision

    @property
    def element_bytes(self) -> float:
        """Bytes of an activation element outside fp8 linears."""
        return 4.0 if self.precision in WIDE_PRECISIONS else 2.0


def block_cost(block: Block, shapes: Shapes, groups: Groups, pricing: Pricing) -> BlockCost:
    """Price every operator and edge of a block."""
    works: list[Work] = []
    for operator in block.operators:
        works += _works(operator, shapes, pricing)
    dgrad_s = {work.name: work.seconds for work in works if work.direction == "dgrad"}
    saved = core = np.zeros_like(shapes.degrees["tp"])
    for operator in block.operators:
        for kept in operator.saves:
            amount = shapes.total((kept.term,), operator.layout)
            saved = saved + amount
            core = core + amount if kept.core else core
    for edge in block.edges:
        saved = saved + _kept_whole(edge, shapes)
    known: dict[tuple[str, str], collectives.Coefficients] = {}
    messages = [
        message
        for edge in block.edges
        for message in _messages(edge, shapes, groups, pricing, dgrad_s, known)
    ]
    return BlockCost(tuple(works), tuple(messages), saved, core)


@dataclass(frozen=True, slots=True)
class BlockParameters:
    """(K,) parameters of a block on one device.

    Args:
        dense: All but experts'; their gradients are summed over dp and cp.
        expert: Experts'; their gradients are summed over edp.
        tp_partial: Those of `dense` whose gradient is a partial sum over tp as well.
    """

    dense: FloatArray
    expert: FloatArray
    tp_partial: FloatArray


def block_parameters(block: Block, shapes: Shapes) -> BlockParameters:
    """Count what one device holds of a block's weights."""
    dense = expert = partial = np.zeros_like(shapes.degrees["tp"])
    for operator in block.operators:
        for term in operator.weights:
            count = shapes.total((term,), operator.layout)
            if "expert" in term.axes:
                expert = expert + count
                continue
            dense = dense + count
            if "tp" in gradient_partial_over(operator.layout, term.axes):
                partial = partial + count
    return BlockParameters(dense, expert, partial)


# Operators -------------------------------------------------------------------------------------


def _works(operator: Operator, shapes: Shapes, pricing: Pricing) -> list[Work]:
    if isinstance(operator, Matmul):
        return _matmul(operator, shapes, pricing)
    if isinstance(operator, Attention):
        return _attention(operator, shapes, pricing)
    return _pointwise(operator, shapes, pricing)


def _matmul(operator: Matmul, shapes: Shapes, pricing: Pricing) -> list[Work]:
    hw, stack = pricing.hardware, pricing.stack
    layout = operator.layout
    low = operator.low_precision and pricing.precision in LOW_PRECISIONS
    dtype = pricing.precision if low else pricing.dtype
    rows = shapes.local(operator.rows, layout)
    contract = shapes.local(operator.contract, layout)
    columns = shapes.total(operator.columns, layout)
    batch = shapes.local(operator.batch, layout)
    load = stack.expert_load if operator.batch else 1.0
    weights = batch * contract * columns
    fused = FUSED_ACCUMULATION_BYTES * weights if stack.accumulates_in_matmul else 0.0 * weights
    sizes = {
        "forward": (rows * load, columns, contract, 0.0 * weights),
        "dgrad": (rows * load, contract, columns, 0.0 * weights),
        "wgrad": (contract, columns, rows * load, fused),
    }
    works = []
    for direction, (m, n, k, extra) in sizes.items():
        priced = kernels.matmul.parts(hw, m, n, k, batch, dtype=dtype, extra_bytes=extra)
        works.append(
            Work(
                operator.name,
                "matmul",
                direction,
                priced.seconds * stack.compute_factor,
                {"m": m, "n": n, "k": k, "batch": batch},
                priced.bound,
            )
        )
    passes = {"forward": 0.0 * rows, "backward": 0.0 * rows}
    if low:
        passes["forward"] = CAST_FORWARD_BYTES * batch * rows * load * contract
        passes["backward"] = CAST_BACKWARD_BYTES * batch * rows * load * columns
    if not stack.accumulates_in_matmul:
        passes["backward"] = passes["backward"] + SEPARATE_ACCUMULATION_BYTES * weights
    works += [
        _pass(f"{operator.name} casts and sums", direction, nbytes, pricing)
        for direction, nbytes in passes.items()
        if np.any(nbytes > 0)
    ]
    return works


def _pass(
    name: str, direction: str, nbytes: FloatArray, pricing: Pricing, kind: str = "pointwise"
) -> Work:
    priced = kernels.pointwise.parts(pricing.hardware, nbytes, (nbytes > 0).astype(float))
    seconds = priced.seconds * pricing.stack.compute_factor
    return Work(name, kind, direction, seconds, {"bytes": nbytes}, priced.bound)


def _pointwise(operator: Pointwise, shapes: Shapes, pricing: Pricing) -> list[Work]:
    scale = pricing.stack.pointwise_factor if operator.scaled else 1.0
    works = []
    for direction, terms in (("forward", operator.forward), ("backward", operator.backward)):
        nbytes = scale * shapes.total(terms, operator.layout)
        if terms:
            works.append(_pass(operator.name, direction, nbytes, pricing, operator.kind))
    return works


def attended_pairs(config: TransformerConfig, seq_length: int) -> float:
    """Share of the full square of query-key pairs that the mask leaves (sheet 2.2).

    Causal: one half. A window of w < s keys: (s w - w (w - 1) / 2) / s^2.
    """
    window = config.sliding_window
    if not config.causal:
        return 1.0
    if window is not None and window < seq_length:
        return min(0.5, (seq_length * window - window * (window - 1) / 2) / seq_length**2)
    return 0.5


def _attention(operator: Attention, shapes: Shapes, pricing: Pricing) -> list[Work]:
    layout = operator.layout
    sizes = {
        "batch": shapes.local(("batch",), layout),
        "heads": shapes.local(("heads",), layout),
        "kv_heads": shapes.local(("kv_heads",), layout),
        "queries": shapes.local(("seq",), layout),
        "keys": shapes.sizes["keys"],
        "head_dim": shapes.sizes["head_dim"],
    }
    price = _fused if pricing.stack.attention == "flash" else _unfused
    works = price(operator.name, "forward", sizes, pricing)
    works += price(operator.name, "backward", sizes, pricing)
    ring_steps = shapes.degrees["cp"] - 1.0
    if np.any(ring_steps > 0):
        works += _ring_merges(operator, ring_steps, shapes, pricing)
    return works


def _ring_merges(
    operator: Attention, ring_steps: FloatArray, shapes: Shapes, pricing: Pricing
) -> list[Work]:
    """What a ring of c steps computes besides attention: c - 1 merges, each after one more
    kernel.

    A step's 16-bit output is rescaled into an fp32 sum (forward), its gradients of queries are
    added to one (backward): 2 + 4 + 4 bytes an element (Ring Attention, arXiv 2310.01889).
    """
    output = shapes.local(("batch", "seq", "heads", "head_dim"), operator.layout)
    nbytes = ring_steps * RING_MERGE_BYTES * output * pricing.element_bytes / 2.0
    priced = kernels.pointwise.parts(pricing.hardware, nbytes, 2.0 * ring_steps)
    seconds = priced.seconds * pricing.stack.compute_factor
    name = f"{operator.name} ring merges"
    return [
        Work(name, "attention", direction, seconds, {"bytes": nbytes}, priced.bound)
        for direction in ("forward", "backward")
    ]


def _fused(
    name: str, direction: Direction, sizes: Mapping[str, FloatArray], pricing: Pricing
) -> list[Work]:
    priced = kernels.attention.parts(
        pricing.hardware,
        sizes["batch"],
        sizes["heads"],
        sizes["kv_heads"],
        sizes["queries"],
        sizes["keys"],
        sizes["head_dim"],
        pairs_fraction=attended_pairs(pricing.config, int(sizes["keys"].flat[0])),
        dtype=pricing.dtype,
        direction=direction,
        implementation=pricing.stack.attention_implementation,
    )
    seconds = priced.seconds * pricing.stack.compute_factor
    return [Work(name, "attention", direction, seconds, sizes, priced.bound)]


def _unfused(
    name: str, direction: Direction, sizes: Mapping[str, FloatArray], pricing: Pricing
) -> list[Work]:
    """Batched products over the full square and passes over the scores; backward has two products
    more.
    """
    q, k, d = sizes["queries"], sizes["keys"], sizes["head_dim"]
    products = {"scores": (q, k, d), "context": (q, d, k)}
    if direction == "backward":
        products |= {"key gradient": (k, d, q), "value gradient": (k, d, q)}
    batch = sizes["batch"] * sizes["heads"]
    works = []
    for part, (m, n, contract) in products.items():
        priced = kernels.matmul.parts(pricing.hardware, m, n, contract, batch, dtype=pricing.dtype)
        seconds = priced.seconds * pricing.stack.compute_factor
        shape = {"m": m, "n": n, "k": contract, "batch": batch}
        works.append(Work(f"{name} {part}", "attention", direction, seconds, shape, priced.bound))
    per_score = kernels.attention.UNFUSED_PASS_BYTES[direction] * pricing.element_bytes / 2.0
    softmax = _pass(f"{name} softmax", direction, per_score * batch * q * k, pricing, "attention")
    return [*works, softmax]


# Edges -----------------------------------------------------------------------------------------


def _messages(
    edge: Edge,
    shapes: Shapes,
    groups: Groups,
    pricing: Pricing,
    dgrad_s: Mapping[str, FloatArray],
    known: dict[tuple[str, str], collectives.Coefficients],
) -> list[Message]:
    """Every collective of one edge: forward, backward, and the gathers that backward repeats.

    `known` holds the costs of a verb over a mesh dimension that earlier edges of the block met.
    """
    passes = {"forward": edge.forward(), "backward": edge.backward(), "rebuild": edge.rebuild()}
    stack = pricing.stack
    found: list[Message] = []
    for direction, moves in passes.items():
        for move in moves:
            nbytes = edge.element_bytes * _elements(edge, shapes, move)
            call = (move.verb, move.dim)
            if call not in known:
                known[call] = group_costs(move.verb, pricing.hardware, *groups[move.dim])
            costs = known[call]
            seconds, best = collectives.seconds(costs, nbytes)
            seconds = seconds * stack.network_factor
            if edge.link == "ep":
                seconds = exposed = seconds * stack.expert_load
            elif direction == "rebuild":
                # It runs beside the consumer's dgrad, which does not need the gathered input.
                exposed = np.maximum(seconds - dgrad_s[edge.consumer], 0.0)
            else:
                exposed = seconds * (1.0 - stack.overlap_tp)
            found.append(
                Message(
                    edge.name,
                    edge.link,
                    move.dim,
                    move.verb,
                    direction,
                    edge.repeats,
                    nbytes,
                    seconds,
                    costs.algorithms,
                    best,
                    exposed,
                )
            )
    return found


def _kept_whole(edge: Edge, shapes: Shapes) -> FloatArray:
    """(K,) bytes that a consumer saves of a gathered input beyond its shard, if never rebuilt."""
    extra = np.zeros_like(shapes.degrees["tp"])
    if edge.rebuilt:
        return extra
    for move in edge.forward():
        if move.verb == "all_gather":
            whole = _elements(edge, shapes, move)
            extra = extra + edge.kept_bytes * (whole - whole / shapes.degrees[move.dim])
    return extra


def group_costs(
    verb: str, hardware: HardwareTable, size: IntArray, stride: IntArray
) -> collectives.Coefficients:
    """Costs of a collective for (K,) groups of a size and stride; a few groups serve all keys."""
    first, places = distinct([size, stride])
    group = [(size[first], stride[first])]
    return collectives.coefficients(verb, hardware, members(hardware, group)).take(places)


def _elements(edge: Edge, shapes: Shapes, move: Move) -> FloatArray:
    """(K,) elements of a call's message.

    The finer of the edge's two layouts says how the other mesh dimensions divide the tensor; the
    dimension that moves counts undivided (the gathered size), except in an all-to-all (the send
    buffer).
    """

    def cuts(layout: Layout) -> int:
        return sum(len(layout.dims_of(axis)) for axis in edge.axes)

    finest = max(edge.source, edge.target, key=cuts)
    undivided = "" if move.verb == "all_to_all" else move.dim
    return shapes.local(edge.axes, finest, without=undivided)
