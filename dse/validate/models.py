"""The model of a published row: from its dimensions and its kind's conventions, or by name."""

from __future__ import annotations

import functools
import re
from typing import Any

from dse.validate.rows import Row
from dse.validate.vocabulary import meaning, style
from dse.workload import TransformerConfig, load_model
from hwmodels.errors import ConfigError, UnsupportedError

HEAD_DIM = 128
"""Head size where a row gives no number of heads: that of GPT-3 and most models since."""
GATED_OVER_HIDDEN = (2.5, 3.6)
"""ffn / hidden of a gated model with as many parameters as an ungated one of 4: about 8/3."""


class NotModelledError(Exception):
    """A model that cannot be priced; `reason` is a key of `REASONS`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def config_of(row: Row, *, tp: int) -> tuple[TransformerConfig, list[str]]:
    """The shape that a row trains, and what was assumed about it.

    Args:
        row: The row.
        tp: Tensor parallel degree, which the number of heads must divide by where it is assumed.

    Raises:
        NotModelledError: The name is not known and dimensions are missing, or the kind is known
            and not modelled.
    """
    adapters = meaning("adapters", f"{row.model} {row.source_location}")
    if adapters is not None:
        raise NotModelledError("model kind not modelled", f"{row.model}: {adapters.refuse}")
    found = meaning("models", row.model)
    if found is not None and found.refuse:
        raise NotModelledError("model kind not modelled", f"{row.model}: {found.refuse}")
    if found is not None and found.catalogue:
        return _by_name(found.catalogue, row), []
    if row.layers and row.hidden and not (found is not None and found.by_name):
        kind = found.style if found else _guessed_style(row)
        return _by_dimensions(row, kind, tp, guessed=found is None)
    try:
        return _fitted_to(_bundled(_bare(row.model)), row), []
    except UnsupportedError as problem:
        raise NotModelledError("model kind not modelled", problem.message) from None
    except ConfigError:
        missing = "layers is empty" if not row.layers else "hidden is empty"
        if found is not None and found.by_name:
            missing = "dimensions alone do not describe its kind"
        raise NotModelledError(
            "model not known", f"{row.model!r} is no bundled model, and {missing}"
        ) from None


def _by_name(name: str, row: Row) -> TransformerConfig:
    try:
        return _fitted_to(_bundled(name), row)
    except UnsupportedError as problem:
        raise NotModelledError("model kind not modelled", problem.message) from None
    except ConfigError as problem:
        raise NotModelledError("model not known", problem.message) from None


@functools.lru_cache(maxsize=512)
def _bundled(name: str) -> TransformerConfig:
    return load_model(name)


def _fitted_to(config: TransformerConfig, row: Row) -> TransformerConfig:
    """The bundled model with a position table as long as the row's sequences."""
    if config.position == "learned" and row.seq and row.seq > config.max_seq:
        return config.replace(max_seq=row.seq, position_rows=max(config.position_rows, row.seq))
    return config


def _bare(text: str) -> str:
    return re.sub(r"\(.*?\)", "", text).strip()


def _guessed_style(row: Row) -> str:
    gated = row.ffn and row.hidden and row.ffn != 4 * row.hidden
    return "llama" if gated or (row.kv_heads and row.kv_heads != row.heads) else "gpt3"


def _by_dimensions(
    row: Row, kind: str, tp: int, *, guessed: bool
) -> tuple[TransformerConfig, list[str]]:
    fields: dict[str, Any] = dict(style(kind))
    assumed = [f"model conventions = {kind} (the name is not known)"] if guessed else []
    hidden = row.hidden or 0
    vocab = row.vocab
    if vocab is None:
        vocab = fields["vocab"]
        assumed.append(f"vocab = {vocab} (custom of {kind} models)")
    heads = row.heads
    if heads is None:
        heads = _assumed_heads(hidden, tp)
        if heads is None:
            raise NotModelledError("model not known", "heads is empty and cannot be derived")
        assumed.append(f"heads = {heads} (head size {HEAD_DIM} or the next above that divides)")
    ffn = row.ffn
    if ffn is None:
        if fields["gated"]:
            raise NotModelledError("model not known", "ffn is empty and the model is gated")
        ffn = 4 * hidden
        assumed.append(f"ffn = {ffn} (4 times hidden)")
    if row.kv_heads is None and fields["gated"]:
        assumed.append(f"kv_heads = {heads} (not stated)")
    seq = row.seq or 0
    fields |= {"vocab": vocab, "position_rows": seq if fields["position"] == "learned" else 0}
    if hidden % heads:
        fields["head_dim"] = HEAD_DIM
        assumed.append(f"head_dim = {HEAD_DIM} (heads do not divide hidden)")
    try:
        config = TransformerConfig(
            name=row.model,
            family=kind,
            layers=row.layers or 0,
            hidden=hidden,
            ffn=ffn,
            heads=heads,
            kv_heads=row.kv_heads or heads,
            max_seq=max(seq, 1),
            source=row.source,
            **fields,
        )
    except ConfigError as problem:
        raise NotModelledError("model not known", problem.message) from None
    return config, assumed


def _assumed_heads(hidden: int, tp: int) -> int | None:
    """The most heads of at least `HEAD_DIM` that divide hidden and that tp divides."""
    for heads in range(hidden // HEAD_DIM, 0, -1):
        if hidden % heads == 0 and heads % tp == 0 and hidden // heads % 8 == 0:
            return heads
    return None
