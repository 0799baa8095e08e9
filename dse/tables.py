"""Tables over distinct keys: a layer, and the two ends of the model, for one micro-batch.

Everything a plan needs of its blocks, computed once a key and gathered by the evaluator. `H`
hardware rows, `K` keys; seconds are (H, K), bytes and counts (K,).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dse.block import BlockCost, Groups, Pricing, block_cost, group_costs
from dse.plan import RECOMPUTE, IntArray
from dse.shapes import Shapes, padded_vocab, shapes_of
from dse.workload.transformer import Blocks, build
from hwmodels import collectives
from hwmodels.distinct import distinct
from hwmodels.table import FloatArray

LAYER_AXES = ("tp", "cp", "ep", "etp", "micro_batch_size", "sequence_parallel", "recompute")
ENDS_AXES = ("tp", "cp", "micro_batch_size", "sequence_parallel")
SELECTIVE = RECOMPUTE.index("selective")
FULL = RECOMPUTE.index("full")


class _Rows:
    """Row-wise joining and gathering of dataclasses of (H, K) and (K,) arrays."""

    @classmethod
    def joined(cls, parts: list[tuple[NDArray[np.intp], Self]], count: int) -> Self:
        """One table of `count` keys from tables of some of them."""
        whole: dict[str, FloatArray] = {}
        for name in (field.name for field in fields(cls)):  # type: ignore[arg-type]
            first: FloatArray = getattr(parts[0][1], name)
            whole[name] = np.zeros((*first.shape[:-1], count))
            for rows, part in parts:
                whole[name][..., rows] = getattr(part, name)
        return cls(**whole)


@dataclass(frozen=True, slots=True)
class LayerTable(_Rows):
    """One layer of one micro-batch, with the plan's recomputation.

    `forward_s` and `backward_s` are kernels, recomputation inside backward; `*_tp_s` and `*_ep_s`
    exposed messages; `host_*_s` what the host needs to launch it all; `core_*_s` core attention
    alone. `ring_repeats` is 1 where backward runs the
    forward's ring again, `kv_bytes` one of its messages. `saved_bytes` stay until backward,
    `working_bytes` are those of the layer being worked on. Parameters are one device's.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    forward_tp_s: FloatArray
    backward_tp_s: FloatArray
    forward_ep_s: FloatArray
    backward_ep_s: FloatArray
    host_forward_s: FloatArray
    host_backward_s: FloatArray
    core_forward_s: FloatArray
    core_backward_s: FloatArray
    ring_repeats: FloatArray
    kv_bytes: FloatArray
    saved_bytes: FloatArray
    working_bytes: FloatArray


@dataclass(frozen=True, slots=True)
class EndsTable(_Rows):
    """Embedding and head of one micro-batch, and the message between stages.

    `arrival_tp_s` joins the slices of a message that was cut over tp. `logits_bytes` are kept from
    loss to backward, `loss_bytes` live beside them during the loss.
    """

    embedding_forward_s: FloatArray
    embedding_backward_s: FloatArray
    embedding_forward_tp_s: FloatArray
    embedding_backward_tp_s: FloatArray
    head_forward_s: FloatArray
    head_backward_s: FloatArray
    head_forward_tp_s: FloatArray
    head_backward_tp_s: FloatArray
    embedding_saved_bytes: FloatArray
    head_saved_bytes: FloatArray
    arrival_tp_s: FloatArray
    logits_bytes: FloatArray
    loss_bytes: FloatArray
    boundary_bytes: FloatArray
    buffer_bytes: FloatArray


Keys = dict[str, IntArray]


def layer_groups(keys: Keys) -> Groups:
    """Sizes and strides of the groups inside a layer; experts fold etp first, then ep."""
    one = np.ones_like(keys["tp"])
    etp = keys.get("etp", one)
    return {"tp": (keys["tp"], one), "etp": (etp, one), "ep": (keys.get("ep", one), etp)}


