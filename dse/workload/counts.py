"""Parameters and floating-point operations of a model, as exact integers.

One multiply-add is two operations. Norms, activations and softmax cost bytes, not operations, and
are left out, as in every printed MFU.

References:
    SC21: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
        Megatron-LM, SC 2021 (eq. 2 parameters, eq. 3 operations).
    K22: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022
        (appendix A, model and hardware operations).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from dse.workload.config import TransformerConfig, shown
from hwmodels.errors import ConfigError

Convention = Literal["full", "causal"]
Recompute = Literal["none", "selective", "full"]


class BlockParameters(BaseModel):
    """Parameters of one block, by part; `total` is their sum.

    Attributes:
        attention: Projections, their biases, query and key norms.
        feed_forward: The dense feed-forward part, or the shared experts.
        router: Scores of the experts.
        expert: One routed expert; the block holds `experts` of them.
        experts: All routed experts.
        norms: Both norms.
        total: The block.
        active: What one token visits: all but the routed experts it is not sent to.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attention: int
    feed_forward: int
    router: int
    expert: int
    experts: int
    norms: int
    total: int
    active: int


class ParameterCount(BaseModel):
    """Parameters of a model, by part.

    Attributes:
        block: One block.
        blocks: All blocks.
        token_embedding: The vocabulary table.
        position_embedding: The table of learned positions.
        final_norm: The norm after the stack, and the one after the embedding if there is one.
        head: The output matrix where it is not tied, and its bias.
        total: Everything.
        active: `total` less the routed experts that a token does not visit.
        embedding: Both embeddings and the output matrix.
        non_embedding: `total` less `embedding`; the N of scaling laws.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    block: BlockParameters
    blocks: int
    token_embedding: int
    position_embedding: int
    final_norm: int
    head: int
    total: int
    active: int
    embedding: int
    non_embedding: int


class ForwardFlop(BaseModel):
    """Operations of one forward pass over one sequence, FLOP.

    Attributes:
        layer_linear_flop: Matrix products of one block, router and visited experts among them.
        layer_attention_flop: Scores and their product with the values, one block.
        head_flop: The output matrix.
        total_flop: All blocks and the head.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer_linear_flop: int
    layer_attention_flop: int
    head_flop: int
    total_flop: int


def parameters(config: TransformerConfig) -> ParameterCount:
    """Count the parameters of a model exactly.

    A GPT block with every bias has `12 h^2 + 13 h` (SC21 eq. 2).

    Args:
        config: The model.

    Returns:
        The count by part.
    """
    c = config
    block = _block(c)
    norm = _norm(c)
    tokens = c.vocab * c.hidden
    positions = c.position_rows * c.hidden
    output = 0 if c.tied_embeddings else c.vocab * c.hidden
    head = output + (c.vocab if c.head_bias else 0)
    norms = norm * (2 if c.embedding_norm else 1)
    ends = tokens + positions + norms + head
    total = c.layers * block.total + ends
    embedding = tokens + positions + output
    return ParameterCount(
        block=block,
        blocks=c.layers * block.total,
        token_embedding=tokens,
        position_embedding=positions,
        final_norm=norms,
        head=head,
        total=total,
        active=c.layers * block.active + ends,
        embedding=embedding,
        non_embedding=total - embedding,
    )


def forward_flop(
    config: TransformerConfig, seq_length: int, *, convention: Convention = "full"
) -> ForwardFlop:
    """Operations of one forward pass over one sequence.

    Args:
        config: The model.
        seq_length: Tokens of the sequence.
        convention: `full` counts every pair of query and key, as SC21 and K22 do, whatever the
            mask or window. `causal` counts half of them; where a window `w < s` binds, the pairs
            it leaves, `s w - w (w - 1) / 2`.

    Returns:
        The operations by part.

    Raises:
        ConfigError: The sequence is not a positive number of tokens, or the convention unknown.
    """
    c = config
    _positive("seq_length", seq_length)
    _one_of("convention", convention, ("full", "causal"))
    linear = 2 * seq_length * _visited_matrices(c)
    pairs_twice = 2 * seq_length * seq_length
    if convention == "causal" and c.causal:
        pairs_twice = seq_length * seq_length
        w = c.sliding_window
        if w is not None and w < seq_length:
            # The window's pairs include the diagonal whole, which the half square halves; without
            # the minimum a window one short of the sequence would count more than none.
            pairs_twice = min(pairs_twice, 2 * seq_length * w - w * (w - 1))
    attention = 2 * pairs_twice * c.attention_width
    head = 2 * seq_length * c.hidden * c.vocab
    return ForwardFlop(
        layer_linear_flop=linear,
        layer_attention_flop=attention,
        head_flop=head,
        total_flop=c.layers * (linear + attention) + head,
    )


