"""The model that Megatron-LM shape flags describe, and whether they agree with a known one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from dse.workload.config import TransformerConfig, shown
from hwmodels.errors import ConfigError, UnsupportedError

Given = Mapping[str, str]
Position = Literal["learned", "rotary", "none"]

POSITIONS: Mapping[str, Position] = {
    "learned_absolute": "learned",
    "rope": "rotary",
    "none": "none",
}
NORMS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}

AGREES: Mapping[str, Callable[[TransformerConfig], int]] = {
    "num-layers": lambda model: model.layers,
    "hidden-size": lambda model: model.hidden,
    "num-attention-heads": lambda model: model.heads,
    "num-query-groups": lambda model: model.kv_heads,
    "kv-channels": lambda model: model.head_dim,
    "num-experts": lambda model: model.experts,
    "moe-router-topk": lambda model: model.topk,
}
"""Flags whose number must be that of the model where both are given."""


def shape(given: Given) -> TransformerConfig:
    """The model of the shape flags, with Megatron's defaults for those left out.

    Raises:
        ConfigError: A size is missing or wrong.
        UnsupportedError: A kind of block that is not modelled.
    """
    hidden = _needed(given, "hidden-size")
    heads = _needed(given, "num-attention-heads")
    gated = "swiglu" in given
    if "squared-relu" in given:
        raise UnsupportedError("--squared-relu is not modelled", field="--squared-relu")
    if given.get("moe-layer-freq", "1") != "1":
        raise UnsupportedError(
            "--moe-layer-freq other than 1 is not modelled",
            field="--moe-layer-freq",
            value=shown(given["moe-layer-freq"]),
            allowed=["1"],
        )
    experts = _optional(given, "num-experts", 0)
    # Megatron's default width: 4h, or two thirds of it rounded down to 64 where gated
    ffn = _optional(given, "ffn-hidden-size", hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden)
    seq_length = _needed(given, "seq-length")
    max_seq = _optional(given, "max-position-embeddings", seq_length)
    position = _position(given)
    norm = _word(given, "normalization", "LayerNorm", NORMS)
    bias = "disable-bias-linear" not in given
    width: dict[str, Any] = {}
    if "kv-channels" in given:
        width["head_dim"] = whole(given, "kv-channels")
    return TransformerConfig(
        name="megatron",
        family="megatron-gpt",
        layers=_needed(given, "num-layers"),
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=_optional(given, "num-query-groups", 1) if _grouped(given) else heads,
        vocab=_vocab(given),
        max_seq=max_seq,
        gated=gated,
        activation="silu" if gated else "gelu",
        norm=cast(Literal["layernorm", "rmsnorm"], norm),
        norm_bias=norm == "layernorm",
        qk_norm="qk-layernorm" in given,
        position=position,
        position_rows=max_seq if position == "learned" else 0,
        qkv_bias=bias or "add-qkv-bias" in given,
        out_bias=bias,
        ffn_bias=bias,
        tied_embeddings="untie-embeddings-and-output-weights" not in given,
        dropout=_share(given, "hidden-dropout"),
        attention_dropout=_share(given, "attention-dropout"),
        experts=experts,
        topk=_optional(given, "moe-router-topk", 2) if experts else 0,
        expert_ffn=_optional(given, "moe-ffn-hidden-size", ffn) if experts else 0,
        shared_expert_ffn=_optional(given, "moe-shared-expert-intermediate-size", 0),
        router_bias="moe-router-enable-expert-bias" in given,
        source="Megatron-LM arguments",
        **width,
    )


def require_agreement(given: Given, model: TransformerConfig) -> None:
    """Refuse a line written for another model.

    Raises:
        ConfigError: A shape flag differs from the model.
    """
    expected = {flag: read(model) for flag, read in AGREES.items()}
    expected["ffn-hidden-size"] = model.ffn
    for flag, value in expected.items():
        skip = flag == "ffn-hidden-size" and model.experts > 0
        if flag in given and not skip and _needed(given, flag) != value:
            raise ConfigError(
                f"--{flag} {shown(given[flag])[1:-1]} is not the {value} of {model.name}",
                field=f"--{flag}",
                value=shown(given[flag])[1:-1],
                allowed=[value],
            )


def whole(given: Given, flag: str, default: int = 1) -> int:
    """A flag's integer.

    Raises:
        ConfigError: It is not a positive integer of at most nine digits.
    """
    if flag not in given:
        return default
    text = given[flag]
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0):
        raise ConfigError(
            f"--{flag} {shown(text)} is not a positive integer",
            field=f"--{flag}",
            value=shown(text),
            allowed="an integer from 1",
        )
    return int(text)


def _grouped(given: Given) -> bool:
    return "group-query-attention" in given


def _position(given: Given) -> Position:
    if "use-rotary-position-embeddings" in given:
        return "rotary"
    return cast(Position, _word(given, "position-embedding-type", "learned_absolute", POSITIONS))


def _vocab(given: Given) -> int:
    for flag in ("vocab-size", "padded-vocab-size"):
        if flag in given:
            return _needed(given, flag)
    raise ConfigError(
        "the argument line does not say how large the vocabulary is",
        field="--vocab-size",
        allowed="--vocab-size N, or a model by name",
    )


def _word(given: Given, flag: str, default: str, words: Mapping[str, str]) -> str:
    word = given.get(flag, default)
    if word not in words:
        raise UnsupportedError(
            f"--{flag} {shown(word)[1:-1]} is not modelled",
            field=f"--{flag}",
            value=shown(word)[1:-1],
            allowed=list(words),
        )
    return words[word]


def _share(given: Given, flag: str) -> float:
    text = given.get(flag, "0.1")  # Megatron's default for both
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise ConfigError(
            f"--{flag} {shown(text)[1:-1]} is not a probability",
            field=f"--{flag}",
            value=shown(text)[1:-1],
            allowed="a number from 0 to below 1",
        )
    return value


def _needed(given: Given, flag: str) -> int:
    if flag not in given:
        raise ConfigError(
            f"the argument line lacks --{flag}",
            field=f"--{flag}",
            allowed=f"--{flag} N, or a model by name",
        )
    return whole(given, flag)


def _optional(given: Given, flag: str, default: int) -> int:
    return _needed(given, flag) if flag in given else default
