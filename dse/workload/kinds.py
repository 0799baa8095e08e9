"""How each modelled architecture of Hugging Face spells a transformer's shape.

One table a kind: a field of `TransformerConfig` on the left, and on the right the key that holds
it, or what the architecture fixes. A key that the configuration class fills in may be absent from
a file; its default here is that class's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias

Fields: TypeAlias = Mapping[str, Any]
ValueType = Literal["integer", "number", "boolean", "activation"]


class Absent(Enum):
    """What an absent key means where it does not mean a value."""

    REQUIRED = "the file is incomplete"
    OMIT = "TransformerConfig derives the field"


@dataclass(frozen=True)
class Key:
    """Where a field stands in a config.json.

    Attributes:
        names: Its spellings; the first one present counts.
        type: What the value must be.
        absent: The value of an absent key, or what its absence means.
        null: The same for a key that is null; as `absent` if None.
    """

    names: tuple[str, ...]
    type: ValueType
    absent: object = Absent.REQUIRED
    null: object = None


@dataclass(frozen=True)
class Refusal:
    """A setting that turns a known architecture into one that is not modelled.

    Attributes:
        key: The key.
        harmless: Whether its value, given the fields read so far, changes nothing.
        reason: What the setting asks for.
    """

    key: str
    harmless: Callable[[Any, Fields], bool]
    reason: str


@dataclass(frozen=True)
class Window:
    """Which layers attend to the last few keys only.

    Attributes:
        absent: The window of a file without the key `sliding_window`.
        opt_in: It counts only with `use_sliding_window`, from layer `max_window_layers` on.
    """

    absent: int | None = None
    opt_in: bool = False


@dataclass(frozen=True)
class Kind:
    """One architecture.

    Attributes:
        model_type: The value of the key `model_type`.
        architecture: The class with a language-model head.
        fields: Field of `TransformerConfig` to a `Key`, a function of the fields before it, or a
            constant.
        window: The sliding window, None where the architecture has none.
        refusals: Settings that are refused.
    """

    model_type: str
    architecture: str
    fields: Mapping[str, object]
    window: Window | None = None
    refusals: tuple[Refusal, ...] = field(default=())

    def keys(self) -> set[str]:
        """Every key that is read."""
        names = {
            name for key in self.fields.values() if isinstance(key, Key) for name in key.names
        }
        names |= {refusal.key for refusal in self.refusals}
        if self.window is not None:
            names |= {"sliding_window", "use_sliding_window"}
        return names


def _integer(*names: str, absent: object = Absent.REQUIRED, null: object = None) -> Key:
    return Key(names, "integer", absent, null)


def _number(*names: str, absent: float) -> Key:
    return Key(names, "number", absent)


def _flag(*names: str, absent: bool) -> Key:
    return Key(names, "boolean", absent)


def _activation(*names: str, absent: str) -> Key:
    return Key(names, "activation", absent)


def _is(expected: object) -> Callable[[Any, Fields], bool]:
    return lambda value, _: value is expected


# The spelling that every architecture since Llama shares. Key and value heads came with
# Llama 2: a file without the key is an older one, and has as many as query heads.
_LLAMA: dict[str, object] = {
    "layers": _integer("num_hidden_layers"),
    "hidden": _integer("hidden_size"),
    "ffn": _integer("intermediate_size"),
    "heads": _integer("num_attention_heads"),
    "kv_heads": _integer("num_key_value_heads", absent=Absent.OMIT),
    "head_dim": _integer("head_dim", absent=Absent.OMIT),
    "vocab": _integer("vocab_size"),
    # The first Llama's files say max_sequence_length, and the class takes 2048 for them.
    "max_seq": _integer("max_position_embeddings", "max_sequence_length", absent=2048),
    "gated": True,
    "activation": _activation("hidden_act", absent="silu"),
    "norm": "rmsnorm",
    "position": "rotary",
    "qkv_bias": _flag("attention_bias", absent=False),
    "out_bias": _flag("attention_bias", absent=False),
    "ffn_bias": _flag("mlp_bias", absent=False),
    "tied_embeddings": _flag("tie_word_embeddings", absent=False),
    "attention_dropout": _number("attention_dropout", absent=0.0),
}

# These classes fill in a number of heads of their own (8, 32, 4, 2) where the key is absent, which
# is hardly what the author of a partial file meant; null means as many as query heads.
_KV_HEADS = _integer("num_key_value_heads", null=Absent.OMIT)

_MAX_SEQ = _integer("max_position_embeddings")

_MISTRAL: dict[str, object] = {
    **_LLAMA,
    "max_seq": _MAX_SEQ,
    "kv_heads": _KV_HEADS,
    "qkv_bias": False,
    "out_bias": False,
    "ffn_bias": False,
}

_QWEN3: dict[str, object] = {
    **_LLAMA,
    "max_seq": _MAX_SEQ,
    "kv_heads": _KV_HEADS,
    "head_dim": _integer("head_dim", absent=128, null=Absent.OMIT),
    "ffn_bias": False,
    "qk_norm": True,
}

# A LayerNorm with shift, biases everywhere and a plain feed-forward part.
_BIASED: dict[str, object] = {
    "gated": False,
    "norm": "layernorm",
    "norm_bias": True,
    "qkv_bias": True,
    "out_bias": True,
    "ffn_bias": True,
}

_KINDS = (
    Kind("llama", "LlamaForCausalLM", _LLAMA),
    # The class sets a window of 4096 where a file has none; later releases write null.
    Kind("mistral", "MistralForCausalLM", _MISTRAL, Window(absent=4096)),
    Kind(
        "mixtral",
        "MixtralForCausalLM",
        {
            **_MISTRAL,
            "experts": _integer("num_local_experts"),
            "topk": _integer("num_experts_per_tok"),
            "expert_ffn": _integer("intermediate_size"),
        },
        Window(),
    ),
    Kind(
        "phi3",
        "Phi3ForCausalLM",
        {
            # Query, key and value are one matrix in the weights, gate and up another: same count.
            **_LLAMA,
            "max_seq": _MAX_SEQ,
            "qkv_bias": False,
            "out_bias": False,
            "ffn_bias": False,
            "dropout": _number("resid_pdrop", absent=0.0),
        },
        Window(),
    ),
    # The bias on query, key and value is the architecture's, and has no key.
    Kind(
        "qwen2",
        "Qwen2ForCausalLM",
        {**_MISTRAL, "qkv_bias": True},
        Window(absent=4096, opt_in=True),
    ),
    Kind("qwen3", "Qwen3ForCausalLM", _QWEN3, Window(absent=4096, opt_in=True)),
    Kind(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        {
            **_QWEN3,
            "head_dim": _integer("head_dim", absent=Absent.OMIT),
            "experts": _integer("num_experts", "num_local_experts"),
            "topk": _integer("num_experts_per_tok"),
            "expert_ffn": _integer("moe_intermediate_size"),
        },
        Window(absent=4096, opt_in=True),
        (
            Refusal("decoder_sparse_step", lambda v, _: v in (None, 1), "dense layers in between"),
            Refusal("mlp_only_layers", lambda v, _: v in (None, []), "dense layers in between"),
            Refusal(
                "shared_expert_intermediate_size", lambda v, _: v in (None, 0), "shared experts"
            ),
        ),
    ),
    Kind(
        "gpt2",
        "GPT2LMHeadModel",
        {
            **_BIASED,
            "layers": _integer("n_layer", "num_hidden_layers"),
            "hidden": _integer("n_embd", "hidden_size"),
            "heads": _integer("n_head", "num_attention_heads"),
            "ffn": _integer("n_inner", absent=lambda fields: 4 * fields["hidden"]),
            "vocab": _integer("vocab_size"),
            "max_seq": _integer("n_positions", "max_position_embeddings"),
            "activation": _activation("activation_function", absent="gelu_new"),
            "position": "learned",
            "position_rows": lambda fields: fields["max_seq"],
            "tied_embeddings": _flag("tie_word_embeddings", absent=True),
            "dropout": _number("resid_pdrop", absent=0.1),
            "attention_dropout": _number("attn_pdrop", absent=0.1),
        },
        None,
        (Refusal("add_cross_attention", lambda v, _: not v, "cross attention"),),
    ),
    Kind(
        "opt",
        "OPTForCausalLM",
        {
            **_BIASED,
            "layers": _integer("num_hidden_layers"),
            "hidden": _integer("hidden_size"),
            "heads": _integer("num_attention_heads"),
            "ffn": _integer("ffn_dim"),
            "vocab": _integer("vocab_size"),
            "max_seq": _integer("max_position_embeddings"),
            "activation": _activation("activation_function", absent="relu"),
            "position": "learned",
            # Positions are counted from 2, the first two rows belong to padding.
            "position_rows": lambda fields: fields["max_seq"] + 2,
            "qkv_bias": _flag("enable_bias", absent=True),
            "out_bias": _flag("enable_bias", absent=True),
            "ffn_bias": _flag("enable_bias", absent=True),
            "tied_embeddings": _flag("tie_word_embeddings", absent=True),
            "dropout": _number("dropout", absent=0.1),
            "attention_dropout": _number("attention_dropout", absent=0.0),
        },
        None,
        (
            Refusal(
                "word_embed_proj_dim",
                lambda v, fields: v is None or v == fields["hidden"],
                "an embedding of another width than the blocks",
            ),
            Refusal("do_layer_norm_before", _is(True), "norms after attention and feed-forward"),
            Refusal("_remove_final_layer_norm", _is(False), "no final norm"),
            Refusal("layer_norm_elementwise_affine", _is(True), "norms without parameters"),
        ),
    ),
    Kind(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        {
            **_BIASED,
            "layers": _integer("num_hidden_layers"),
            "hidden": _integer("hidden_size"),
            "heads": _integer("num_attention_heads"),
            "ffn": _integer("intermediate_size"),
            "vocab": _integer("vocab_size"),
            "max_seq": _integer("max_position_embeddings"),
            "activation": _activation("hidden_act", absent="gelu"),
            "position": "rotary",
            "parallel_attention": _flag("use_parallel_residual", absent=True),
            "qkv_bias": _flag("attention_bias", absent=True),
            "out_bias": _flag("attention_bias", absent=True),
            "tied_embeddings": _flag("tie_word_embeddings", absent=False),
            # Files of the first release say hidden_dropout_prob, which the class does not read.
            "dropout": _number("hidden_dropout", absent=0.0),
            "attention_dropout": _number("attention_dropout", absent=0.0),
        },
    ),
    Kind(
        "bloom",
        "BloomForCausalLM",
        {
            **_BIASED,
            "layers": _integer("n_layer", "num_hidden_layers"),
            "hidden": _integer("hidden_size", "n_embed"),
            "heads": _integer("n_head", "num_attention_heads"),
            "ffn": lambda fields: 4 * fields["hidden"],  # the class has no key for it
            "vocab": _integer("vocab_size"),
            # Positions are slopes without a limit; 2048 is what the released models trained on.
            "max_seq": _integer("seq_length", absent=2048),
            "activation": "gelu",
            "position": "alibi",
            "embedding_norm": True,
            "tied_embeddings": _flag("tie_word_embeddings", absent=True),
            "dropout": _number("hidden_dropout", absent=0.0),
            "attention_dropout": _number("attention_dropout", absent=0.0),
        },
    ),
    Kind(
        "starcoder2",
        "Starcoder2ForCausalLM",
        {
            **_LLAMA,
            **_BIASED,
            "max_seq": _MAX_SEQ,
            "kv_heads": _KV_HEADS,
            "head_dim": _integer("head_dim", absent=Absent.OMIT),
            "activation": _activation("hidden_act", absent="gelu_pytorch_tanh"),
            "qkv_bias": _flag("use_bias", absent=True),
            "out_bias": _flag("use_bias", absent=True),
            "ffn_bias": _flag("use_bias", absent=True),
            "tied_embeddings": _flag("tie_word_embeddings", absent=True),
            "dropout": _number("residual_dropout", absent=0.0),
        },
        Window(),
        (
            Refusal("mlp_type", lambda v, _: v == "default", "another MLP"),
            Refusal("norm_type", lambda v, _: v == "layer_norm", "another norm"),
        ),
    ),
)

KINDS: Mapping[str, Kind] = {kind.model_type: kind for kind in _KINDS}

# GELU and its approximations move the same bytes.
ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
