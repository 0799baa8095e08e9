"""Peak bytes of a device, by stage of the pipeline and by category.

peak = weights + gradients + optimizer + activations alive + logits + the larger of two moments:
at the loss (copies of the logits, gathered units) and inside a layer's backward (the layer being
recomputed, a gathered input, gathered units). Logits count as kept in both: slightly pessimistic.
Formulas: sections 3, 4 of the sheet in `docs/model.md`.

Three stages can be the fullest: rank 0 (embedding, most micro-batches alive), rank 1 (where the
first stage has fewer layers), the last (head, logits). P plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.schedule import FIRST, LAST, MIDDLE, ScheduleTable
from dse.sync import SyncTable
from dse.tables import EndsTable, LayerTable
from hwmodels.table import FloatArray

CATEGORIES = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "gathered",
    "workspace",
)
Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one evaluation and, for each, the (P,) place of every plan in it."""

    layer: LayerTable
    ends: EndsTable
    sync: SyncTable
    schedule: ScheduleTable
    at_layer: Places
    at_ends: Places
    at_sync: Places
    at_schedule: Places


@dataclass(frozen=True, slots=True)
class StageBytes:
    """(P,) bytes of one stage of each plan; `state` is weights, gradients and optimizer."""

    state: FloatArray
    activations: FloatArray
    logits: FloatArray
    gathered: FloatArray
    workspace: FloatArray

    @property
    def total(self) -> FloatArray:
        """(P,) peak without the reserve."""
        total: FloatArray = (
            self.state + self.activations + self.logits + self.gathered + self.workspace
        )
        return total


def peak_bytes(tables: Tables) -> tuple[FloatArray, NDArray[np.int64]]:
    """(P,) peak of the fullest stage, and its kind: 0 first, 1 second, 2 last."""
    alive = tables.schedule.alive[:, tables.at_schedule]
    totals = [stage_bytes(tables, kind, alive[kind]).total for kind in (FIRST, MIDDLE, LAST)]
    fullest = np.where(totals[MIDDLE] > totals[FIRST], MIDDLE, FIRST)
    peak = np.maximum(totals[FIRST], totals[MIDDLE])
    fullest = np.where(totals[LAST] > peak, LAST, fullest)
    return np.maximum(peak, totals[LAST]), fullest


def stage_bytes(tables: Tables, kind: int, alive: FloatArray) -> StageBytes:
    """Bytes of the first, a middle or the last stage.

    Args:
        tables: Tables and places.
        kind: FIRST, MIDDLE or LAST; a single stage is first and last at once.
        alive: (P,) micro-batches whose activations the stage holds.
    """
    layer, ends, sync = tables.layer, tables.ends, tables.sync
    at_ends, at_sync = tables.at_ends, tables.at_sync
    activations = alive * sync.layers[kind][at_sync] * layer.saved_bytes[tables.at_layer]
    gathered = sync.gathered_bytes[at_sync]
    pp = tables.schedule.pp[tables.at_schedule]
    workspace = layer.working_bytes[tables.at_layer] + (pp > 1) * ends.buffer_bytes[at_ends]
    logits = np.zeros_like(activations)
    if kind == FIRST:
        activations = activations + alive * ends.embedding_saved_bytes[at_ends]
    if kind != MIDDLE:
        # Where pp = 1 the first stage has the head as well; a first stage of several has none.
        has_head = 1.0 if kind == LAST else (pp == 1).astype(float)
        at_head = has_head * tables.schedule.at_head[tables.at_schedule]
        activations = activations + at_head * ends.head_saved_bytes[at_ends]
        logits = at_head * ends.logits_bytes[at_ends]
        at_loss = sync.gathered_at_loss_bytes[at_sync]
        beside = ends.loss_bytes[at_ends]
        loss_is_peak = has_head * (at_loss + beside) > gathered + workspace
        gathered = np.where(loss_is_peak, at_loss, gathered)
        workspace = np.where(loss_is_peak, beside, workspace)
    return StageBytes(sync.state_bytes[kind][at_sync], activations, logits, gathered, workspace)


def state_by_category(tables: Tables, kind: int) -> Mapping[str, FloatArray]:
    """Weights, gradients and optimizer of one kind of stage, (P,) each."""
    sync, at_sync = tables.sync, tables.at_sync
    return {
        "weights": sync.weights_bytes[kind][at_sync],
        "gradients": sync.gradients_bytes[kind][at_sync],
        "optimizer": sync.optimizer_bytes[kind][at_sync],
    }
