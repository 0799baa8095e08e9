"""The shape of a decoder-only transformer, in the words that every model family shares.

A `TransformerConfig` says what is multiplied by what, and nothing about how it is spread over
chips or how fast that goes. It is the only thing the rest of the package reads of a model.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hwmodels.errors import ConfigError

# The bounds are far above any published model. They refuse nonsense early and keep the products
# that the cost columns form below the range where float64 stops being exact by accident.
Dimension = Annotated[int, Field(gt=0, le=2**24)]
Extent = Annotated[int, Field(ge=0, le=2**24)]
SequenceLength = Annotated[int, Field(gt=0, le=2**30)]
Probability = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class TransformerConfig(BaseModel):
    """A stack of equal blocks between an embedding and a language-model head.

    Every block is attention and a feed-forward part with two norms; one more norm follows the
    stack. All failures of validation are `ConfigError` with the field and the value.

    Attributes:
        name: What reports call the model.
        family: The kind of block, such as `llama` or `gpt2`.
        layers: Number of blocks.
        hidden: Width of the residual stream.
        ffn: Width of the feed-forward part, of one half where it is gated. Unused where
            `experts` is positive.
        heads: Query heads.
        kv_heads: Key and value heads; `heads` if left out. It divides `heads`.
        head_dim: Width of a head; `hidden // heads` if left out, which must then be exact.
        vocab: Rows of the embedding, before any padding for parallelism.
        max_seq: The longest sequence the model is meant for, tokens.
        gated: The feed-forward part multiplies two projections (SwiGLU).
        activation: The pointwise function of the feed-forward part.
        norm: The kind of all norms.
        norm_bias: Norms have a shift beside the scale.
        qk_norm: Queries and keys are normalised by two vectors of `head_dim` in every block.
        position: How positions enter.
        position_rows: Rows of a learned position table, 0 for every other kind.
        qkv_bias: Bias on the query, key and value projections.
        out_bias: Bias on the output projection of attention.
        ffn_bias: Biases on the feed-forward matrices.
        tied_embeddings: The head is the transposed embedding, one matrix for both.
        head_bias: Bias on the head, `vocab` numbers.
        embedding_norm: A norm follows the embedding.
        dropout: Probability of residual dropout in training; 0 stores no masks.
        attention_dropout: Probability of dropout on attention weights in training.
        experts: Routed experts of a block, 0 if the block is dense.
        topk: Routed experts that a token visits.
        expert_ffn: Width of one routed expert.
        shared_expert_ffn: Total width of the experts that every token visits, 0 if none.
        router_bias: One number an expert is added to the router's scores.
        sliding_window: Keys that a query sees, where fewer than `max_seq`; None if all.
        parallel_attention: Attention and feed-forward read the same input (no effect on counts).
        causal: A query sees no later key.
        source: Where the shape was read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    family: str
    layers: Annotated[int, Field(gt=0, le=2**16)]
    hidden: Dimension
    ffn: Dimension
    heads: Dimension
    kv_heads: Dimension = 0  # replaced before validation, see _fill
    head_dim: Dimension = 0  # replaced before validation, see _fill
    vocab: Dimension
    max_seq: SequenceLength
    gated: bool
    activation: Literal["gelu", "relu", "silu"]
    norm: Literal["layernorm", "rmsnorm"]
    position: Literal["learned", "rotary", "alibi", "none"]
    position_rows: Annotated[int, Field(ge=0, le=2**30)] = 0
    norm_bias: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    tied_embeddings: bool = False
    head_bias: bool = False
    embedding_norm: bool = False
    dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    experts: Annotated[int, Field(ge=0, le=2**16)] = 0
    topk: Extent = 0
    expert_ffn: Extent = 0
    shared_expert_ffn: Extent = 0
    router_bias: bool = False
    sliding_window: SequenceLength | None = None
    parallel_attention: bool = False
    causal: bool = True
    source: str = ""

    @property
    def attention_width(self) -> int:
        """Columns of the query projection, `heads * head_dim`; need not equal `hidden`."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    @property
    def is_moe(self) -> bool:
        """The feed-forward part is a mixture of experts."""
        return self.experts > 0

    def replace(self, **changes: object) -> Self:
        """A copy with other values in some fields, validated like a new one."""
        return type(self)(**{**dict(self), **changes})

    @model_validator(mode="wrap")
    @classmethod
    def _named(cls, data: Any, build: Callable[[Any], Self]) -> Self:
        try:
            return build(_fill(data))
        except ValidationError as error:
            raise _as_config_error(error, tuple(cls.model_fields)) from None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"kv_heads {self.kv_heads} does not divide heads {self.heads}",
                field="kv_heads",
                value=self.kv_heads,
                allowed=f"a divisor of {self.heads}",
            )
        if self.norm == "rmsnorm" and self.norm_bias:
            raise ConfigError(
                "norm_bias is true for rmsnorm, which has no shift", field="norm_bias", value=True
            )
        self._check_positions()
        self._check_experts()
        return self

    def _check_positions(self) -> None:
        if self.position == "learned" and self.position_rows < self.max_seq:
            raise ConfigError(
                f"position_rows {self.position_rows} is smaller than max_seq {self.max_seq}",
                field="position_rows",
                value=self.position_rows,
                allowed=f"{self.max_seq} or more",
            )
        if self.position != "learned" and self.position_rows:
            raise ConfigError(
                f"position_rows {self.position_rows} without learned positions",
                field="position_rows",
                value=self.position_rows,
                allowed=0,
            )
        if self.sliding_window is not None and self.sliding_window >= self.max_seq:
            raise ConfigError(
                f"sliding_window {self.sliding_window} does not bind: max_seq is {self.max_seq}",
                field="sliding_window",
                value=self.sliding_window,
                allowed=f"below {self.max_seq}, or none",
            )

    def _check_experts(self) -> None:
        if self.experts:
            if not 1 <= self.topk <= self.experts:
                raise ConfigError(
                    f"topk {self.topk} of {self.experts} experts",
                    field="topk",
                    value=self.topk,
                    allowed=f"1 to {self.experts}",
                )
            if not self.expert_ffn:
                raise ConfigError(
                    "expert_ffn is 0 in a model with experts",
                    field="expert_ffn",
                    value=0,
                    allowed="a positive integer",
                )
            return
        for field in ("topk", "expert_ffn", "shared_expert_ffn", "router_bias"):
            if getattr(self, field):
                raise ConfigError(
                    f"{field} is {getattr(self, field)} in a model without experts",
                    field=field,
                    value=getattr(self, field),
                    allowed="0 where experts is 0",
                )


def shown(value: object) -> str:
    """A value as an error message prints it: never longer than a line, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"  # str() refuses very long integers
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fill(data: Any) -> Any:
    """Derive `kv_heads` and `head_dim` where they were left out."""
    if not isinstance(data, Mapping):
        return data
    filled = dict(data)
    heads, hidden = filled.get("heads"), filled.get("hidden")
    if type(heads) is not int or type(hidden) is not int or heads <= 0:
        # The fields are wrong themselves; a stand-in lets validation name them and not these two.
        return {"kv_heads": 1, "head_dim": 1, **filled}
    filled.setdefault("kv_heads", heads)
    if "head_dim" not in filled:
        if hidden % heads:
            raise ConfigError(
                f"heads {shown(heads)} does not divide hidden {shown(hidden)},"
                " and head_dim is not given",
                field="heads",
                value=heads,
                allowed=f"a divisor of {shown(hidden)}, or any number with head_dim",
            )
        filled["head_dim"] = hidden // heads
    return filled


def _as_config_error(error: ValidationError, fields: tuple[str, ...]) -> ConfigError:
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "missing":
        return ConfigError(f"{field} is missing", field=field)
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(field or "", fields, n=1)
        return ConfigError(
            f"unknown field {shown(field)}",
            field=field,
            value=first["input"],
            hint=f"did you mean {near[0]}?" if near else None,
        )
    value = first["input"]
    reason = first["msg"][0].lower() + first["msg"][1:]
    return ConfigError(
        f"{field or 'model'} is {shown(value)}: {reason}",
        field=field,
        value=value if isinstance(value, bool | float) else shown(value),
    )