def priced_blocks(
    pricing: Pricing, seq_length: int, keys: Keys, *, sequence_parallel: bool
) -> tuple[Blocks, Shapes]:
    """The blocks and the shapes of keys that agree on sequence parallelism."""
    blocks = build(
        pricing.config,
        pricing.stack,
        precision=pricing.precision,
        sequence_parallel=sequence_parallel,
    )
    shapes = shapes_of(pricing.config, seq_length, keys, sequence_parallel=sequence_parallel)
    return blocks, shapes


def by_sequence_parallel(keys: Keys) -> list[tuple[bool, NDArray[np.intp], Keys]]:
    """Keys split by sequence parallelism: (flag, rows, columns of those rows)."""
    split = []
    for flag in (False, True):
        rows = np.flatnonzero(keys["sequence_parallel"] == int(flag))
        if len(rows):
            split.append((flag, rows, {axis: column[rows] for axis, column in keys.items()}))
    return split


def layer_table(pricing: Pricing, seq_length: int, keys: Keys) -> LayerTable:
    """Price a layer for K keys of `LAYER_AXES`."""
    parts = []
    for flag, rows, part in by_sequence_parallel(keys):
        # Recomputation repeats kernels and changes none: each is priced once.
        first, places = distinct([part[axis] for axis in LAYER_AXES if axis != "recompute"])
        once = {axis: column[first] for axis, column in part.items()}
        blocks, shapes = priced_blocks(pricing, seq_length, once, sequence_parallel=flag)
        cost = block_cost(blocks.layer, shapes, layer_groups(once), pricing)
        _, shapes = priced_blocks(pricing, seq_length, part, sequence_parallel=flag)
        parts.append((rows, _layer(cost, places, shapes, part, pricing, flag)))
    return LayerTable.joined(parts, len(keys["tp"]))


def _layer(
    cost: BlockCost,
    places: NDArray[np.intp],
    shapes: Shapes,
    keys: Keys,
    pricing: Pricing,
    sequence_parallel: bool,
) -> LayerTable:
    """A layer of K keys; `places` says which column of `cost` each key takes."""

    def spread(column: FloatArray) -> FloatArray:
        taken: FloatArray = column[..., places]
        return taken

    full = (keys["recompute"] == FULL).astype(float)
    selective = (keys["recompute"] == SELECTIVE).astype(float)
    forward_s = spread(cost.seconds("forward"))
    core_forward_s = spread(cost.seconds("forward", kind="attention"))
    core_backward_s = spread(cost.seconds("backward", kind="attention"))
    backward_s = spread(cost.seconds("dgrad", "wgrad", "backward"))
    backward_s = backward_s + full * forward_s + selective * core_forward_s
    forward_tp_s, forward_ep_s = (spread(cost.exposed(link, "forward")) for link in ("tp", "ep"))
    backward_tp_s, backward_ep_s = (
        spread(cost.exposed(link, "backward", "rebuild")) for link in ("tp", "ep")
    )
    saved, core = spread(cost.saved_bytes), spread(cost.core_bytes)
    stack = pricing.stack
    host_forward = stack.launches_forward * stack.launch_s
    host_backward = stack.launches_backward * stack.launch_s + full * host_forward
    device_forward = device_backward = 0.0 * forward_s
    if stack.blocking_launches:
        # The host starts a kernel only when the one before has ended.
        device_forward = forward_s + forward_tp_s + forward_ep_s
        device_backward = backward_s + backward_tp_s + backward_ep_s
        device_backward = device_backward + full * (forward_tp_s + forward_ep_s)

    local_tokens = shapes.sizes["batch"] * shapes.sizes["seq"] / shapes.degrees["cp"]
    stream_shard = shapes.degrees["tp"] if sequence_parallel else np.ones_like(local_tokens)
    hidden = pricing.element_bytes * local_tokens * pricing.config.hidden
    kept = np.where(full > 0, hidden / stream_shard, saved - selective * core)
    working = full * saved + selective * core
    if sequence_parallel:
        working = working + hidden  # one gathered input
    kv_heads = np.maximum(1.0, pricing.config.kv_heads / shapes.degrees["tp"])
    return LayerTable(
        forward_s=forward_s,
        backward_s=backward_s,
        forward_tp_s=forward_tp_s,
        backward_tp_s=backward_tp_s + full * forward_tp_s,
        forward_ep_s=forward_ep_s,
        backward_ep_s=backward_ep_s + full * forward_ep_s,
        host_forward_s=device_forward + host_forward,
        host_backward_s=device_backward + host_backward,
        core_forward_s=core_forward_s,
        core_backward_s=core_backward_s,
        ring_repeats=full + selective,
        kv_bytes=2 * pricing.element_bytes * local_tokens * kv_heads * pricing.config.head_dim,
        saved_bytes=kept,
        working_bytes=working,
    )


