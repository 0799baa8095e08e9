"""Collectives follow from layouts, and shapes from degrees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.block import block_parameters
from dse.layout import Edge, Layout, Move, collective, gradient_partial_over
from dse.shapes import padded_vocab, shapes_of
from dse.stacks import load_stack
from dse.workload import TransformerConfig, load_model
from dse.workload.counts import parameters
from dse.workload.operators import Block, Pointwise
from dse.workload.transformer import Blocks, build
from hwmodels.errors import UnsupportedError

pytestmark = pytest.mark.fast

STREAM = ("batch", "seq", "hidden")
TP = frozenset({"tp"})
WHOLE = Layout({"seq": ("cp",)})
CUT = Layout({"seq": ("cp", "tp")})
SUM = Layout({"seq": ("cp",)}, TP)


def moe(**changes: object) -> TransformerConfig:
    return load_model("mixtral-8x7b").replace(**changes)


def blocks_of(
    config: TransformerConfig, *, sequence_parallel: bool, stack: str = "megatron-core"
) -> Blocks:
    return build(config, load_stack(stack), precision="bf16", sequence_parallel=sequence_parallel)


def degrees(**given_: int) -> dict[str, np.ndarray]:
    names = ("tp", "cp", "ep", "etp", "micro_batch_size")
    return {name: np.array([given_.get(name, 1)]) for name in names}


def held(config: TransformerConfig, block: Block, flag: bool, **given_: int):
    shapes = shapes_of(config, 4096, degrees(**given_), sequence_parallel=flag)
    return block_parameters(block, shapes)


@pytest.mark.parametrize(
    ("source", "target", "verb"),
    [
        ("partial", "replicated", "all_reduce"),
        ("partial", "seq", "reduce_scatter"),
        ("seq", "replicated", "all_gather"),
        ("routed", "expert", "all_to_all"),
        ("replicated", "seq", None),
        ("seq", "seq", None),
        ("replicated", "replicated", None),
        ("partial", "partial", None),
    ],
)
def test_the_table_of_moves(source: str, target: str, verb: str | None) -> None:
    """Each pair of states has the one collective that the table names."""
    assert collective(source, target) == verb


@pytest.mark.parametrize("source", ["replicated", "seq"])
def test_no_collective_makes_a_partial_sum(source: str) -> None:
    """A whole or divided tensor never turns into a partial sum."""
    with pytest.raises(UnsupportedError, match=source):
        collective(source, "partial")


def moves(edge: Edge) -> tuple[list[Move], list[Move], list[Move]]:
    return edge.forward(), edge.backward(), edge.rebuild()


def test_operators_f_and_g_without_sequence_parallelism() -> None:
    """Entering is free and sums gradients backward (f); leaving sums forward and is free (g)."""
    enter = Edge("in", STREAM, WHOLE, WHOLE, consumer_splits=TP, rebuilt=True)
    leave = Edge("out", STREAM, SUM, WHOLE, consumer_splits=frozenset())
    assert moves(enter) == ([], [Move("all_reduce", "tp")], [])
    assert moves(leave) == ([Move("all_reduce", "tp")], [], [])


def test_operators_with_sequence_parallelism() -> None:
    """Entering gathers and scatters gradients, and gathers again for wgrad; leaving mirrors it."""
    enter = Edge("in", STREAM, CUT, WHOLE, consumer_splits=TP, rebuilt=True)
    leave = Edge("out", STREAM, SUM, CUT, consumer_splits=TP)
    gather, scatter = Move("all_gather", "tp"), Move("reduce_scatter", "tp")
    assert moves(enter) == ([gather], [scatter], [gather])
    assert moves(leave) == ([scatter], [gather], [])


def test_dispatch_and_combine_mirror_one_another() -> None:
    """Tokens go by all-to-all over ep, then gather over etp; gradients take the way back."""
    layer = blocks_of(moe(), sequence_parallel=True).layer
    dispatch, combine = (e for e in layer.edges if e.link == "ep")
    there = [Move("all_to_all", "ep"), Move("all_gather", "etp")]
    back = [Move("reduce_scatter", "etp"), Move("all_to_all", "ep")]
    assert moves(dispatch) == (there, back, [])
    assert moves(combine) == (back, there, [])


# Calls of a dense layer and of the ends, forward, backward and rebuilding (sheet 6.1): AR
# all-reduce, AG all-gather, RS reduce-scatter.
@pytest.mark.parametrize(
    ("sequence_parallel", "part", "forward", "backward", "rebuild"),
    [
        (False, "layer", "AR AR", "AR AR", ""),
        (True, "layer", "AG RS AG RS", "RS AG RS AG", "AG AG"),
        (False, "head", "AR AR AR", "AR", ""),
        (True, "head", "AG AR AR AR", "RS", "AG"),
        (False, "embedding", "AR", "", ""),
        (True, "embedding", "AR", "AG", ""),  # learned positions: all-reduced, then sliced
    ],
)
def test_calls_of_a_gpt(
    sequence_parallel: bool, part: str, forward: str, backward: str, rebuild: str
) -> None:
    """Blocks of a GPT make the calls of the formula sheet."""
    short = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS"}
    config = load_model("korthikanti-175b")
    block = getattr(blocks_of(config, sequence_parallel=sequence_parallel), part)

    def words(direction: str) -> list[str]:
        return [
            short[move.verb]
            for edge in block.edges
            for _ in range(edge.repeats)
            for move in getattr(edge, direction)()
        ]

    assert words("forward") == forward.split()
    assert words("backward") == backward.split()
    assert words("rebuild") == rebuild.split()


def test_rotary_embedding_leaves_by_reduce_scatter() -> None:
    """Without learned positions the lookup scatters at once, and gathers the gradient."""
    (out,) = blocks_of(load_model("llama-3-8b"), sequence_parallel=True).embedding.edges
    assert moves(out) == ([Move("reduce_scatter", "tp")], [Move("all_gather", "tp")], [])


def test_weight_gradients_are_partial_over_what_divides_the_contraction() -> None:
    """A norm's weight is summed over cp, and over tp only where tp divides its tokens."""
    assert gradient_partial_over(WHOLE, ("hidden",)) == {"cp"}
    assert gradient_partial_over(CUT, ("hidden",)) == {"cp", "tp"}
    column_parallel = Layout({"batch": ("dp",), "seq": ("cp",), "ffn": ("tp",)})
    assert gradient_partial_over(column_parallel, ("hidden", "ffn")) == {"dp", "cp"}


