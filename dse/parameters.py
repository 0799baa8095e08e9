"""Parameters of a device by stage of the pipeline, and the bytes of their copies under ZeRO.

Formulas: sections 1, 2.1 and 4 of the sheet in `docs/model.md`. `K` keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dse.block import BlockParameters, Pricing, block_parameters
from dse.mesh import expert_data_degree
from dse.plan import IntArray
from dse.precision import SENT_BYTES, ParameterBytes
from dse.shapes import padded_vocab
from dse.tables import by_sequence_parallel, priced_blocks
from dse.workload.config import TransformerConfig
from hwmodels.table import FloatArray

FIRST, MIDDLE, LAST = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Units:
    """(K,) parameters of one device by unit: a layer, the embedding, final norm and head."""

    layer: BlockParameters
    embedding: BlockParameters
    head: BlockParameters


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Layers and parameters of each kind of stage, each (3, K): first, middle, last.

    Where pp = 1 the first stage holds the whole model and stands for all three.
    """

    layers: FloatArray
    dense: FloatArray
    expert: FloatArray
    tp_partial: FloatArray


def head_matrix(config: TransformerConfig, keys: Mapping[str, IntArray]) -> FloatArray:
    """(K,) elements of one device's share of the vocabulary projection, padding included."""
    rows: FloatArray = padded_vocab(config.vocab, keys["tp"]) / keys["tp"]
    return rows * config.hidden


def units_of(pricing: Pricing, seq_length: int, keys: Mapping[str, IntArray]) -> Units:
    """Count the units for keys with `tp`, `ep`, `etp`, `sequence_parallel`, `pp`.

    A tied head has no matrix of its own on a single stage, and a second copy on the last of
    several.
    """
    columns = {
        **keys,
        "cp": np.ones_like(keys["tp"]),
        "micro_batch_size": np.ones_like(keys["tp"]),
    }
    count = len(keys["tp"])
    found = {unit: np.zeros((3, count)) for unit in ("layer", "embedding", "head")}
    for flag, rows, part in by_sequence_parallel(columns):
        blocks, shapes = priced_blocks(pricing, seq_length, part, sequence_parallel=flag)
        for unit, block in (
            ("layer", blocks.layer),
            ("embedding", blocks.embedding),
            ("head", blocks.head),
        ):
            held = block_parameters(block, shapes)
            found[unit][:, rows] = held.dense, held.expert, held.tp_partial
    if pricing.config.tied_embeddings:
        matrix = head_matrix(pricing.config, keys)
        found["head"][0] -= np.where(keys["pp"] == 1, matrix, 0.0)
    return Units(*(BlockParameters(*found[unit]) for unit in ("layer", "embedding", "head")))


def stage_layers(layers: int, keys: Mapping[str, IntArray]) -> FloatArray:
    """(3, K) layers of the first, a middle and the last stage."""
    pp = keys["pp"]
    first, last = keys["first_stage_layers"], keys["last_stage_layers"]
    uneven_first, uneven_last = first > 0, last > 0
    sharing = np.maximum(pp - uneven_first - uneven_last, 1)
    even = (layers - first - last) / sharing
    alone = pp == 1
    split = np.stack(
        [
            np.where(uneven_first, first, even),
            even,
            np.where(uneven_last, last, even),
        ]
    )
    return np.where(alone, float(layers), split)


def stage_parameters(units: Units, layers: FloatArray, pp: IntArray) -> StageParameters:
    """Add up what each kind of stage holds."""
    alone = pp == 1

    def held(layer: FloatArray, embedding: FloatArray, head: FloatArray) -> FloatArray:
        blocks = layers * layer
        first = blocks[FIRST] + embedding + np.where(alone, head, 0.0)
        last = np.where(alone, first, blocks[LAST] + head)
        middle = np.where(alone, first, blocks[MIDDLE])
        return np.stack([first, middle, last])

    return StageParameters(
        layers,
        held(units.layer.dense, units.embedding.dense, units.head.dense),
        held(units.layer.expert, units.embedding.expert, units.head.expert),
        held(units.layer.tp_partial, units.embedding.tp_partial, units.head.tp_partial),
    )


@dataclass(frozen=True, slots=True)
class StateBytes:
    """(3, K) bytes of weights, gradients and optimizer by kind of stage, (K,) gather buffers.

    `gathered` are ZeRO-3's buffers inside a layer's backward, `gathered_at_loss` those on the
    last stage while the loss is made.
    """

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    gathered: FloatArray
    gathered_at_loss: FloatArray


def state_bytes(
    pricing: Pricing,
    units: Units,
    stages: StageParameters,
    recipe: ParameterBytes,
    keys: Mapping[str, IntArray],
) -> StateBytes:
    """Bytes of state under ZeRO 0-3; dense parameters shard over dp·cp, experts over edp."""
    zero = keys["zero"]
    dense_shards = keys["dp"] * keys["cp"]
    expert_shards = expert_data_degree(keys)

    def kept(stage_from: int) -> FloatArray:
        sharded = zero >= stage_from
        return stages.dense / np.where(sharded, dense_shards, 1) + stages.expert / np.where(
            sharded, expert_shards, 1
        )

    master_only = (zero == 3) & (recipe.master > 0) & pricing.stack.shards_master
    weight = np.where(master_only, recipe.master, recipe.weight)
    held_by_optimizer = recipe.moments + np.where(master_only, 0.0, recipe.master)
    sent = SENT_BYTES[pricing.precision]
    layer = units.layer.dense + units.layer.expert
    head = units.head.dense + units.head.expert
    at_loss = sent * (layer + np.where(pricing.stack.reshards_last_unit, 0.0, head))
    return StateBytes(
        weights=weight * kept(3),
        gradients=recipe.gradient * kept(2),
        optimizer=held_by_optimizer * kept(1),
        gathered=np.where(zero == 3, (3.0 * sent + recipe.gradient) * layer, 0.0),
        gathered_at_loss=np.where(zero == 3, at_loss, 0.0),
    )
