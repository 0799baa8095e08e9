"""Once-a-step traffic of a synchronous job: ZeRO 0 to 3, tied embeddings, norms, scalars,
optimizer.

Dense gradients are summed over dp and cp, experts' over edp. The fullest stage sets the time,
since the gradient norm makes every rank wait for it. Formulas: sections 6.1, 6.3, 6.5, 6.7 and 8
of the sheet in `docs/model.md`.

Shapes: `H` hardware rows, `K` keys of `SYNC_AXES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dse.block import Pricing
from dse.mesh import expert_data_degree, strides
from dse.parameters import (
    StageParameters,
    Units,
    head_matrix,
    stage_layers,
    stage_parameters,
    state_bytes,
    units_of,
)
from dse.plan import IntArray
from dse.precision import SENT_BYTES, parameter_bytes
from dse.workload.config import TransformerConfig
from hwmodels import collectives, kernels
from hwmodels.collectives import Coefficients
from hwmodels.placement import hop_level, members
from hwmodels.table import FloatArray

SYNC_AXES = (
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "etp",
    "mesh_order",
    "sequence_parallel",
    "zero",
    "optimizer",
    "grad_dtype",
    "master_dtype",
    "first_stage_layers",
    "last_stage_layers",
)
NORM_READ_BYTES = 4.0
ZERO_FILL_BYTES = 4.0
"""Bytes a parameter that the gradient norm reads, and that clearing the gradient buffer writes.
"""
SCALAR_BYTES = 4.0
SCALARS = ("gradient norm", "average of the loss")
"""Names of the calls of `SCALAR_BYTES`; the optimizer waits for the first.
"""

Keys = Mapping[str, IntArray]
Dims = list[tuple[IntArray, IntArray]]


@dataclass(frozen=True, slots=True)
class SyncCall:
    """One collective of the step.

    Args:
        name: For reports.
        link: Part of the ledger that it counts to.
        verb: The collective.
        dims: (size, stride) of each mesh dimension of the group.
        nbytes: (K,) message of a call.
        seconds: (H, K) of a call.
        algorithms: Names of the algorithms.
        best: (H, K) position of the fastest.
    """

    name: str
    link: str
    verb: str
    dims: Dims
    nbytes: FloatArray
    seconds: FloatArray
    algorithms: tuple[str, ...]
    best: IntArray


@dataclass(frozen=True, slots=True)
class SyncTable:
    """What a plan needs that depends on the whole mesh. Seconds (H, K); bytes (3, K) by kind of
    stage.

    `reduce_s` and `gather_s` are gradients and parameters of ZeRO 0 to 2; `unit_*` those of one
    layer under ZeRO-3, `ends_*` of embedding, norm and head. `once_tp_s` and `once_pp_s` are the
    gradients of norms and of copied key and value heads over tp, and of tied embeddings between
    the ends. `hop_*` and `ring_*` give
    a pipeline and a ring-attention message as start and seconds a byte.
    """

    reduce_s: FloatArray
    gather_s: FloatArray
    unit_reduce_s: FloatArray
    unit_gather_s: FloatArray
    ends_reduce_s: FloatArray
    ends_gather_s: FloatArray
    scalar_s: FloatArray
    once_tp_s: FloatArray
    once_pp_s: FloatArray
    optimizer_s: FloatArray
    hop_start_s: FloatArray
    hop_s_per_byte: FloatArray
    ring_start_s: FloatArray
    ring_s_per_byte: FloatArray
    layers: FloatArray
    state_bytes: FloatArray
    weights_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    gathered_bytes: FloatArray
    gathered_at_loss_bytes: FloatArray


def sync_calls(
    pricing: Pricing,
    units: Units,
    stages: StageParameters,
    keys: Keys,
    *,
    stage: int | None = None,
) -> dict[str, SyncCall]:
    """Every once-a-step collective, by name; those of ZeRO-3 once a unit.

    Args:
        pricing: Hardware, model, stack, precision.
        units: Parameters of a layer and of the ends.
        stages: Parameters by kind of stage.
        keys: (K,) columns of `SYNC_AXES`.
        stage: Kind of stage whose messages to take; the fullest of each if None.
    """
    recipe = parameter_bytes(
        pricing.precision, keys["grad_dtype"], keys["master_dtype"], keys["optimizer"]
    )
    sent = SENT_BYTES[pricing.precision]
    stride = strides(keys)
    one = np.ones_like(keys["tp"])
    replicas: Dims = [(keys["cp"], stride["cp"]), (keys["dp"], stride["dp"])]
    expert_replicas = _expert_replicas(keys, stride)
    moe = pricing.config.is_moe
    found: dict[str, SyncCall] = {}
    # One group's costs serve all its messages; groups are told apart by identity.
    priced: dict[tuple[str, int], Coefficients] = {}

    def call(name: str, link: str, verb: str, dims: Dims, nbytes: FloatArray) -> None:
        hw = pricing.hardware
        if (verb, id(dims)) not in priced:
            priced[verb, id(dims)] = collectives.coefficients(verb, hw, members(hw, dims))
        costs = priced[verb, id(dims)]
        seconds, best = collectives.seconds(costs, nbytes)
        seconds = np.where(nbytes > 0, seconds, 0.0) * pricing.stack.network_factor
        found[name] = SyncCall(name, link, verb, dims, nbytes, seconds, costs.algorithms, best)

    def of_stage(amount: FloatArray) -> FloatArray:
        picked: FloatArray = amount.max(axis=0) if stage is None else amount[stage]
        return picked

    zero = keys["zero"]
    for label, dims, held, unit, ends in (
        ("dense", replicas, stages.dense, units.layer.dense, _ends(units, "dense")),
        ("expert", expert_replicas, stages.expert, units.layer.expert, _ends(units, "expert")),
    ):
        if label == "expert" and not moe:
            continue
        gradient = recipe.gradient * of_stage(held)
        whole = zero < 3
        reduced = np.where(whole & (zero > 0), gradient, 0.0)
        call(
            f"{label} gradients, all-reduce",
            "dp",
            "all_reduce",
            dims,
            np.where(zero == 0, gradient, 0.0),
        )
        call(f"{label} gradients", "dp", "reduce_scatter", dims, reduced)
        gathered = np.where(whole & (zero > 0), sent * of_stage(held), 0.0)
        call(f"{label} parameters", "dp", "all_gather", dims, gathered)
        if np.any(zero == 3):
            sharded = zero == 3
            for part, count in (("layer", unit), *ends):
                call(
                    f"{label} {part} gather",
                    "dp",
                    "all_gather",
                    dims,
                    np.where(sharded, sent * count, 0.0),
                )
                call(
                    f"{label} {part} reduce",
                    "dp",
                    "reduce_scatter",
                    dims,
                    np.where(sharded, recipe.gradient * count, 0.0),
                )
    partial = recipe.gradient * of_stage(stages.tp_partial)
    call("norm and bias gradients", "tp", "all_reduce", [(keys["tp"], one)], partial)
    copies = np.maximum(keys["tp"] // pricing.config.kv_heads, 1)
    if np.any(copies > 1):
        copied = recipe.gradient * of_stage(stages.layers) * _key_value_parameters(pricing.config)
        copied = np.where(copies > 1, copied, 0.0)
        call("key and value gradients", "tp", "all_reduce", [(copies, one)], copied)
    if pricing.config.tied_embeddings:
        matrix = head_matrix(pricing.config, keys)
        ends_apart: Dims = [
            (np.minimum(keys["pp"], 2), stride["pp"] * np.maximum(keys["pp"] - 1, 1))
        ]
        shared = np.where(keys["pp"] > 1, recipe.gradient * matrix, 0.0)
        call("tied embedding gradients", "pp", "all_reduce", ends_apart, shared)
    # Replicas that hold whole gradients know their norm; shards must add theirs up.
    model = [(keys["tp"], one), (keys["pp"], stride["pp"])]
    shards = [(np.where(zero > 0, size, 1), apart) for size, apart in replicas]
    scalar = np.full(len(one), SCALAR_BYTES)
    for name, dims in zip(SCALARS, ([*model, *shards], replicas), strict=True):
        call(name, "dp", "all_reduce", dims, scalar)
    return found


def _key_value_parameters(config: TransformerConfig) -> int:
    """Parameters of a layer that make one key head and one value head."""
    rows = config.hidden + (1 if config.qkv_bias else 0)
    return 2 * rows * config.head_dim


def _expert_replicas(keys: Keys, stride: Mapping[str, IntArray]) -> Dims:
    """The ranks that hold the same experts: what etp and ep leave of tp, cp and dp.

    Experts fold contiguous ranks. Where pp lies between those (then etp = ep = 1, every rank has
    every expert) the group spreads over the three dimensions.
    """
    one = np.ones_like(keys["tp"])
    folded = keys["tp"] * keys["cp"] * keys["dp"] == stride["pp"]
    degree, apart = expert_data_degree(keys), keys["etp"] * keys["ep"]
    return [
        (np.where(folded, degree, keys["tp"]), np.where(folded, apart, one)),
        *((np.where(folded, one, keys[dim]), stride[dim]) for dim in ("cp", "dp")),
    ]


def _ends(units: Units, kind: str) -> tuple[tuple[str, FloatArray], ...]:
    return (("embedding", getattr(units.embedding, kind)), ("head", getattr(units.head, kind)))


def sync_table(pricing: Pricing, seq_length: int, keys: Keys) -> SyncTable:
    """Price the once-a-step traffic and count the state of K keys."""
    units = units_of(pricing, seq_length, keys)
    layers = stage_layers(pricing.config.layers, keys)
    stages = stage_parameters(units, layers, keys["pp"])
    recipe = parameter_bytes(
        pricing.precision, keys["grad_dtype"], keys["master_dtype"], keys["optimizer"]
    )
    state = state_bytes(pricing, units, stages, recipe, keys)
    calls = sync_calls(pricing, units, stages, keys)
    nothing = np.zeros((len(pricing.hardware), len(keys["tp"])))

    def spent(*suffixes: str) -> FloatArray:
        total = nothing
        for name, call in calls.items():
            if name.endswith(suffixes):
                total = total + call.seconds
        return total

    def of_ends(embedding: FloatArray, head: FloatArray) -> FloatArray:
        """Of both ends where one stage has both, of the slower where they lie apart."""
        return np.where(keys["pp"] == 1, embedding + head, np.maximum(embedding, head))

    # A unit is gathered for forward and again for backward, unless it is kept between them.
    head_gathers = 2.0 if pricing.stack.reshards_last_unit else 1.0
    hop_start, hop_rate = _hops(pricing, keys, "pp")
    ring_start, ring_rate = _hops(pricing, keys, "cp")
    return SyncTable(
        reduce_s=spent("dense gradients", "expert gradients", "gradients, all-reduce"),
        gather_s=spent("dense parameters", "expert parameters"),
        unit_reduce_s=spent("layer reduce"),
        unit_gather_s=spent("layer gather"),
        ends_reduce_s=of_ends(spent("embedding reduce"), spent("head reduce")),
        ends_gather_s=of_ends(
            2.0 * spent("embedding gather"), head_gathers * spent("head gather")
        ),
        scalar_s=spent(*SCALARS),
        once_tp_s=spent("norm and bias gradients", "key and value gradients"),
        once_pp_s=spent("tied embedding gradients"),
        optimizer_s=_optimizer_seconds(pricing, stages, recipe.update, keys),
        hop_start_s=hop_start,
        hop_s_per_byte=hop_rate,
        ring_start_s=ring_start,
        ring_s_per_byte=ring_rate,
        layers=layers,
        state_bytes=state.weights + state.gradients + state.optimizer,
        weights_bytes=state.weights,
        gradients_bytes=state.gradients,
        optimizer_bytes=state.optimizer,
        gathered_bytes=state.gathered,
        gathered_at_loss_bytes=state.gathered_at_loss,
    )


def _hops(pricing: Pricing, keys: Keys, dim: str) -> tuple[FloatArray, FloatArray]:
    """Start and seconds a byte of a message between neighbours along `dim`, each (H, K)."""
    hw, factor = pricing.hardware, pricing.stack.network_factor
    costs = collectives.p2p(hw, hop_level(hw, keys[dim], strides(keys)[dim]))
    return costs.alpha_s[0] * factor, costs.s_per_byte[0] * factor


def _optimizer_seconds(
    pricing: Pricing, stages: StageParameters, update_bytes: FloatArray, keys: Keys
) -> FloatArray:
    """(H, K) seconds of update, gradient norm and clearing, on the fullest stage."""
    sharded = keys["zero"] > 0
    owned = stages.dense / np.where(sharded, keys["dp"] * keys["cp"], 1)
    owned = owned + stages.expert / np.where(sharded, expert_data_degree(keys), 1)
    held = stages.dense + stages.expert
    moved = (update_bytes + NORM_READ_BYTES) * owned + ZERO_FILL_BYTES * np.where(
        keys["zero"] >= 2, owned, held
    )
    return kernels.optimizer.seconds(pricing.hardware, moved.max(axis=0))