def test_divided_weights_are_not_summed_over_what_divides_them() -> None:
    """Tp divides query and key/value heads alike: no projection is a partial sum over it."""
    layout = Layout({"batch": ("dp",), "heads": ("tp",), "kv_heads": ("tp",)})
    assert gradient_partial_over(layout, ("hidden", "heads", "head_dim")) == {"dp"}
    assert gradient_partial_over(layout, ("hidden", "kv_heads", "head_dim")) == {"dp"}
    assert gradient_partial_over(layout, ("head_dim",)) == {"dp", "tp"}  # norm of q and k


@pytest.mark.parametrize(("flag", "rows"), [(True, 6), (False, 0)])
def test_gradients_of_a_gpt_layer_that_tp_sums(flag: bool, rows: int) -> None:
    """Two norms of 2h and the biases of proj and fc2, 6h, are summed over tp under sp alone."""
    config = load_model("korthikanti-175b")
    block = blocks_of(config, sequence_parallel=flag).layer
    assert held(config, block, flag, tp=8).tp_partial[0] == rows * config.hidden


def test_router_and_norm_of_queries_are_summed_over_tp() -> None:
    """The router reads divided tokens, the query norm divided heads; experts are not tp's."""
    config = moe(qk_norm=True, head_dim=128)
    block = blocks_of(config, sequence_parallel=True).layer
    partial = 2 * config.hidden + config.hidden * config.experts + 2 * 128
    assert held(config, block, True, tp=8).tp_partial[0] == partial


def test_embedding_weights_are_not_summed_over_tp() -> None:
    """The table's rows are divided, and positions see the gathered gradient."""
    config = load_model("korthikanti-175b")
    block = blocks_of(config, sequence_parallel=True).embedding
    assert held(config, block, True, tp=8).tp_partial[0] == 0