def model_flop(
    config: TransformerConfig,
    seq_length: int,
    *,
    sequences: int = 1,
    convention: Convention = "full",
) -> int:
    """Operations that training on some sequences needs: three forward passes (K22 appendix A).

    For a GPT in full square it equals `72 B L s h^2 (1 + s/(6h) + V/(12 h L))`.

    Args:
        config: The model.
        seq_length: Tokens of a sequence.
        sequences: How many.
        convention: As in `forward_flop`.

    Returns:
        Operations, FLOP, forward and backward.

    Raises:
        ConfigError: A count is not positive, or the convention unknown.
    """
    _positive("sequences", sequences)
    return 3 * sequences * forward_flop(config, seq_length, convention=convention).total_flop


def hardware_flop(
    config: TransformerConfig,
    seq_length: int,
    *,
    sequences: int = 1,
    recompute: Recompute = "none",
    flash: bool = False,
    convention: Convention = "full",
) -> int:
    """Operations that are executed: `model_flop` and what is computed again in the backward pass.

    `full` repeats the forward pass of every block but not the head (SC21 eq. 3); `selective`
    repeats scores and their product with the values, `4 s^2 a d` a block. A fused attention kernel
    forms the scores once more in its backward pass, half of attention's forward (FlashAttention-2,
    arXiv 2307.08691).

    Args:
        config: The model.
        seq_length: Tokens of a sequence.
        sequences: How many.
        recompute: What is computed again.
        flash: Whether attention is fused.
        convention: As in `forward_flop`, for the repeated part too.

    Returns:
        Operations, FLOP, forward, backward and recomputation.

    Raises:
        ConfigError: A count is not positive, or a name unknown.
    """
    _one_of("recompute", recompute, ("none", "selective", "full"))
    _positive("sequences", sequences)
    forward = forward_flop(config, seq_length, convention=convention)
    again = {
        "none": 0,
        "selective": forward.layer_attention_flop,
        "full": forward.layer_linear_flop + forward.layer_attention_flop,
    }[recompute]
    if flash:
        again += forward.layer_attention_flop // 2
    return sequences * (3 * forward.total_flop + config.layers * again)


def kv_bytes_per_token(config: TransformerConfig, bytes_per_element: int = 2) -> int:
    """Bytes of the keys and values of one token, all layers; query heads do not enter."""
    return 2 * config.layers * config.kv_width * bytes_per_element


def _block(c: TransformerConfig) -> BlockParameters:
    q, kv = c.attention_width, c.kv_width
    attention = _attention_matrices(c)
    attention += (q + 2 * kv if c.qkv_bias else 0) + (c.hidden if c.out_bias else 0)
    attention += 2 * c.head_dim if c.qk_norm else 0
    expert = _feed_forward(c, c.expert_ffn) if c.is_moe else 0
    feed_forward = _feed_forward(c, c.shared_expert_ffn if c.is_moe else c.ffn)
    router = c.hidden * c.experts + (c.experts if c.router_bias else 0)
    norms = 2 * _norm(c)
    rest = attention + feed_forward + router + norms
    return BlockParameters(
        attention=attention,
        feed_forward=feed_forward,
        router=router,
        expert=expert,
        experts=c.experts * expert,
        norms=norms,
        total=rest + c.experts * expert,
        active=rest + c.topk * expert,
    )


def _visited_matrices(c: TransformerConfig) -> int:
    """Entries of the matrices of one block that a token is multiplied by."""
    up_and_down = (3 if c.gated else 2) * c.hidden
    if not c.is_moe:
        return _attention_matrices(c) + up_and_down * c.ffn
    width = c.topk * c.expert_ffn + c.shared_expert_ffn
    return _attention_matrices(c) + up_and_down * width + c.hidden * c.experts


def _attention_matrices(c: TransformerConfig) -> int:
    return 2 * c.hidden * (c.attention_width + c.kv_width)


def _feed_forward(c: TransformerConfig, width: int) -> int:
    if not width:
        return 0
    halves = 2 if c.gated else 1
    bias = halves * width + c.hidden if c.ffn_bias else 0
    return (halves + 1) * c.hidden * width + bias


def _norm(c: TransformerConfig) -> int:
    return c.hidden * (2 if c.norm_bias else 1)


def _positive(field: str, value: object) -> None:
    if type(value) is not int or value <= 0:
        raise ConfigError(
            f"{field} is {shown(value)}",
            field=field,
            value=shown(value),
            allowed="a positive integer",
        )


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"{field} is {shown(value)}", field=field, value=shown(value), allowed=allowed
        )
