"""Peak bytes of a device, by stage of the pipeline and by category.

peak = weights + gradients + optimizer + activations alive + logits + the larger of two moments:
at the loss (copies of the logits, gathered units) and inside a layer's backward (the layer being
recomputed, a gathered input, gathered units). Logits count as kept in both: slightly pessimistic.
Formulas: sections 3, 4 of the sheet in `docs/model.md`.

Three stages can be the fullest: rank 0 (embedding, most micro-batches alive), rank 1 (where the
first stage has fewer layers), the last (head, logits). Shapes: (3, P) by stage, P plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dse.plan import IntArray
from dse.schedule import GPIPE, in_flight
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


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by category, each (3, P): rank 0, rank 1, the last; one stage fills all three."""

    parts: Mapping[str, FloatArray]

    @property
    def total(self) -> FloatArray:
        """(3, P) sum of the categories, in their order."""
        total: FloatArray = self.parts[CATEGORIES[0]]
        for name in CATEGORIES[1:]:
            total = total + self.parts[name]
        return total


def memory(
    plan: Mapping[str, IntArray],
    rank: IntArray | None,
    layer: LayerTable,
    ends: EndsTable,
    sync: SyncTable,
    ids: Mapping[str, IntArray],
) -> Memory:
    """Peak bytes of P plans.

    Args:
        plan: (P,) columns `pp, vpp, schedule, num_microbatches`.
        rank: (3, P) ranks to look at; 0, 1 and the last if None.
        layer: Table of layers, gathered by `ids["layer"]`.
        ends: Table of ends, gathered by `ids["ends"]`.
        sync: Table of state, gathered by `ids["sync"]`.
        ids: (P,) positions in the three tables.
    """
    pp, m = plan["pp"], plan["num_microbatches"]
    if rank is None:
        rank = np.stack([np.zeros_like(pp), np.minimum(1, pp - 1), pp - 1])
    kind = np.where(rank == 0, 0, np.where(rank == pp - 1, 2, 1))
    first, last = rank == 0, rank == pp - 1

    def state(table: FloatArray) -> FloatArray:
        picked: FloatArray = table[kind, ids["sync"]]
        return picked

    alive = np.stack([in_flight(plan["schedule"], pp, plan["vpp"], m, row) for row in rank])
    activations = alive * state(sync.layers) * layer.saved_bytes[ids["layer"]]
    activations = activations + first * alive * ends.embedding_saved_bytes[ids["ends"]]
    at_head = last * np.where(plan["schedule"] == GPIPE, m, 1)
    activations = activations + at_head * ends.head_saved_bytes[ids["ends"]]
    logits = at_head * ends.logits_bytes[ids["ends"]]

    piped = pp > 1
    gathered = sync.gathered_bytes[ids["sync"]] + 0.0 * alive
    working = layer.working_bytes[ids["layer"]] + piped * ends.buffer_bytes[ids["ends"]]
    at_loss = last * (sync.gathered_at_loss_bytes[ids["sync"]])
    beside = last * ends.loss_bytes[ids["ends"]]
    loss_is_peak = at_loss + beside > gathered + working
    return Memory(
        {
            "weights": state(sync.weights_bytes),
            "gradients": state(sync.gradients_bytes),
            "optimizer": state(sync.optimizer_bytes),
            "activations": activations,
            "logits": logits,
            "gathered": np.where(loss_is_peak, at_loss, gathered),
            "workspace": np.where(loss_is_peak, beside, working),
        }
    )