@pytest.mark.parametrize("name", ["korthikanti-175b", "llama-3-8b", "mixtral-8x7b", "bloom-7b1"])
def test_blocks_hold_the_parameters_of_the_model(name: str) -> None:
    """On one device the blocks' weights are the counted parameters, padding rows apart."""
    config = load_model(name)
    blocks = blocks_of(config, sequence_parallel=False)
    count = parameters(config)

    def total(block: Block) -> float:
        found = held(config, block, False)
        return float(found.dense[0] + found.expert[0])

    assert total(blocks.layer) == count.block.total
    padding = int(padded_vocab(config.vocab, np.array([1]))[0]) - config.vocab
    copies = 2  # the embedding and the head, even where they are tied
    model = config.layers * total(blocks.layer) + total(blocks.embedding) + total(blocks.head)
    tied = config.vocab * config.hidden if config.tied_embeddings else 0
    assert model == count.total + tied + copies * padding * config.hidden


@given(
    tp=st.sampled_from([1, 2, 4, 8, 16, 32]),
    etp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4, 8]),
)
def test_devices_together_hold_the_layer(tp: int, etp: int, ep: int) -> None:
    """Shares add up to the layer, norms and copied key/value heads counted once a copy."""
    config = moe()  # 32 heads, 8 key/value heads
    found = held(config, blocks_of(config, sequence_parallel=True).layer, True,
                 tp=tp, etp=etp, ep=ep)  # fmt: skip
    count = parameters(config).block
    assert found.expert[0] * etp * ep == count.experts
    h, kv = config.hidden, 2 * config.hidden * config.head_dim
    once = count.norms + count.router
    copies = max(tp - config.kv_heads, 0) * kv
    assert found.dense[0] * tp == count.attention + copies + tp * once
    assert count.attention == 2 * h * h + config.kv_heads * kv


@given(tp=st.integers(1, 64), vocab=st.integers(1, 300_000))
def test_vocabulary_is_padded_to_a_multiple_of_128_tp(tp: int, vocab: int) -> None:
    """The padded size is the least multiple of 128 tp that holds the vocabulary."""
    rows = int(padded_vocab(vocab, np.array([tp]))[0])
    assert rows % (128 * tp) == 0
    assert vocab <= rows < vocab + 128 * tp


# A layer of tokens x h = 1024 x 4096 in 16 bit: what quantised linears keep (sheet 3.2).
def test_fp8_linears_save_their_inputs_in_one_byte() -> None:
    """Norm outputs and fc2's input take 1 byte less, proj's input 1 more; the head stays wide."""
    config = load_model("korthikanti-175b")  # f = 4h
    stack = load_stack("megatron-2022")

    def saved(block: str, precision: str) -> float:
        blocks = build(config, stack, precision=precision, sequence_parallel=False)
        shapes = shapes_of(config, 1024, degrees(), sequence_parallel=False)
        return sum(
            float(shapes.total((kept.term,), operator.layout)[0])
            for operator in getattr(blocks, block).operators
            for kept in operator.saves
            if not kept.core
        )

    stream = 1024 * config.hidden
    assert saved("layer", "bf16") == 34 * stream
    assert saved("layer", "fp8") == 29 * stream
    assert saved("head", "fp8") == saved("head", "bf16") == 4 * stream


def test_the_router_keeps_its_input_wide_in_fp8() -> None:
    """The norm before a router is read unquantised, the one before attention is not."""
    blocks = build(moe(), load_stack("megatron-core"), precision="fp8", sequence_parallel=False)
    outputs = {
        kept.name: kept.term.coefficient
        for operator in blocks.layer.operators
        if isinstance(operator, Pointwise)
        for kept in operator.saves
    }
    assert outputs["norm 1 output"] == 1.0
    assert outputs["norm 2 output"] == 2.0


def test_an_embedding_norm_keeps_its_input_only() -> None:
    """Its output is the input of the first layer's norm and is counted there."""
    block = blocks_of(load_model("bloom-7b1"), sequence_parallel=False).embedding
    names = [kept.name for operator in block.operators for kept in operator.saves]
    assert "embedding norm input" in names
    assert "embedding norm output" not in names