def ends_table(pricing: Pricing, seq_length: int, keys: Keys) -> EndsTable:
    """Price embedding and head for K keys of `ENDS_AXES`."""
    parts = []
    for flag, rows, part in by_sequence_parallel(keys):
        blocks, shapes = priced_blocks(pricing, seq_length, part, sequence_parallel=flag)
        groups = layer_groups(part)
        embedding = block_cost(blocks.embedding, shapes, groups, pricing)
        head = block_cost(blocks.head, shapes, groups, pricing)
        parts.append((rows, _ends(embedding, head, shapes, part, pricing, flag)))
    return EndsTable.joined(parts, len(keys["tp"]))


def arrival_seconds(
    pricing: Pricing, message_bytes: FloatArray, cut: NDArray[np.bool_], keys: Keys
) -> FloatArray:
    """(H, K) exposed seconds of the gather over tp that follows a scattered message [SC21 4.1]."""
    hw, stack = pricing.hardware, pricing.stack
    costs = group_costs("all_gather", hw, *layer_groups(keys)["tp"])
    seconds = collectives.seconds(costs, message_bytes)[0] * stack.network_factor
    exposed: FloatArray = np.where(cut, seconds * (1.0 - stack.overlap_tp), 0.0)
    return exposed


LOGIT_BYTES = {"vocab-parallel": (4.0, 2.0), "eager": (4.0, 6.0)}
"""Bytes a logit: kept until backward, and beside them at the peak of the loss (sheet 3.3)."""


def _ends(
    embedding: BlockCost,
    head: BlockCost,
    shapes: Shapes,
    keys: Keys,
    pricing: Pricing,
    sequence_parallel: bool,
) -> EndsTable:
    local_tokens = shapes.sizes["batch"] * shapes.sizes["seq"] / shapes.degrees["cp"]
    parallel = pricing.stack.loss == "vocab-parallel"
    rows = padded_vocab(pricing.config.vocab, keys["tp"])
    logits = local_tokens * (rows / keys["tp"] if parallel else rows)
    kept, beside = LOGIT_BYTES[pricing.stack.loss]
    hidden = pricing.element_bytes * local_tokens * pricing.config.hidden
    sharded = hidden / keys["tp"] if sequence_parallel else hidden
    sent = hidden / keys["tp"] if pricing.stack.scatters_p2p else sharded
    return EndsTable(
        embedding_forward_s=embedding.seconds("forward"),
        embedding_backward_s=embedding.seconds("dgrad", "wgrad", "backward"),
        embedding_forward_tp_s=embedding.exposed("tp", "forward"),
        embedding_backward_tp_s=embedding.exposed("tp", "backward", "rebuild"),
        head_forward_s=head.seconds("forward"),
        head_backward_s=head.seconds("dgrad", "wgrad", "backward"),
        head_forward_tp_s=head.exposed("tp", "forward"),
        head_backward_tp_s=head.exposed("tp", "backward", "rebuild"),
        embedding_saved_bytes=embedding.saved_bytes,
        head_saved_bytes=head.saved_bytes,
        arrival_tp_s=arrival_seconds(pricing, hidden, sent < sharded, keys),
        logits_bytes=kept * logits,
        loss_bytes=beside * logits,
        boundary_bytes=sent,
        buffer_bytes=2.0 * sharded,  # one to send, one to receive
    )
